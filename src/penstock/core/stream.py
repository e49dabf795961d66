"""A stream group on one lane: a cursor and what was committed of it. No leases, no retries.

Readers share the cursor: each read gets the next messages. `committed` never passes what a reader may still be
working on. Delay, priority and attempts are notions of work groups: a stream reads the log as it was written,
less what has expired and what the group's filter leaves out.
"""

from __future__ import annotations

from penstock.batch import COLUMN_TTL_MS
from penstock.core.entries import Entry, merged, ranges_of
from penstock.core.events import Events
from penstock.core.log import Missing, Segment
from penstock.core.settings import Settings
from penstock.core.work import LogView
from penstock.errors import InvalidArgument
from penstock.rows import GroupRow, LaneChange


class StreamGroup:
    """One stream group's position on one lane."""

    __slots__ = ("committed", "cursor_dirty", "events", "handed", "id", "lane", "next", "settings")

    def __init__(self, id: int, settings: Settings, lane: LogView, committed: int) -> None:
        self.id = id
        self.settings = settings
        self.lane = lane
        self.next = committed
        self.committed = committed
        self.handed: dict[str, int] = {}
        self.events = Events()
        self.cursor_dirty = False

    def read(self, now_ms: int, most: int, consumer: str) -> list[tuple[int, int]]:
        """The next messages as ranges; with auto-commit, this consumer's last read is committed by it.

        Raises `Missing` when heads are needed and nothing was found before them.
        """
        if self.settings.paused:
            return []
        self.next = max(self.next, self.lane.first)
        start = self.next
        taken: list[Entry] = []
        while most > 0 and self.next < self.lane.visible_end:
            try:
                segment = self.lane.log.find(self.next)
            except Missing:
                if taken:
                    break
                raise
            most -= self._take(segment, now_ms, most, taken)
        if self.settings.auto_commit:
            self._commit_before(start, consumer, now_ms, bool(taken))
        return ranges_of(merged(taken))

    def _take(self, segment: Segment, now_ms: int, most: int, taken: list[Entry]) -> int:
        """Move the cursor through one batch; how many messages were taken."""
        end = min(segment.end, self.lane.visible_end)
        start, condition = self.next, self.settings.filter
        if condition is None and not segment.columns & COLUMN_TTL_MS and self.settings.ttl_ms is None:
            self.next = min(end, start + most)
            taken.append(Entry(start, self.next))
            return self.next - start
        count = 0
        meta = segment.decoded()
        while self.next < end and count < most:
            index = self.next - segment.base
            ttl_ms = self.settings.ttl_ms
            if meta.ttl_ms is not None and (own := meta.ttl_ms[index]) is not None:
                ttl_ms = own if ttl_ms is None else min(ttl_ms, own)
            alive = ttl_ms is None or segment.published_ms + ttl_ms > now_ms
            if alive and (condition is None or condition.matches_at(meta, index)):
                taken.append(Entry(self.next, self.next + 1))
                count += 1
            self.next += 1
        return count

    def _commit_before(self, start: int, consumer: str, now_ms: int, took: bool) -> None:
        """What this consumer read before is processed; what others still hold is not."""
        self.handed.pop(consumer, None)
        if took:
            self.handed[consumer] = start
        self._set_committed(min(self.handed.values(), default=self.next), now_ms)

    def commit(self, now_ms: int, offset: int) -> None:
        """Everything below the offset is processed; a restart goes on from there."""
        if not 0 <= offset <= self.lane.visible_end:
            raise InvalidArgument(f"commit to offset {offset}, but the lane ends at {self.lane.visible_end}")
        self.handed = {consumer: start for consumer, start in self.handed.items() if start >= offset}
        self._set_committed(offset, now_ms)
        self.next = max(self.next, offset)

    def _set_committed(self, offset: int, now_ms: int) -> None:
        if offset != self.committed:
            low, high = sorted((offset, self.committed))
            self.events.add("committed", low, high, now_ms)
            self.committed = offset
            self.cursor_dirty = True

    def seek(self, now_ms: int, offset: int) -> None:
        """Read from this offset on, and count all below it as processed."""
        self.handed.clear()
        self.events.add("sought", offset, max(offset, self.next), now_ms)
        self.next = self.committed = offset
        self.cursor_dirty = True

    def consumer_left(self, now_ms: int, consumer: str) -> None:
        """A reader is gone: what it read and did not commit is read again, by whoever comes next."""
        start = self.handed.pop(consumer, None)
        if start is not None:
            self.next = min(self.next, start)

    def needed_from(self) -> int:
        return self.committed

    def next_due_ms(self) -> int | None:
        return None

    def seal(self, change: LaneChange) -> None:
        if self.cursor_dirty:
            change.groups.append(GroupRow(self.id, self.next, self.committed))
            self.cursor_dirty = False
