"""A verdict: what a consumer says of messages that it has leased."""

from __future__ import annotations

from typing import Literal

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
