"""A verdict: what a consumer says of messages that it has leased."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final, Literal

import msgspec

Action = Literal["ack", "nack", "reject", "postpone", "release"]


class Verdict(msgspec.Struct, frozen=True):
    """What a consumer says of offsets [start, end) of its lease; start None means the whole lease.

    `delay_ms` overrides a nack's backoff, and is the span of a postpone.
    """

    action: Action
    start: int | None = None
    end: int = 0
    delay_ms: int | None = None
    error: str = ""

    def continues(self, other: Verdict) -> bool:
        """Whether it says the same of the offsets that follow: one verdict on all of them means both."""
        return (
            self.start == other.end
            and other.start is not None
            and other.start < other.end < self.end
            and self.action == other.action
            and self.delay_ms == other.delay_ms
            and self.error == other.error
        )


by_start: Final = attrgetter("start")


def join_into(joined: list[Verdict], verdicts: Iterable[Verdict]) -> None:
    """Append verdicts that rise by offset, those that continue the one before as part of it."""
    for verdict in verdicts:
        last = joined[-1] if joined else None
        if last is not None and verdict.continues(last):
            joined[-1] = Verdict(last.action, last.start, verdict.end, last.delay_ms, last.error)
        else:
            joined.append(verdict)
