"""`penstock tail`: reads a queue's log as it grows, without a group and without effect on others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.moments import Start, start
from penstock.cli.names import queue_argument
from penstock.cli.output import note, note_damage
from penstock.cli.show_message import Show, raw_option, shower

if TYPE_CHECKING:
    from penstock.api.results import StreamRead
    from penstock.client.client import AsyncClient

READ_MESSAGES: Final = 500
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 0.5
"""The log is looked at this often while nothing comes."""


@click.command()
@queue_argument
@click.option(
    "--from",
    "place",
    type=start,
    default="now",
    show_default=True,
    metavar="PLACE",
    help="first, now, an offset, a time like 2026-05-01T12:00:00Z, or 10m for ten minutes ago.",
)
@click.option("--lane", type=click.IntRange(min=0), help="Only this lane, from 0 on.")
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--no-follow", is_flag=True, help="Stop at the end of the log.")
@raw_option
@server_options
@json_option
def tail(
    queue: str,
    place: Start,
    lane: int | None,
    most: int | None,
    no_follow: bool,
    raw: bool,
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Print messages as they are published.

    It reads the log, and takes nothing from anyone. Of a queue with several lanes all are followed; each keeps its
    order. Ctrl+C ends it.

    \b
    Examples:
      penstock tail orders
      penstock tail orders --from 10m
      penstock tail orders --from first --no-follow --json
      penstock tail orders --from 4000 --lane 2 --max 100
    """
    show = shower(as_json=as_json, raw=raw)

    async def work(client: AsyncClient) -> None:
        lanes = (await client.stats(queue)).lanes
        if lane is not None and lane >= lanes:
            raise click.UsageError(f"queue {queue!r} has lanes 0 to {lanes - 1}")
        if place.offset is not None and lane is None and lanes > 1:
            raise click.UsageError(f"queue {queue!r} has {lanes} lanes: say with --lane in which one the offset is")
        reader = LogReader(client, queue, range(lanes) if lane is None else [lane])
        await reader.begin(place)
        await follow(reader, show, most, no_follow)

    with_client(server, work, is_patient=True)


async def follow(reader: LogReader, show: Show, most: int | None, no_follow: bool) -> None:
    import asyncio

    left = most
    pause = PAUSE_SECONDS
    while left is None or left > 0:
        found = False
        for lane in list(reader.places):
            read = await reader.read(lane, READ_MESSAGES if left is None else min(left, READ_MESSAGES))
            note_damage(read.damaged)
            show(read.messages)
            found = found or len(read) > 0 or bool(read.damaged)
            left = None if left is None else left - len(read)
            if left == 0:
                return
        if found:
            pause = PAUSE_SECONDS
        elif no_follow:
            return
        else:
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)


class LogReader:
    """Where in each lane the next read begins."""

    def __init__(self, client: AsyncClient, queue: str, lanes: range | list[int]) -> None:
        self._client = client
        self._queue = queue
        self.places: dict[int, int] = dict.fromkeys(lanes, 0)

    async def begin(self, place: Start) -> None:
        from penstock.model import TIME_MS_MAX

        for lane in self.places:
            if place.offset is not None:
                self.places[lane] = place.offset
                continue
            # No message has this time, so the offset found is the end of the log, whatever the clocks say.
            time_ms = TIME_MS_MAX if place.at_end else place.time_ms
            read = await self._client.read_from(self._queue, time_ms=time_ms, max=1, lane=lane)
            self.places[lane] = min([read.next_offset - len(read), *[gap.start for gap in read.damaged]])

    async def read(self, lane: int, most: int) -> StreamRead:
        from penstock.model.errors import OffsetGone

        try:
            read = await self._client.read_from(self._queue, self.places[lane], max=most, lane=lane)
        except OffsetGone as gone:
            note(f"{gone}; going on with the first message that is left")
            read = await self._client.read_from(self._queue, max=most, lane=lane)
        self.places[lane] = read.next_offset
        return read
