"""How many bytes of large answers a server makes and sends at once: one more waits in line, first come, first served.

What one claim, read or scan gives is bounded, but many clients may ask at once and take their answers slowly. A large
answer counts from before it is made until its client has taken it or is gone; small ones do not wait for it. All fronts
of a server share one `Answers`; a connection to which messages are delivered has a `Backlog`. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.api.results import Claim, StreamRead

LARGE_BYTES: Final = 1024 * 1024
"""Answers from this size on are counted, and made on a thread where they must be decoded."""
ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Under way at once, unless the configuration says otherwise."""
ANSWER_SECONDS: Final = 30.0
"""How long a client may take nothing of what it has been sent, likewise."""
TRIM_BYTES: Final = 16 * 1024 * 1024
TRIM_SECONDS: Final = 1.0
"""After `TRIM_BYTES` of answers were sent, and this pause, freed memory is given back to the system."""


Made = TypeVar("Made")


class Answers:
    """The large answers under way in one server."""

    def __init__(self, bytes_most: int = ANSWER_BYTES, seconds: float = ANSWER_SECONDS) -> None:
        self._most = bytes_most
        self.seconds = seconds
        """How long a client may take nothing of a large delivery: then its connection is closed."""
        self.bytes = 0
        """What is under way."""
        self.making = asyncio.Lock()
        """Held by who decodes a large answer on the event loop."""
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._gone = 0
        self._trim: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    async def take(self, size: int) -> Share:
        """Wait until `size` more bytes may be under way. If nothing else is, an answer of any size may."""
        if not self._line and self._fits(size):
            self.bytes += size
            return Share(self, size)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (size, turn)
        self._line.append(place)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come, and nobody takes it
                self.give_back(size)
            elif place in self._line:
                self._line.remove(place)
                self._let_through()
            raise
        return Share(self, size)

    def give_back(self, size: int) -> None:
        """An answer of `size` bytes was sent, or its client is gone."""
        self.bytes -= size
        self._gone += size
        self._let_through()
        if self._gone >= TRIM_BYTES and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_SECONDS, self._trim_memory)

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._most

    def _let_through(self) -> None:
        while self._line and (self._line[0][1].cancelled() or self._fits(self._line[0][0])):
            size, turn = self._line.popleft()
            if not turn.cancelled():
                self.bytes += size
                turn.set_result(None)

    def _trim_memory(self) -> None:
        self._trim = None
        self._gone = 0
        if _malloc_trim is not None:
            asyncio.get_running_loop().run_in_executor(None, _malloc_trim, 0)

    def close(self) -> None:
        """The server has stopped."""
        if self._trim is not None:
            self._trim.cancel()


class Share:
    """One answer's part of what is under way."""

    __slots__ = ("_answers", "_size")

    def __init__(self, answers: Answers, size: int) -> None:
        self._answers = answers
        self._size = size

    def give_back(self) -> None:
        """The answer is sent, or nobody wants it any more; once."""
        size, self._size = self._size, 0
        if size:
            self._answers.give_back(size)


class Backlog:
    """Large deliveries to one connection that its client has not taken yet."""

    __slots__ = ("_answers", "_buffered", "_is_closed", "_line", "_moved_at", "_shares")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._shares: list[Share] = []
        self._line: set[asyncio.Task[Share]] = set()
        self._is_closed = False
        self._buffered = 0
        """Bytes that were not taken when it was last looked at,"""
        self._moved_at = 0.0
        """and when there were fewer than before."""

    async def admit(self, found: Claim | StreamRead) -> None:
        """Wait until large messages may be delivered, or the client is gone; then they are decoded, on a thread."""
        turn = asyncio.get_running_loop().create_task(self._answers.take(unfolded(found)))
        self._line.add(turn)
        try:
            await asyncio.wait([turn])
        finally:
            self._line.discard(turn)
            turn.cancel()
        if turn.cancelled():
            return
        self._shares.append(turn.result())
        if self._is_closed:
            self.taken()
        else:
            await asyncio.to_thread(_decode, found)

    def taken(self) -> None:
        """The client has taken what was written."""
        shares, self._shares = self._shares, []
        for share in shares:
            share.give_back()

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        self.taken()
        for turn in self._line:
            turn.cancel()

    def is_overdue(self, now: float, buffered: int) -> bool:
        """Whether the client has long taken nothing of a large delivery; `buffered` bytes are still to be sent."""
        if not self._shares or buffered < self._buffered or not self._moved_at:
            self._moved_at = now
        self._buffered = buffered
        return now - self._moved_at > self._answers.seconds


def unfolded(found: Claim | StreamRead) -> int:
    """About how many bytes its messages have, decompressed."""
    return sum([part.unfolded for part in found.slices])


def is_large(found: Claim | StreamRead) -> bool:
    """Whether it is counted, and must be admitted."""
    return unfolded(found) >= LARGE_BYTES


def _decode(found: Claim | StreamRead) -> None:
    """What is decoded stays with what was found: a thread's own result would be kept until the next full collection."""
    _ = found.messages


async def on_thread(make: Callable[[], Made]) -> Made:
    """What is made on a thread. A thread's own result would be kept until the next full garbage collection."""
    made: list[Made] = []
    await asyncio.to_thread(lambda: made.append(make()))
    return made.pop()


def _find_malloc_trim() -> Callable[[int], int] | None:
    """What gives freed memory back to the system, where the C library has it.

    An allocator keeps what was freed between blocks that are in use: hundreds of megabytes after a few large answers.
    """
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


_malloc_trim: Final = _find_malloc_trim()
