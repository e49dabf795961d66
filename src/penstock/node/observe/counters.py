"""What the node counts as it works: commits, and what became of messages, group by group.

Only what is durable is counted, and nothing here waits, reads a store or knows how numbers are shown. Counters begin
at 0 with the process. Next stop: `node/observe/survey.py`, which puts them beside what lanes have in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.api.measures import COUNTERS, Counts
from penstock.model.events import Event
from penstock.model.rows import Commit
from penstock.node.catalog import Group, Queue

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


class Counters(Counts):
    """Counts what happens on one node."""

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
            count = sum([end - start for start, end in event.ranges])
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
