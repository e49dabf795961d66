"""`penstock enqueued …`: messages that applications put into the database and that cannot be published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.queues import said
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.moments import when
from penstock.cli.names import yes_option
from penstock.cli.output import confirm, counted, print_json, print_table

if TYPE_CHECKING:
    from penstock.api.enqueued import FailedPage
    from penstock.client.client import AsyncClient

ids_argument = click.argument("ids", type=click.IntRange(1), nargs=-1)


@click.group(cls=SuggestingGroup)
def enqueued() -> None:
    """Look after messages that applications enqueued in the database and that cannot be published.

    Such a message stays in the database with the reason. It is tried again when the queue, exchange or binding that it
    waits for is declared, or when you say so.

    \b
    Examples:
      penstock enqueued failed
      penstock enqueued retry
      penstock enqueued purge 17 18
    """


@enqueued.command("failed")
@click.option("--after", type=click.IntRange(0), default=0, help="Only those with a higher id.")
@click.option(
    "--max", "most", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Show at most this many."
)
@server_options
@json_option
def failed(after: int, most: int, server: ServerAddress, as_json: bool) -> None:
    """List the messages that cannot be published, with the reason.

    \b
    Examples:
      penstock enqueued failed
      penstock enqueued failed --max 1000 --json
    """

    async def work(client: AsyncClient) -> FailedPage:
        return await client.enqueued_failed(after=after, max=most)

    page = with_client(server, work)
    if as_json:
        print_json(page.failed)
        return
    rows = [
        (
            one.id,
            f"queue {one.queue}" if one.queue is not None else f"exchange {one.exchange}",
            one.error,
            when(one.enqueued_ms),
            when(one.failed_ms),
            one.size,
        )
        for one in page.failed
    ]
    titles = ("id", "target", "error", "enqueued", "failed", "bytes")
    print_table(titles, rows, numbers=("id", "bytes"), empty="Every enqueued message could be published.")
    if page.next is not None:
        click.echo(f"There are more: see --after {page.next}, or --max.", err=True)


@enqueued.command("retry")
@ids_argument
@server_options
@json_option
def retry(ids: tuple[int, ...], server: ServerAddress, as_json: bool) -> None:
    """Try them again: those with these IDS, or all.

    \b
    Examples:
      penstock enqueued retry
      penstock enqueued retry 17 18
    """

    async def work(client: AsyncClient) -> int:
        return await client.retry_enqueued(ids or None)

    count = with_client(server, work)
    said({"retried": count}, f"{counted(count, 'message')} to be tried again.", as_json)


@enqueued.command("purge")
@ids_argument
@yes_option
@server_options
@json_option
def purge(ids: tuple[int, ...], yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Let them go for good: those with these IDS, or all.

    \b
    Examples:
      penstock enqueued purge 17
      penstock enqueued purge --yes
    """
    confirm(f"Let {'these' if ids else 'all'} enqueued messages that cannot be published go for good?", yes)

    async def work(client: AsyncClient) -> int:
        return await client.purge_enqueued(ids or None)

    count = with_client(server, work)
    said({"purged": count}, f"{counted(count, 'message')} purged.", as_json)
