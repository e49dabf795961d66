"""`penstock top`: queues live on a terminal, with rates that are made from successive counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.moments import span
from penstock.cli.names import all_option, prefix_option

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

SORTS = ("lag", "ready", "dead", "leased", "in", "out", "queue")


@click.command()
@prefix_option
@all_option
@click.option("--sort", type=click.Choice(SORTS), default="lag", show_default=True, help="The largest first.")
@click.option(
    "--interval", "interval_ms", type=span, metavar="SPAN", default="1s", show_default=True, help="How often."
)
@click.option("--once", is_flag=True, help="Print one frame, after one interval.")
@server_options
@json_option
def top(
    prefix: str, show_all: bool, sort: str, interval_ms: int, once: bool, server: ServerAddress, as_json: bool
) -> None:
    """Watch queues live: what comes in, what goes out, what waits.

    'in' and 'out' are messages published and done per second, over the last interval. q or Ctrl+C ends it; with --json
    a line is printed for each interval.

    \b
    Examples:
      penstock top
      penstock top --sort in --interval 5s
      penstock top --once --json
    """
    import sys

    if interval_ms < 100:
        raise click.UsageError(f"--interval is {interval_ms}ms; the shortest is 100ms")
    if not (once or as_json or sys.stdout.isatty()):
        raise click.UsageError("top draws on a terminal, and this is none; use --once or --json")

    async def work(client: AsyncClient) -> None:
        from penstock.cli import watching

        watch = watching.Watch(client, prefix, show_all, sort, interval_ms / 1000)
        if as_json:
            await watching.print_lines(watch, once=once)
        elif once:
            await watching.print_frame(watch)
        else:
            await watching.draw(watch, server.url)

    with_client(server, work, is_patient=True)
