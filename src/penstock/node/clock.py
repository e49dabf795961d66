"""Time, the one thing the core is never allowed to ask for itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since the epoch; never goes back."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The wall clock at start, carried on by the monotonic one: a clock set anew moves no deadline."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now_ms(self) -> int:
        return int((time.monotonic() + self._offset) * 1000)
