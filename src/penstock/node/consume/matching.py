"""A condition on many messages, tried in slices: a filter may cost milliseconds a message, and others wait meanwhile.

Knows neither lanes nor groups. Next stop: `core/filters/filter.py`.
"""

from __future__ import annotations

from penstock.api.slices import others_first
from penstock.core.filters import Filter
from penstock.model import Message
from penstock.model.work import MESSAGE_WORK, Budget


class Matching:
    """One request's condition; None for one that all messages match."""

    def __init__(self, condition: Filter | None) -> None:
        self._condition = condition
        self.spent = 0
        """Work done so far."""
        self._budget = Budget()

    async def matches(self, message: Message) -> bool:
        """Whether a message matches; other work has its turn first where there was enough of this."""
        if self._condition is None:
            return True
        work = MESSAGE_WORK + self._condition.work(message.headers)
        self.spent += work
        if self._budget.spend(work):
            self._budget.renew()
            await others_first()
        return self._condition.matches(message)
