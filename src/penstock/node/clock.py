"""Time, the one thing the core is never allowed to ask for itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since the epoch; never goes back."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The wall clock at start, continued by the monotonic one: setting the wall clock moves no deadline."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now_ms(self) -> int:
        return int((time.monotonic() + self._offset) * 1000)


class StoreClock(SystemClock):
    """The store's clock as the node last heard it, continued by the monotonic one.

    Leases, delays and times to live pass from one node to the next: all of them must mean the same, and a machine whose
    wall clock is wrong must not end what others began. Never goes back: where the store's does, it stands still.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_ms = 0

    def follow(self, store_ms: int, asked_at: float, answered_at: float) -> None:
        """The store said what time it is, at some moment between two of the monotonic clock."""
        if not self._last_ms:
            self._offset = store_ms / 1000 - (asked_at + answered_at) / 2
            self._last_ms = store_ms
            return
        # Within what the way of the answer may have taken, both may be right: no step for that.
        known = self._offset
        self._offset = min(max(known, store_ms / 1000 - answered_at), store_ms / 1000 - asked_at)

    def now_ms(self) -> int:
        self._last_ms = max(self._last_ms, super().now_ms())
        return self._last_ms
