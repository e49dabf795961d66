"""The work behind `penstock top`: samples of all queues, rates between two of them, frames on a terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli.commands.queues import GROUP_NUMBERS
from penstock.cli.commands.stats import all_stats
from penstock.cli.output import console, counted, json_line, make_table, note_alarms, print_table, printable

if TYPE_CHECKING:
    from penstock.api.inspect import QueueStats
    from penstock.client.client import AsyncClient

NUMBERS: Final = ("in/s", "out/s", *GROUP_NUMBERS, "groups")
TITLES: Final = ("queue", *NUMBERS, "paused")
LINES_BESIDE: Final = 4
"""Lines of a frame that are no queues."""


class Row(msgspec.Struct, frozen=True):
    """One queue, with its groups summed up."""

    queue: str
    in_rate: float
    out_rate: float
    """Messages that became done, over all groups."""
    ready: int
    leased: int
    scheduled: int
    dead: int
    lag: int
    groups: int
    paused: int
    """How many groups are."""

    def cells(self) -> tuple[object, ...]:
        counts = (getattr(self, name) for name in (*GROUP_NUMBERS, "groups"))
        return (self.queue, rate_text(self.in_rate), rate_text(self.out_rate), *counts, self.paused > 0)


class Frame(msgspec.Struct, frozen=True):
    """What one look shows."""

    at_ms: int
    seconds: float
    """Between the two samples that the rates are made from."""
    queues: list[Row]
    alarms: list[str]
    """What the server is low on, so that it holds publishes back."""


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:,.1f}"


def done_of(one: QueueStats) -> dict[str, int]:
    """Of each group, how many messages are behind it: neither waiting nor dead."""
    return {group.group: one.published - group.lag - group.dead for group in one.groups}


def row_of(one: QueueStats, before: QueueStats | None, seconds: float) -> Row:
    published = done = 0
    if before is not None:
        published = one.published - before.published
        known = done_of(before)
        # A seek or a redrive takes back what was done: that is no rate.
        done = sum(max(0, now - known[group]) for group, now in done_of(one).items() if group in known)
    sums = {name: sum(getattr(group, name) for group in one.groups) for name in (*GROUP_NUMBERS, "paused")}
    return Row(one.queue, max(0, published) / seconds, done / seconds, groups=len(one.groups), **sums)


class Watch:
    """Looks again and again."""

    def __init__(self, client: AsyncClient, prefix: str, show_all: bool, sort: str, interval: float) -> None:
        self._client = client
        self._prefix = prefix
        self._show_all = show_all
        self._sort = sort
        self.interval = interval
        self._before: dict[str, QueueStats] = {}
        self._looked_at = 0.0

    async def look(self) -> Frame:
        """The first time without rates."""
        stats, alarms = await all_stats(self._client, self._prefix, show_all=self._show_all)
        now = time.monotonic()
        seconds = max(0.001, now - self._looked_at) if self._looked_at else 1.0
        rows = [row_of(one, self._before.get(one.queue), seconds) for one in stats]
        self._before, self._looked_at = {one.queue: one for one in stats}, now
        return Frame(time.time_ns() // 1_000_000, seconds, self._sorted(rows), alarms)

    def _sorted(self, rows: list[Row]) -> list[Row]:
        field = {"in": "in_rate", "out": "out_rate"}.get(self._sort, self._sort)
        if field == "queue":
            return sorted(rows, key=lambda row: row.queue)
        return sorted(rows, key=lambda row: (-getattr(row, field), row.queue))

    async def next(self) -> Frame:
        """After one interval."""
        await asyncio.sleep(self.interval)
        return await self.look()


async def print_lines(watch: Watch, *, once: bool) -> None:
    await watch.look()
    while True:
        click.echo(json_line(await watch.next()))
        sys.stdout.flush()
        if once:
            return


async def print_frame(watch: Watch) -> None:
    await watch.look()
    frame = await watch.next()
    note_alarms(frame.alarms)
    print_table(TITLES, [row.cells() for row in frame.queues], numbers=NUMBERS, empty="There are no queues.")


# On a terminal -------------------------------------------------------------------------------------------


async def draw(watch: Watch, url: str) -> None:
    from rich.live import Live

    place = console()
    quit_asked = asyncio.Event()
    frame = await watch.look()
    with (
        keys(quit_asked),
        Live(frame_of(frame, url, place.height), console=place, screen=True, auto_refresh=False) as live,
    ):
        while not await is_set(quit_asked, watch.interval):
            live.update(frame_of(await watch.look(), url, place.height), refresh=True)


def frame_of(frame: Frame, url: str, height: int) -> RenderableType:
    clock = time.strftime("%H:%M:%S", time.localtime(frame.at_ms / 1000))
    totals = (
        f"{counted(len(frame.queues), 'queue')}, {rate_text(sum(row.in_rate for row in frame.queues))}/s in, "
        f"{rate_text(sum(row.out_rate for row in frame.queues))}/s out"
    )
    shown = frame.queues[: max(1, height - LINES_BESIDE - len(frame.alarms))]
    more = len(frame.queues) - len(shown)
    head = Text(f"penstock {printable(url)}  {clock}  {totals}", "bold")
    alarms = [Text(f"{printable(alarm)}. Publishes are held back", "bold red") for alarm in frame.alarms]
    rest = f"{counted(more, 'more queue')}; --prefix chooses. " if more else ""
    end = Text(f"{rest}q quits", "dim")
    return Group(head, *alarms, Text(""), make_table(TITLES, [row.cells() for row in shown], NUMBERS), end)


async def is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


@contextmanager
def keys(quit_asked: asyncio.Event) -> Iterator[None]:
    """Hear of q without waiting for Enter, where there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    import os
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if os.read(number, 64).lower().startswith((b"q", b"\x04")):
            quit_asked.set()

    tty.setcbreak(number)
    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
