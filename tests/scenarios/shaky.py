"""A machine for scenarios in which time matters to the millisecond and commits fail: virtual clock, shaky store.

Nodes are opened one after the other, or side by side, on one store in memory that outlives them all.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from penstock.api.ticket import in_task
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit, LaneImage
from penstock.node.broker import LocalBroker
from penstock.node.node import Node
from tests.memory_disk import MemoryDisk
from tests.simulation.virtual_loop import EPOCH_MS, VirtualLoop, run

Story = Callable[["Machine"], Awaitable[None]]


class ShakyStore(MemoryDisk):
    """Remembers every commit; the next ones that a test chooses fail, before they are done or after."""

    def __init__(self, *, enqueues: bool = False) -> None:
        super().__init__(enqueues=enqueues)
        self.commits: list[Commit] = []
        self.tries = 0
        self.fail_loads = 0
        self.fails: Literal["before", "after"] | None = None
        self.fail_times = 0
        self.chosen: Callable[[Commit], bool] = lambda _: True

    def fail(self, when: Literal["before", "after"], times: int, chosen: Callable[[Commit], bool]) -> None:
        self.fails, self.fail_times, self.chosen = when, times, chosen

    @in_task
    async def apply(self, commit: Commit) -> None:
        self.tries += 1
        await asyncio.sleep(0.001)
        fails = self.fail_times > 0 and self.chosen(commit)
        if fails:
            self.fail_times -= 1
        if fails and self.fails == "before":
            raise Unavailable("failed before it did anything")
        await super().apply(commit)
        self.commits.append(commit)
        if fails:
            raise Unavailable("failed after it was done")

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        if self.fail_loads:
            self.fail_loads -= 1
            raise Unavailable("cannot be read now")
        return await super().load(lanes, dedup_most)

    async def close(self) -> None:
        """Stays open for the next node."""


class Machine:
    """One virtual clock and one store."""

    def __init__(self, loop: VirtualLoop, start_ms: int) -> None:
        self._loop = loop
        self._start_ms = start_ms
        self.store = ShakyStore()

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000.0 + 1e-6)

    async def open(self, store: MemoryDisk | None = None, **options: Any) -> LocalBroker:
        node = Node(self.store if store is None else store, self, **options)
        await node.open("me")
        return LocalBroker(node, "default")

    async def comes(self, condition: Callable[[], bool]) -> None:
        """Let time pass, a millisecond at a time, until something is so."""
        for _ in range(100_000):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{condition} did not come true")

    async def until(self, time_ms: int) -> None:
        """Let time pass up to a moment."""
        await asyncio.sleep(max(0, time_ms - self.now_ms()) / 1000)


def at(text: str) -> int:
    """A time with its offset as milliseconds since the epoch."""
    return int(dt.datetime.fromisoformat(text).timestamp()) * 1000


def play(story: Story, start_ms: int = EPOCH_MS) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await story(Machine(loop, start_ms))

    run(loop, main())
