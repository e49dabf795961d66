"""A node's numbers at one moment: plain data that `node/observe/` fills and `fronts/metrics.py` shows."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from penstock.api.inspect import QueueStats

COUNTERS: Final = (
    "delivered",
    "acked",
    "nacked",
    "rejected",
    "released",
    "postponed",
    "lease_expired",
    "left",
    "dead",
    "expired",
    "dropped",
    "redriven",
    "purged",
    "committed",
)
"""What is counted of each group, in the order of its list of counts."""

SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MESSAGES_BOUNDS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
BYTES_BOUNDS: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)


class Histogram:
    """How many values fell below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of values up to each bound and above the one before; the last one of those past every bound."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, values up to it) with +Inf last, as histograms are shown."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Counts:
    """What a node has counted since its process began. Lists of counts are in the order of `COUNTERS`."""

    def __init__(self) -> None:
        self.groups: dict[int, list[int]] = {}
        """By group; of those to which something happened since the start, and which still exist."""
        self.totals = [0] * len(COUNTERS)
        """Over all groups, also those that were deleted since."""
        self.published = 0
        self.commit_seconds = Histogram(SECONDS_BOUNDS)
        self.commit_messages = Histogram(MESSAGES_BOUNDS)
        self.commit_bytes = Histogram(BYTES_BOUNDS)
        self.commits_failed = 0
        self.enqueued_published = 0
        """Messages taken from what applications have enqueued,"""
        self.enqueued_failed = 0
        """and those that could not be published, each time that they were tried."""
        self.schedules_fired = 0
        """Ticks of schedules that were published,"""
        self.schedules_refused = 0
        """and schedules that `limits.schedule_rate` has refused."""


class SpoolNumbers(msgspec.Struct, frozen=True):
    """How the spool stands."""

    is_away: bool
    messages: int
    """Answered `buffered`, and not in the store yet."""
    bytes: int
    """What the spool takes on its disk."""
    oldest_ms: int | None
    """When the oldest of them was published."""
    buffered: int
    """Ever since the node was opened."""
    dead: int
    """Dead letters of the spool."""


class AlarmNumbers(msgspec.Struct, frozen=True):
    """Memory and disks, and what their alarms did."""

    raised: dict[str, bool]
    """By what is watched: `memory`, `store`, `spool`."""
    memory_mark_bytes: int
    """Where the alarm begins; 0 for never."""
    disk_free_bytes: dict[str, int]
    """By what is on the disk."""
    delayed: int
    """Publishes that had to wait,"""
    refused: int
    """and those that were refused."""


class QueueNumbers(msgspec.Struct):
    """One queue. Lists are in the order of `stats.groups`."""

    stats: QueueStats
    oldest_seconds: float | None
    """Age of the oldest message kept, 0 without one; None where it was not to be had in time."""
    lag_seconds: list[float | None]
    """Of each group: age of the oldest message that is not done, 0 without one; None as above."""
    counts: list[list[int]]
    """Of each group, in the order of `COUNTERS`."""


class RestNumbers(msgspec.Struct):
    """The queues that are in memory and not given one by one, as a sum."""

    queues: int = 0
    messages: int = 0
    ready: int = 0
    leased: int = 0
    scheduled: int = 0
    dead: int = 0
    lag: int = 0
    lag_seconds: float = 0.0
    """The largest that is known without reading."""


class ScrubNumbers(msgspec.Struct):
    """How far the scrub is, since the process began."""

    lanes: int = 0
    """Of this pass."""
    lanes_done: int = 0
    batches: int = 0
    bytes: int = 0
    passes: int = 0
    """That came to their end."""
    passed_ms: int = 0
    """When the last one did; 0 for none."""


class NodeNumbers(msgspec.Struct):
    """Everything a scrape shows of a node."""

    counters: Counts
    queues: list[QueueNumbers]
    rest: RestNumbers
    queues_declared: int
    queues_in_memory: int
    lanes_loaded: int
    polls_waiting: int
    readers_waiting: int
    pending_bytes: int
    pending_bytes_max: int
    cache_hits: int
    cache_misses: int
    cache_bytes: int
    cache_bytes_max: int
    enqueued_failed: int
    enqueued_lag_seconds: float
    damage_notes: int
    damaged_messages: dict[str, int]
    """By what of their batch is damaged: `body` or `meta`."""
    damaged_lanes: int
    alarms: AlarmNumbers
    spool: SpoolNumbers | None = None
    scrub: ScrubNumbers | None = None
    now_ms: int = 0
