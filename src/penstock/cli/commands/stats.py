"""`penstock stats`: counts of queues and their groups, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.names import complete_queue
from penstock.cli.output import print_json, print_table

if TYPE_CHECKING:
    from penstock.api.inspect import QueueStats
    from penstock.client.client import AsyncClient

PAGE: Final = 1_000
TITLES: Final = (
    "queue",
    "group",
    "kind",
    "messages",
    "published",
    "ready",
    "leased",
    "scheduled",
    "dead",
    "lag",
    "paused",
)
NUMBERS: Final = ("messages", "published", "ready", "leased", "scheduled", "dead", "lag")


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option("--prefix", default="", help="Only queues whose names begin so.")
@click.option("--all", "show_all", is_flag=True, help="Also the system's own, such as $events.")
@server_options
@json_option
def stats(queue: str | None, prefix: str, show_all: bool, server: ServerAddress, as_json: bool) -> None:
    """Show the counts of all queues, or of one.

    \b
    Examples:
      penstock stats
      penstock stats mail
      penstock stats --prefix mail. --json
    """
    if queue is not None:
        if prefix:
            raise click.UsageError("--prefix is for all queues; leave it out, or the queue's name")
        name = queue
        found = [with_client(server, lambda client: client.stats(name))]
        if as_json:
            print_json(found[0])
            return
    else:
        found = with_client(server, lambda client: all_stats(client, prefix, show_all=show_all))
        if as_json:
            print_json(found)
            return
    print_table(TITLES, [row for one in found for row in rows_of(one)], numbers=NUMBERS, empty="There are no queues.")


def rows_of(one: QueueStats) -> list[tuple[object, ...]]:
    """A line for each group; the queue's own numbers stand on the first."""
    if not one.groups:
        return [(one.queue, None, None, one.messages, one.published, None, None, None, None, None, None)]
    return [
        (
            *(
                (one.queue, group.group, group.kind, one.messages, one.published)
                if index == 0
                else ("", group.group, group.kind, "", "")
            ),
            group.ready,
            group.leased,
            group.scheduled,
            group.dead,
            group.lag,
            group.paused,
        )
        for index, group in enumerate(one.groups)
    ]


async def all_stats(client: AsyncClient, prefix: str = "", *, show_all: bool = False) -> list[QueueStats]:
    """The counts of every queue of the namespace by name, page by page: a request for each would be many."""
    import msgspec

    from penstock.api.inspect import QueueStats
    from penstock.client.operations.codec import with_query
    from penstock.wire.http.shapes import StatsAnswer

    found: list[QueueStats] = []
    after: str | None = None
    while True:
        path = with_query(client._target("stats"), prefix=prefix or None, limit=PAGE, after=after)
        answer = await client._get(StatsAnswer, path)
        found += [msgspec.convert(one, QueueStats, from_attributes=True) for one in answer.queues]
        if answer.next is None:
            return [one for one in found if show_all or not one.queue.startswith("$")]
        after = answer.next
