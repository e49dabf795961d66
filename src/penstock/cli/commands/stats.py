"""`penstock stats`: counts of queues and their groups, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from penstock.cli.commands.queues import GROUP_NUMBERS
from penstock.cli.connection import answered
from penstock.cli.names import all_option, complete_queue, prefix_option
from penstock.cli.output import Answer, fields_of, listed, note_alarms

if TYPE_CHECKING:
    from penstock.api.inspect import QueueStats
    from penstock.client.client import AsyncClient

PAGE: Final = 1_000
NUMBERS: Final = ("messages", "published", *GROUP_NUMBERS)
TITLES: Final = ("queue", "group", "kind", *NUMBERS, "paused")


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@prefix_option
@all_option
@answered
async def stats(client: AsyncClient, queue: str | None, prefix: str, show_all: bool) -> Answer:
    """Show the counts of all queues, or of one; and a warning while the server is low on memory or disk.

    \b
    Examples:
      penstock stats
      penstock stats mail
      penstock stats --prefix mail. --json
    """
    if queue is not None and prefix:
        raise click.UsageError("--prefix is for all queues; leave it out, or the queue's name")
    if queue is None:
        found, alarms = await all_stats(client, prefix, show_all=show_all)
    else:
        found, alarms = [await client.stats(queue)], await alarms_of(client)
    note_alarms(alarms)
    rows = [row for one in found for row in rows_of(one)]
    return listed(found if queue is None else found[0], TITLES, rows, numbers=NUMBERS, empty="There are no queues.")


def rows_of(one: QueueStats) -> list[tuple[object, ...]]:
    """A line for each group; the queue's own numbers stand on the first."""
    if not one.groups:
        return [(one.queue, None, None, one.messages, one.published, *([None] * len(GROUP_NUMBERS)), None)]
    own = [(one.queue, one.messages, one.published), *[("", "", "")] * (len(one.groups) - 1)]
    return [
        (queue, group.group, group.kind, messages, published, *counts)
        for (queue, messages, published), group, counts in zip(
            own, one.groups, fields_of(one.groups, (*GROUP_NUMBERS, "paused")), strict=True
        )
    ]


async def all_stats(
    client: AsyncClient, prefix: str = "", *, show_all: bool = False
) -> tuple[list[QueueStats], list[str]]:
    """The counts of every queue of the namespace by name, and the server's alarms.

    Page by page: a request for each queue would be many.
    """
    from penstock.wire.http.answers import StatsAnswer

    found: list[QueueStats] = []
    alarms: list[str] = []
    async for page in client._pages(StatsAnswer, client._target("stats"), prefix, PAGE):
        found += [one for one in page.queues if show_all or not one.queue.startswith("$")]
        alarms = page.alarms
    return found, alarms


async def alarms_of(client: AsyncClient) -> list[str]:
    from penstock.client.operations.codec import with_query
    from penstock.wire.http.answers import StatsAnswer

    return (await client._get(StatsAnswer, with_query(client._target("stats"), limit=1))).alarms
