"""Numbers that no process on this store gave out before: of leases, outbox rows and trace rows."""

from __future__ import annotations

from typing import Final

NUMBERS_PER_INCARNATION: Final = 1 << 40


class Numbers:
    """Rising numbers. Incarnations never repeat, so neither do these."""

    def __init__(self) -> None:
        self._last = 0

    def start(self, incarnation: int) -> None:
        """Begin above everything that earlier processes gave out."""
        self._last = incarnation * NUMBERS_PER_INCARNATION

    def is_own(self, number: int) -> bool:
        """Whether this process gave it out."""
        return number // NUMBERS_PER_INCARNATION == self._last // NUMBERS_PER_INCARNATION

    def next(self) -> int:
        self._last += 1
        return self._last
