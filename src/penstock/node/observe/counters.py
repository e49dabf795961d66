"""What the node counts as it works: commits, and what became of messages, group by group.

Only what is durable is counted, and nothing here waits, reads a store or knows how numbers are shown. Counters begin
at 0 with the process. Next stop: `node/observe/survey.py`, which puts them beside what lanes have in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from penstock.model.events import Event
from penstock.model.rows import Commit
from penstock.node.catalog import Group, Queue

COUNTERS: Final = (
    "delivered", "acked", "nacked", "rejected", "released", "postponed", "lease_expired", "left", "dead", "expired",
    "dropped", "redriven", "purged", "committed",
)  # fmt: skip
"""What is counted of each group, in the order of its list of counts."""

SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MESSAGES_BOUNDS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
BYTES_BOUNDS: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)

# Events are named for what happened to a lease, counters for what a person looks for. A message that was rejected or
# outlived its ttl is counted twice: under that and, where it died of it, under `dead`.
_COUNTED_AS: Final = {
    "claimed": "delivered",
    "acked": "acked",
    "nacked": "nacked",
    "released": "released",
    "postponed": "postponed",
    "expired": "lease_expired",
    "left": "left",
    "dead": "dead",
    "dropped": "dropped",
    "redriven": "redriven",
    "purged": "purged",
    "committed": "committed",
}
_INDEXES: Final = {kind: COUNTERS.index(name) for kind, name in _COUNTED_AS.items()}
_DELIVERED: Final = COUNTERS.index("delivered")
_EXPIRED: Final = COUNTERS.index("expired")
_DROPPED: Final = COUNTERS.index("dropped")
_DEAD: Final = COUNTERS.index("dead")
_BY_REASON: Final = {"rejected": COUNTERS.index("rejected"), "expired": _EXPIRED}


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


class Counters:
    """Counters of one node. Lists of counts are in the order of `COUNTERS`."""

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

    def applied(self, commit: Commit, seconds: float) -> None:
        """The store took a commit."""
        messages = size = 0
        for change in commit.lanes:
            for row in change.batches:
                messages += row.count
                size += row.size
        self.commit_seconds.observe(seconds)
        self.commit_messages.observe(messages)
        self.commit_bytes.observe(size)

    def happened(self, group: int, events: Iterable[Event], *, exists: bool) -> None:
        """What a commit did to a group's messages. One that does not exist any more counts in the totals alone."""
        totals = self.totals
        counts = self.groups.get(group)
        if counts is None:
            counts = [0] * len(COUNTERS)
            if exists:
                self.groups[group] = counts
        for event in events:
            index = _INDEXES.get(event.kind)
            if index is None:
                continue
            count = 0
            for start, end in event.ranges:
                count += end - start
            if index == _DROPPED and event.detail == "expired":
                index = _EXPIRED
            elif index == _DEAD and (reason := _BY_REASON.get(event.detail)) is not None:
                counts[reason] += count
                totals[reason] += count
            counts[index] += count
            totals[index] += count

    def read(self, group: int, count: int, *, exists: bool) -> None:
        """A stream group was given messages: what no commit tells of."""
        self.totals[_DELIVERED] += count
        if exists:
            self.groups.setdefault(group, [0] * len(COUNTERS))[_DELIVERED] += count

    def queue_removed(self, queue: Queue) -> None:
        self.forget(group.id for group in queue.groups.values())

    def group_removed(self, _queue: Queue, group: Group) -> None:
        self.forget([group.id])

    def forget(self, groups: Iterable[int]) -> None:
        """These groups were deleted."""
        for group in groups:
            self.groups.pop(group, None)

    def keep(self, groups: set[int]) -> None:
        """Of all groups, only these are left."""
        self.forget([group for group in self.groups if group not in groups])
