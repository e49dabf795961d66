"""Waiting for the next request of a client that works alone: for moments the loop looks for it rather than sleeping.

A core that sleeps takes time to wake, and so does whoever must wake it; on a virtual machine that is a tenth of what a
publish takes. So after many requests in a row on one connection, each sent as soon as the last was answered, the loop
stays awake for a little longer than such a client takes. When nothing comes in that time, some of its next requests are
not looked for, twice as many each time in a row. Knows neither what was asked nor what was answered.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

IN_A_ROW: Final = 32
"""So many requests on one connection, and on no other, make a client that works alone."""
TURNS: Final = 80
"""Turns of the loop, of one or two microseconds each, that its next request is looked for."""


class Alertness:
    """Of one server's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last: object = None
        self._in_a_row = 0
        self._turns = 0
        self._in_vain = 0
        self._is_looking = False
        # With one core, to look for the client is to keep it from running.
        self._needed = IN_A_ROW if _cores() > 1 else float("inf")

    def asked(self, connection: object) -> None:
        """A request has come."""
        if self._turns:
            self._turns = self._in_vain = 0
        if connection is self._last:
            self._in_a_row += 1
        else:
            self._last, self._in_a_row = connection, 0

    def answered(self) -> None:
        """It has been answered, and nothing else is to be done."""
        if self._in_a_row > self._needed:
            self._turns = TURNS
            if not self._is_looking:
                self._is_looking = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._turns > 1:
            self._turns -= 1
            self._loop.call_soon(self._look)
            return
        self._is_looking = False
        if self._turns:
            self._turns = 0
            self._in_vain += 1
            self._in_a_row = max(0, IN_A_ROW - (1 << min(self._in_vain, 10)))


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux can say
        return os.cpu_count() or 1
