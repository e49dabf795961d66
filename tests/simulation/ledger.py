"""What clients were told, offset by offset: the checker's memory, without any judgement.

A group's view is shared by all clients of a queue's group. `Fate` is what the checker may count on for one message of
it: facts are kept only while nothing that is under way could have changed them. Order is told by sequence numbers,
because many things happen at the same virtual millisecond.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from penstock.core.group.settings import Settings
from penstock.model import Message, QueueConfig


class Holder(msgspec.Struct):
    """Who certainly has a message, and until when."""

    lease: int
    consumer: str
    deadline_ms: int


class Fate(msgspec.Struct):
    """What is known of one message in one group from the answers so far."""

    seq: int = 0
    """When it was last heard of."""
    low: int = 1
    high: int = 1
    """The attempt that the next hand-out must have, give or take what was never answered."""
    not_before_ms: int = 0
    acked: int = 0
    rejected: int = 0
    """Sequence number at the start of the verdict that was answered; 0 = none."""
    reasons: set[str] = set()
    """Why it may be done."""
    holder: Holder | None = None


class GroupView:
    """A group as its clients see it."""

    def __init__(self, queue: str, group: str, config: QueueConfig, settings: Settings) -> None:
        self.queue = queue
        self.group = group
        self.config = config
        self.settings = settings
        self.fates: dict[tuple[int, int], Fate] = {}
        self.claims_open: set[int] = set()
        self.settling_open: set[int] = set()
        """Those among them that ack what they hand out."""
        self.claims_failed: list[int] = []
        self.swallowed = False
        """A claim that settles as it hands out was never answered: it may have taken anything."""
        self.seeks_open = 0
        self.seek_seq = 0
        self.redrives_open = 0
        self.redrive_seq = 0
        self.sought_to: dict[int, int] = {}
        self.purged_to: dict[int, int] = {}
        self.dead_purged = False
        self.pauses_open = 0
        self.ever_paused = False
        self.paused_since_ms: int | None = None
        self.pause_seq = 0
        self.read: dict[int, set[int]] = {}
        """Stream groups: the offsets of each lane that were ever answered."""
        self.reads_open = 0
        self.hand_outs: dict[int, list[tuple[int, int]]] = {}
        """Groups with a rate: (time, count) by lane."""
        self.rate_resets = 0

    def fate(self, lane: int, offset: int) -> Fate:
        fate = self.fates.get((lane, offset))
        if fate is None:
            fate = self.fates[lane, offset] = Fate()
        return fate

    def ghosts(self, since: int, own: int) -> int:
        """Claims that may have handed out something of which nobody was told since then."""
        failed = len(self.claims_failed) - bisect_right(self.claims_failed, since)
        return failed + len(self.claims_open - {own})

    def sought_since(self, seq: int) -> bool:
        return self.seeks_open > 0 or self.seek_seq >= seq

    def redriven_since(self, seq: int) -> bool:
        return self.redrives_open > 0 or self.redrive_seq >= seq

    @property
    def ever_sought(self) -> bool:
        return self.sought_since(1)

    @property
    def ever_redriven(self) -> bool:
        return self.redriven_since(1)


class Sent(msgspec.Struct):
    """A message that a producer published, perhaps more than once under one dedup id."""

    message: Message
    queues: tuple[str, ...]
    started_ms: int
    calls: int = 0
    refused: int = 0
    """Calls that were answered with an error which says that nothing was stored."""
    together: tuple[str, ...] = ()
    """The messages of the same call: all of them land, or none."""
    settles: tuple[int, int, int, tuple[int, ...]] | None = None
    """(lane, group, lease, offsets) that are acknowledged in the same transaction."""
    buffered: bool = False
    """It was answered that it is in a spool."""
    begun_seq: int = 0
    answered_seq: int = 0
    """In the order of all calls; 0 = never answered."""


class Landing(msgspec.Struct):
    """A place at which a message was stored."""

    lane: int
    offset: int
    commit: int
    published_ms: int
