"""`penstock config`: the configuration in force and where each value comes from."""

from __future__ import annotations

import json

import click
import msgspec
from rich.console import Console
from rich.table import Table

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
        if as_json:
            click.echo(json.dumps({"ok": True, "file": loaded.file}))
        else:
            click.echo(f"The configuration is fine ({loaded.file or 'no file'}{words(declared)}).")
    elif as_json:
        options = msgspec.to_builtins(in_force(loaded))
        click.echo(json.dumps({"file": loaded.file, "options": options, "declares": declared}, indent=2))
    else:
        print_table(loaded)
        click.echo(f"File: {loaded.file or 'none'}{words(declared)}")


def print_table(loaded: Loaded) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("option", style="cyan", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", style="dim", overflow="fold")
    for shown in in_force(loaded):
        value = str(shown.value).lower() if isinstance(shown.value, bool) else str(shown.value)
        table.add_row(shown.option, value, shown.where or shown.source)
    Console(highlight=False, markup=False).print(table)


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
