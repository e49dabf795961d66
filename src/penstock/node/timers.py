"""What a node does besides answering: tasks in the background, which end when it does, and timers for what comes later.

Timers are one heap, with one wake-up of the loop at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from heapq import heappop, heappush
from typing import Any

from penstock.node.clock import Clock

SLEEP_MS_MAX = 3_600_000

log = logging.getLogger("penstock.node")


class Tasks:
    """The tasks that run now."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; a failure is logged, and ends nothing else."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed: %s", error)

    async def close(self) -> None:
        """Cancel every task, and wait for the last."""
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


class Timers:
    """Calls `action` at or after a time; a key has one pending time, the earliest it was given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Hashable]] = []
        self._pending: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._sequence = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_ms = 0
        self._closed = False

    def at(self, time_ms: int, key: Hashable, action: Callable[[], None]) -> None:
        """Call the action at a time, unless the key is due earlier already."""
        pending = self._pending.get(key)
        if self._closed or (pending is not None and pending[0] <= time_ms):
            return
        self._pending[key] = (time_ms, action)
        self._sequence += 1
        heappush(self._heap, (time_ms, self._sequence, key))
        self._arm()

    def cancel(self, key: Hashable) -> None:
        self._pending.pop(key, None)

    def _arm(self) -> None:
        """Wake up for the earliest pending time, and only for that."""
        while self._heap:
            time_ms, _, key = self._heap[0]
            pending = self._pending.get(key)
            if pending is not None and pending[0] == time_ms:
                break
            heappop(self._heap)
        if not self._heap or self._closed:
            return
        time_ms = self._heap[0][0]
        if self._handle is not None:
            if self._handle_ms <= time_ms:
                return
            self._handle.cancel()
        delay_ms = min(max(0, time_ms - self._clock.now_ms()), SLEEP_MS_MAX)
        self._handle_ms = time_ms
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000.0, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now_ms = self._clock.now_ms()
        due: list[Callable[[], None]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            time_ms, _, key = heappop(self._heap)
            pending = self._pending.get(key)
            if pending is not None and pending[0] == time_ms:
                del self._pending[key]
                due.append(pending[1])
        for action in due:
            action()
        self._arm()

    def close(self) -> None:
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
