"""How much may be declared on a node, over all namespaces. Plain data: those who declare look it up."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Counts that a declaration may not exceed."""

    queues: int = 1_000_000
    schedules: int = 10_000
