"""A condition on many messages, tried in slices: a filter may cost milliseconds a message, and others wait meanwhile.

Knows neither lanes nor groups. Next stop: `core/filters/filter.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.core.filters import Filter
from penstock.model import Message

SLICE_WORK: Final = 20_000
"""What is done at once, as `Filter.work` counts it: some milliseconds at the most."""


class Matching:
    """One request's condition; None for one that all messages match."""

    def __init__(self, condition: Filter | None) -> None:
        self._condition = condition
        self.spent = 0
        """Work done so far."""
        self._slice_ends = SLICE_WORK

    async def matches(self, message: Message) -> bool:
        """Whether a message matches; other work has its turn first where there was enough of this."""
        if self._condition is None:
            return True
        if self.spent >= self._slice_ends:
            self._slice_ends = self.spent + SLICE_WORK
            await asyncio.sleep(0)
        self.spent += self._condition.work(message)
        return self._condition.matches(message)
