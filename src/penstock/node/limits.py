"""How much may be declared on a node, over all namespaces, and published at once. Plain data, looked up by others."""

from __future__ import annotations

import msgspec

from penstock.model import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX


class Limits(msgspec.Struct, frozen=True):
    """Counts that a declaration or a publish may not exceed."""

    queues: int = 1_000_000
    schedules: int = 10_000
    batch_messages: int = BATCH_MESSAGES_MAX
    """Messages of one publish or transaction."""
    batch_bytes: int = BATCH_BYTES_MAX
    """Bytes of one publish or transaction, as stored, in all queues that it reaches."""
