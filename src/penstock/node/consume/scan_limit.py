"""How much of a node scans may use: a number at a time, bytes a second, and half of the event loop while others work.

A scan reads as fast as it may, and producers and consumers must not notice. It takes a place, reports after each step
how long it held the loop and how much it read, and waits until it may go on. Knows clocks and numbers, no lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from penstock.model.errors import Overloaded

LINE_MAX: Final = 1_000
"""Scans that wait for a place; one more is turned away."""
LINE_SECONDS: Final = 10.0
"""A scan that found no place in this time is turned away: its client may ask again, and others may be quicker."""
OTHERS_SECONDS: Final = 0.1
"""For this long after a commit the node counts as working for others."""
SEND_SECONDS_PER_BYTE: Final = 1e-9
"""Roughly how long encoding and sending an answer holds the loop; nobody here can measure it."""
ANSWER_SECONDS: Final = 4.0
"""With a limit on bytes a second, an answer is no larger than what is allowed in this time."""


class ScanLimit:
    """The one account that all scans of a node share."""

    def __init__(self, most: int, bytes_per_second: int, commits: Callable[[], int]) -> None:
        """`commits` counts what the node does for others."""
        self._most = most
        self._rate = bytes_per_second
        self._commits = commits
        self._places = asyncio.Semaphore(most)
        self._waiting = 0
        self._commits_seen = 0
        self._others_until = 0.0
        self._loop_free_at = 0.0
        self._bytes_free_at = 0.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the places, in the order of asking; `Overloaded` where there is none in time."""
        if self._waiting >= LINE_MAX:
            raise Overloaded(f"{self._waiting} scans are waiting for one of {self._most} places; try again later")
        self._waiting += 1
        try:
            async with asyncio.timeout(LINE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded(
                f"{self._most} scans were under way for {LINE_SECONDS:g} seconds; try again later, or set limits.scans"
            ) from None
        finally:
            self._waiting -= 1
        try:
            await self._rest()
            yield
        finally:
            self._places.release()

    def bytes_most(self, wanted: int) -> int:
        """How large an answer may be of which so much is wanted."""
        return wanted if not self._rate else min(wanted, max(1, int(self._rate * ANSWER_SECONDS)))

    async def used(self, loop_seconds: float, size: int = 0) -> None:
        """A scan held the loop for so long, and read so much to be sent: waits until it may go on."""
        now = asyncio.get_running_loop().time()
        held = loop_seconds + size * SEND_SECONDS_PER_BYTE
        if self._is_working_for_others(now):
            # As long as it was held it is left to the others: all scans together never have more than half of it.
            self._loop_free_at = max(self._loop_free_at, now) + held
        if self._rate:
            self._bytes_free_at = max(self._bytes_free_at, now) + size / self._rate
        await self._rest()

    async def _rest(self) -> None:
        now = asyncio.get_running_loop().time()
        # At least one turn of the loop, for everybody else.
        await asyncio.sleep(max(0.0, self._loop_free_at - now, self._bytes_free_at - now))

    def _is_working_for_others(self, now: float) -> bool:
        commits = self._commits()
        if commits != self._commits_seen:
            self._commits_seen = commits
            self._others_until = now + OTHERS_SECONDS
        return now < self._others_until
