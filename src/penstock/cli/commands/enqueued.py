"""`penstock enqueued …`: messages that applications put into the database and that cannot be published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import answered
from penstock.cli.moments import when
from penstock.cli.names import confirmed, max_option
from penstock.cli.output import Answer, counted, listed, said, target_text

if TYPE_CHECKING:
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
@max_option(100, 10_000)
@answered
async def failed(client: AsyncClient, after: int, most: int) -> Answer:
    """List the messages that cannot be published, with the reason.

    \b
    Examples:
      penstock enqueued failed
      penstock enqueued failed --max 1000 --json
    """
    page = await client.enqueued_failed(after=after, max=most)
    rows = [
        (
            one.id,
            target_text(one.queue, one.exchange),
            one.error,
            when(one.enqueued_ms),
            when(one.failed_ms),
            one.size,
        )
        for one in page.failed
    ]
    return listed(
        page.failed,
        ("id", "target", "error", "enqueued", "failed", "bytes"),
        rows,
        numbers=("id", "bytes"),
        empty="Every enqueued message could be published.",
        more="" if page.next is None else f"There are more: see --after {page.next}, or --max.",
    )


@enqueued.command("retry")
@ids_argument
@answered
async def retry(client: AsyncClient, ids: tuple[int, ...]) -> Answer:
    """Try them again: those with these IDS, or all.

    \b
    Examples:
      penstock enqueued retry
      penstock enqueued retry 17 18
    """
    count = await client.retry_enqueued(ids or None)
    return said({"retried": count}, f"{counted(count, 'message')} to be tried again.")


@enqueued.command("purge")
@ids_argument
@confirmed(lambda ids, **_: f"Let {'these' if ids else 'all'} enqueued messages that cannot be published go for good?")
@answered
async def purge(client: AsyncClient, ids: tuple[int, ...]) -> Answer:
    """Let them go for good: those with these IDS, or all.

    \b
    Examples:
      penstock enqueued purge 17
      penstock enqueued purge --yes
    """
    count = await client.purge_enqueued(ids or None)
    return said({"purged": count}, f"{counted(count, 'message')} purged.")
