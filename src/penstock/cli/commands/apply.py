"""`penstock apply`: declares what a file asks for on a running server, and shows the difference before or after."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from penstock.cli.connection import ServerAddress, with_client
from penstock.cli.output import Answer
from penstock.config import SECTIONS
from penstock.declare.file import read_declarations
from penstock.declare.plan import Change, Step, StepFailed, plan_all, take
from penstock.model import Message
from penstock.toml_file import FileProblems, read_toml
from penstock.wire.http.shapes import message_body

SIGNS = {
    "create": ("+", "green", "created"),
    "change": ("~", "yellow", "changed"),
    "delete": ("-", "red", "deleted"),
    "conflict": ("!", "bold red", "impossible"),
    "unchanged": ("=", "dim", "unchanged"),
}


def run(file: str, server: ServerAddress, *, dry_run: bool, prune: bool, yes: bool, as_json: bool) -> None:
    try:
        # The server's own configuration may be the file: its other sections are not this command's business.
        declarations = read_declarations(read_toml(Path(file)), others=SECTIONS, namespace=server.namespace)
    except FileProblems as error:
        raise click.ClickException("\n       ".join(error.problems)) from None
    steps = with_client(server, lambda client: plan_all(client, declarations, prune=prune))
    has_conflict = any(step.action == "conflict" for step in steps)
    if dry_run or has_conflict:
        show(steps, done=False).show(as_json)
    if has_conflict:
        raise click.ClickException(
            "what is marked ! exists and cannot change so; nothing was done. Take the change back, or delete it first."
        )
    if dry_run:
        return
    if not yes:
        confirm(steps)
    try:
        with_client(server, lambda client: take(client, steps))
    except StepFailed as error:
        raise click.ClickException(f"{error}\nWhat came before it is done; apply again when it is put right.") from None
    show(steps, done=True).show(as_json)


def confirm(steps: list[Step]) -> None:
    deletions = [step for step in steps if step.action == "delete"]
    if not deletions:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(
            f"--prune would delete {len(deletions)} things and what is in them; look with --dry-run, then pass --yes"
        )
    Console(highlight=False, stderr=True).print(*map(line, steps), sep="\n")
    click.confirm(f"Delete {len(deletions)} of these with all that is in them?", abort=True, err=True)


# Showing -------------------------------------------------------------------------------------------------


def show(steps: list[Step], *, done: bool) -> Answer:
    def tell() -> None:
        console = Console(highlight=False, soft_wrap=True)
        for step in steps:
            console.print(line(step))
        actions = [step.action for step in steps]
        counts = ", ".join(f"{actions.count(action)} {SIGNS[action][2]}" for action in SIGNS if action in actions)
        console.print(f"{'' if done else 'Would be: '}{counts or 'the file declares nothing'}.")

    return Answer({"applied": done, "steps": [as_data(step) for step in steps]}, tell)


def line(step: Step) -> Text:
    sign, style, _ = SIGNS[step.action]
    changes = ", ".join(f"{change.option} {value(change.old)} → {value(change.new)}" for change in step.changes)
    return Text(f"{sign} {step.title}{': ' if changes else ''}{changes}", style)


def value(plain: Any) -> str:
    return json.dumps(data_of(plain), ensure_ascii=False)


def as_data(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {
        "action": step.action,
        "kind": step.kind,
        "namespace": step.namespace,
        "name": step.name,
        "changes": [change_data(change) for change in step.changes],
    }
    if step.parent:
        found["exchange" if step.kind == "binding" else "queue"] = step.parent
    if step.binding is not None:
        found["binding"] = data_of(step.binding)
    if step.where:
        found["where"] = step.where
    return found


def change_data(change: Change) -> dict[str, Any]:
    return {"option": change.option, "old": data_of(change.old), "new": data_of(change.new)}


def data_of(plain: Any) -> Any:
    """Plain data of anything that an option may be; a message as the HTTP API writes it."""
    return msgspec.to_builtins(message_body(plain) if isinstance(plain, Message) else plain, str_keys=True)
