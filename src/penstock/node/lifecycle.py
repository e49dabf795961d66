"""Whether a node works: it is open, draining, fenced or closed. Many read it; few change it."""

from __future__ import annotations

from penstock.model.errors import Closed, PenstockError


class Lifecycle:
    """How far a node's life has come."""

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
