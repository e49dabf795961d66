"""The life of a node: whether it is open, draining, fenced or closed, and the numbers that it alone gives out."""

from __future__ import annotations

from typing import Final

from penstock.model.errors import Closed, PenstockError

NUMBERS_PER_INCARNATION: Final = 1 << 40


class Lifecycle:
    """How far a node's life has come. Many read it; few change it."""

    def __init__(self) -> None:
        self.closed = False
        self.draining = False
        """About to stop: nobody waits for messages any more."""
        self.fenced: PenstockError | None = None
        """Why a node that has the store for itself lost it to another; such a node never recovers."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will be committed any more."""
        return self.closed or self.fenced is not None

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the broker is closed")
        if self.fenced is not None:
            raise self.fenced


class Numbers:
    """Rising numbers of leases, outbox rows and trace rows. Incarnations never repeat, so neither do these."""

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
