"""How many bytes of large answers a server makes and sends at once: one more waits in line, first come, first served.

What one claim, read or scan gives is bounded, but many clients may ask at once and take their answers slowly. A large
answer counts from before it is made until its client has taken it or is gone; small ones do not wait for it. Knows
numbers only: no request, no socket.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import Callable
from typing import Final

LARGE_BYTES: Final = 1024 * 1024
"""Answers from this size on are counted, and made on a thread where they must be decoded."""
TRIM_BYTES: Final = 16 * 1024 * 1024
TRIM_SECONDS: Final = 1.0
"""After `TRIM_BYTES` of answers were sent, and this pause, freed memory is given back to the system."""


class Answers:
    """The large answers under way in one server."""

    def __init__(self, bytes_most: int) -> None:
        self._most = bytes_most
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


def _find_malloc_trim() -> Callable[[int], int] | None:
    """What gives freed memory back to the system, where the C library has it.

    An allocator keeps what was freed between blocks that are in use: hundreds of megabytes after a few large answers.
    """
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


_malloc_trim: Final = _find_malloc_trim()
