"""`penstock config`: the configuration in force and where each value comes from."""

from __future__ import annotations

import click

from penstock.cli.output import Answer, print_table, said
from penstock.cli.serve.settings import Flags
from penstock.config import Loaded
from penstock.config.show import example, in_force


def run(flags: Flags, *, check: bool, show_example: bool, as_json: bool) -> None:
    if show_example:
        click.echo(example(), nl=False)
        return
    loaded = flags.load()
    declared = declared_counts(loaded)
    if check:
        text = f"The configuration is fine ({loaded.file or 'no file'}{words(declared)})."
        said({"ok": True, "file": loaded.file}, text).show(as_json)
        return
    options = in_force(loaded)

    def tell() -> None:
        rows = [(one.option, toml_text(one.value), one.where or one.source) for one in options]
        print_table(("option", "value", "from"), rows)
        click.echo(f"File: {loaded.file or 'none'}{words(declared)}")

    Answer({"file": loaded.file, "options": options, "declares": declared}, tell).show(as_json)


def toml_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def declared_counts(loaded: Loaded) -> dict[str, int]:
    worlds = loaded.declarations.values()
    counts = {
        "queues": sum(len(world.queues) for world in worlds),
        "groups": sum(len(queue.groups) for world in worlds for queue in world.queues.values()),
        "exchanges": sum(len(world.exchanges) for world in worlds),
        "bindings": sum(len(exchange.bindings) for world in worlds for exchange in world.exchanges.values()),
        "schedules": sum(len(world.schedules) for world in worlds),
    }
    return {name: count for name, count in counts.items() if count}


def words(declared: dict[str, int]) -> str:
    return f", declares {', '.join(f'{name}: {count}' for name, count in declared.items())}" if declared else ""
