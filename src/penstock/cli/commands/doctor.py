"""`penstock doctor`: what an operator should know before asking anybody else, on one page."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.moments import when
from penstock.cli.output import Answer, print_table, printable
from penstock.cli.serve.command import FILES_BESIDE, has_spool
from penstock.cli.serve.settings import Flags
from penstock.config.load import is_unspecified
from penstock.fronts.registry import FRONTS
from penstock.maintenance.doctor import Check, check_disk, check_programs, check_store
from penstock.node.observe.resources import memory_limit
from penstock.store.open import scheme_of

if TYPE_CHECKING:
    from penstock.config import Config

SECONDS: Final = 2.0
MARKS: Final = {"fine": "ok", "mind": "mind", "wrong": "WRONG"}


def run(flags: Flags, *, as_json: bool) -> None:
    loaded = flags.load()
    checks = [*check_programs(), *all_checks(loaded.config)]
    wrong = sum(check.state == "wrong" for check in checks)
    mind = sum(check.state == "mind" for check in checks)

    def tell() -> None:
        rows = [(check.about, MARKS[check.state], text_of(check)) for check in checks]
        print_table(("about", "", "what"), rows)
        click.echo(f"Configuration: {loaded.file or 'no file'}. {wrong} wrong, {mind} to mind.")

    Answer({"ok": not wrong, "file": loaded.file, "checks": checks}, tell).show(as_json)
    if wrong:
        raise SystemExit(1)


def text_of(check: Check) -> str:
    return printable(f"{check.text}: {check.advice}" if check.advice else check.text)


def all_checks(config: Config) -> list[Check]:
    place = config.store.path
    checks = asyncio.run(check_store(place))
    if not scheme_of(place):
        checks += check_disk(Path(place).absolute().parent, "disk")
    if has_spool(config):
        checks += check_disk(Path(config.spool.folder).absolute(), "spool's disk")
    checks += check_limits(config)
    checks += check_memory(config)
    checks += check_ports(config)
    return checks


def check_limits(config: Config) -> Iterator[Check]:
    """Open files: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sum(front.max_connections for front in config.fronts.values() if front.enabled) + FILES_BESIDE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        text = f"{hard} open files are allowed, {wanted} may be wanted for connections"
        yield Check("limits", "mind", text, "raise 'ulimit -Hn', or lower max_connections")
    else:
        allowed = "any number of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        yield Check("limits", "fine", f"{allowed} open files are allowed, {wanted:,} may be wanted")


def check_memory(config: Config) -> Iterator[Check]:
    """How much a server may use before it holds publishes back."""
    limit, share = memory_limit(), config.limits.memory_share
    if limit is None:
        yield Check("memory", "mind", "the system does not tell how much there is", "limits.memory_share does nothing")
    elif not share:
        yield Check("memory", "mind", "there is no alarm", "set limits.memory_share to refuse publishes before it ends")
    else:
        text = f"publishes are held back above {limit * share / (1 << 20):,.0f} MiB, {share:.0%} of what there is"
        yield Check("memory", "fine", text)


# Ports ---------------------------------------------------------------------------------------------------


def check_ports(config: Config) -> Iterator[Check]:
    """Whether the fronts of this configuration listen, or could."""
    answer, alarms = ask_server(config)
    if answer is not None:
        yield Check("ready", "fine" if answer == "ready" else "mind", f"the server says: {answer}")
        yield from check_scrub(config)
    for alarm in alarms:
        yield Check("alarm", "wrong", alarm, "publishes are refused: consume or purge, make room, see docs/operate.md")
    for entry in FRONTS:
        section: Any = config.fronts[entry.name]
        for option in entry.ports if section.enabled else ():
            yield check_port(f"{entry.name}.{option}", section.host, getattr(section, option), answer is not None)


def check_port(name: str, host: str, port: int, is_served: bool) -> Check:
    if port == 0:
        return Check("ports", "fine", f"{name} takes a free one")
    if is_open(host, port):
        if is_served:
            return Check("ports", "fine", f"{name} {port}: the server listens")
        return Check("ports", "wrong", f"{name} {port}: another program has it", f"choose another with --set {name}=…")
    if is_served:
        return Check("ports", "mind", f"{name} {port}: the server does not listen there", "it runs with other options")
    return Check("ports", "fine", f"{name} {port} is free")


def is_open(host: str, port: int) -> bool:
    """Whether somebody listens."""
    try:
        with socket.create_connection((reachable(host), port), timeout=SECONDS):
            return True
    except OSError:
        return False


def reachable(host: str) -> str:
    return "127.0.0.1" if is_unspecified(host) else host


def ask_server(config: Config) -> tuple[str | None, list[str]]:
    """What the server of this configuration says of itself, None where there is none; and what it is low on."""
    try:
        status, text = get(config, "/readyz")
        body = json.loads(text)
        if status != 200:
            return str(body["error"]["message"]), []
        return str(body["status"]), [str(alarm) for alarm in body.get("alarms", ())]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None, []


def check_scrub(config: Config) -> Iterator[Check]:
    """How far the running server is with reading again all that it keeps; nothing where it does not tell."""
    try:
        lines = get(config, "/metrics")[1].decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("penstock_scrub_"))
        if not found:
            yield Check("scrub", "mind", "the server does not look for damage", "set node.scrub_bytes_per_second")
            return
        passed_s = float(found["penstock_scrub_passed_timestamp_seconds"])
        last = f"the last pass ended {when(round(passed_s * 1000))}" if passed_s else "no pass has ended yet"
        yield Check("scrub", "fine", f"{float(found['penstock_scrub_progress']):.0%} of this pass is read; {last}")
    except (OSError, HTTPException, ValueError, KeyError):
        return


def get(config: Config, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(reachable(config.http.host), config.http.port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
