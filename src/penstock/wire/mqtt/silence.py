"""How long a client has been silent, without a clock of its own: `tick` says what time it is.

Between two ticks only whether something came is known, so silence is counted from the tick after it: never too long.
"""

from __future__ import annotations

from typing import Final

PROGRESS_BYTES: Final = 1024
"""Bytes of a long packet that count as a sign of life, like a short packet."""


class Silence:
    """Counts the seconds since the last packet."""

    __slots__ = ("_bytes", "_heard", "_since")

    def __init__(self) -> None:
        self._heard = True
        self._bytes = 0
        self._since = 0.0

    def hear_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes >= PROGRESS_BYTES:
            self._heard = True

    def hear_packet(self) -> None:
        self._heard = True

    def tick(self, now: float) -> float:
        """Seconds of silence; 0 at the first tick after something came."""
        if self._heard:
            self._heard = False
            self._bytes = 0
            self._since = now
        return now - self._since
