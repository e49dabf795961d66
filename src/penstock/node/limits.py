"""How much may be declared on a node, over all namespaces, published and scanned at once. Plain data, for others."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.model import BATCH_BYTES_DEFAULT, BATCH_MESSAGES_MAX, PAYLOAD_BYTES_DEFAULT
from penstock.model.limits import HEADERS_BYTES_MAX


class Sizes(NamedTuple):
    """How many bytes may be published."""

    message: int = PAYLOAD_BYTES_DEFAULT
    """As the payload of one message,"""
    batch: int = BATCH_BYTES_DEFAULT
    """and by one publish or transaction: one message at the least."""


ANY_SIZES: Final = Sizes()


class Limits(msgspec.Struct, frozen=True):
    """Counts that a declaration or a publish may not exceed."""

    queues: int = 1_000_000
    schedules: int = 10_000
    schedule_rate: float = 100.0
    """Messages a second that the schedules of one namespace may publish together."""
    batch_messages: int = BATCH_MESSAGES_MAX
    """Messages of one publish or transaction."""
    batch_bytes: int = BATCH_BYTES_DEFAULT
    """Bytes of one publish or transaction, as stored, in all queues that it reaches; one message at the least."""
    message_bytes: int = PAYLOAD_BYTES_DEFAULT
    """Bytes of the payload of one message; a queue may allow fewer."""
    scans: int = 2
    """Scans that read at the same time; others wait for a place."""
    scan_bytes_per_second: int = 0
    """What all scans together may read in a second; 0 = as much as they can."""
    staging_bytes: int = 4 * 1024 * 1024 * 1024
    """Bytes of all staged chunks together."""
    memory_share: float = 0.0
    """Of the memory that there is, what this process may use before publishes are held back; 0 for any amount."""
    disk_free_bytes: int = 0
    """Room on the disks of the store and the spool below which publishes are held back; 0 for none."""
    alarm_wait: float = 5.0
    """Seconds for which a publish is held back before it is refused."""
    staging_ttl: float = 24 * 3600.0
    """Seconds after its last chunk in which a staged transaction must be committed."""

    @property
    def sizes(self) -> Sizes:
        """What publishes are checked by: one message may be published, whatever `batch_bytes` is."""
        return Sizes(self.message_bytes, max(self.batch_bytes, self.message_bytes + HEADERS_BYTES_MAX))
