"""A stream group on one lane: a cursor and a committed offset. No leases, no retries.

Readers share the cursor: each read gets the next messages. With auto-commit, `committed` never passes what a reader may
still be working on. Delay, priority and attempts are for work groups: a stream reads the log as it was written, without
what has expired and what the group's filter leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.batch import COLUMN_TTL_MS
from penstock.core.group.claim import CLAIM_BYTES_MAX
from penstock.core.group.entries import Entry, merged, ranges_of
from penstock.core.group.settings import Settings
from penstock.core.group.state import Events, LaneView
from penstock.core.log import DAMAGED, Missing, Segment
from penstock.model.errors import InvalidArgument
from penstock.model.rows import GroupRow, LaneChange
from penstock.model.work import MESSAGE_WORK, Budget, Pause

TURNS_KEPT: Final = 100


class StreamGroup:
    """One stream group's position on one lane."""

    __slots__ = ("committed", "cursor_dirty", "events", "given_up", "handed", "id", "lane", "next", "settings", "turns")

    def __init__(self, id: int, settings: Settings, lane: LaneView, committed: int) -> None:
        self.id = id
        self.settings = settings
        self.lane = lane
        self.next = committed
        self.committed = committed
        self.handed: dict[str, tuple[int, int]] = {}
        self.given_up: dict[str, None] = {}
        """The latest reads, by their turns, whose answers nobody waits for."""
        self.turns: dict[str, int] = {}
        """The latest reads, by their turns, and where what they were given begins."""
        self.events = Events()
        self.cursor_dirty = False

    def read(self, now_ms: int, most: int, consumer: str, turn: str | None = None) -> list[tuple[int, int]]:
        """Read the next messages, as ranges. With auto-commit, it commits what this consumer read before.

        They have about CLAIM_BYTES_MAX at most, decompressed, but there is always one.

        Raises `Missing` when heads are needed and nothing was found before them, and `Pause` when its budget was spent
        before.
        """
        if self.settings.paused:
            return []
        self.next = max(self.next, self.lane.first)
        taken: list[Entry] = []
        left, budget = CLAIM_BYTES_MAX, Budget()
        while most > 0 and self.next < self.lane.visible_end:
            if budget.left <= 0:
                if taken:
                    break
                raise Pause
            try:
                segment = self.lane.log.find(self.next)
            except Missing:
                if taken:
                    break
                raise
            if segment.columns & DAMAGED:
                if not taken:  # alone, whole and whoever it was for: its reader is told of a gap
                    end = min(segment.end, self.lane.visible_end)
                    taken.append(Entry(self.next, end))
                    self.next = end
                break
            each = segment.bytes_each
            within = min(most, left // each if taken else max(1, left // each))
            if not within:
                break
            count = self._take(segment, now_ms, within, taken, budget)
            most -= count
            left -= count * each
        if self.settings.auto_commit:
            self.handed.pop(consumer, None)
        if taken:
            self._hand(consumer, taken[0].start, turn)
        if self.settings.auto_commit:
            self._set_committed(min((low for low, _ in self.handed.values()), default=self.next), now_ms)
        return ranges_of(merged(taken))

    def _hand(self, consumer: str, start: int, turn: str | None) -> None:
        """Note who has what was read from `start` on."""
        low, _ = self.handed.get(consumer, (self.next, 0))
        self.handed[consumer] = (min(low, start), self.next)
        if turn is not None:
            self.turns[turn] = start
            _forget_all_but_latest(self.turns)

    def _take(self, segment: Segment, now_ms: int, most: int, taken: list[Entry], budget: Budget) -> int:
        """Move the cursor through one batch; how many messages were taken."""
        end = min(segment.end, self.lane.visible_end)
        start, condition = self.next, self.settings.filter
        if condition is None and not segment.columns & COLUMN_TTL_MS and self.settings.ttl_ms is None:
            budget.left -= MESSAGE_WORK
            self.next = min(end, start + most)
            taken.append(Entry(start, self.next))
            return self.next - start
        count = 0
        meta = segment.decoded()
        while self.next < end and count < most and budget.left > 0:
            index = self.next - segment.base
            budget.left -= MESSAGE_WORK if condition is None else MESSAGE_WORK + condition.work_at(meta, index)
            ttl_ms = self.settings.ttl_ms
            if meta.ttl_ms is not None and (own := meta.ttl_ms[index]) is not None:
                ttl_ms = own if ttl_ms is None else min(ttl_ms, own)
            alive = ttl_ms is None or segment.published_ms + ttl_ms > now_ms
            if alive and (condition is None or condition.matches_at(meta, index)):
                taken.append(Entry(self.next, self.next + 1))
                count += 1
            self.next += 1
        return count

    def commit(self, now_ms: int, offset: int) -> None:
        """Mark everything below the offset as processed; a restart goes on from there."""
        if not 0 <= offset <= self.lane.visible_end:
            raise InvalidArgument(f"commit to offset {offset}, but the lane ends at {self.lane.visible_end}")
        self.handed = {
            consumer: (max(low, offset), high) for consumer, (low, high) in self.handed.items() if high > offset
        }
        self._set_committed(offset, now_ms)
        self.next = max(self.next, offset)

    def _set_committed(self, offset: int, now_ms: int) -> None:
        assert 0 <= offset <= self.lane.end, f"committed to {offset}; the lane ends at {self.lane.end}"
        if offset != self.committed:
            low, high = sorted((offset, self.committed))
            self.events.add("committed", low, high, now_ms)
            self.committed = offset
            self._mark()

    def seek(self, now_ms: int, offset: int) -> None:
        """Move cursor and commit to this offset, or to the first that is kept."""
        offset = min(max(offset, self.lane.first), self.lane.end)
        self.handed.clear()
        self.events.add("sought", offset, max(offset, self.next), now_ms)
        self.next = self.committed = offset
        self._mark()

    def _mark(self) -> None:
        self.cursor_dirty = True
        self.lane.mark(self)

    def consumer_left(self, now_ms: int, consumer: str) -> None:  # noqa: ARG002 - the time is for work groups
        """Rewind the cursor to what a reader that is gone has not committed."""
        if consumer in self.handed:
            self.next = min(self.next, self.handed.pop(consumer)[0])

    def give_up(self, consumer: str, turns: Sequence[str]) -> None:
        """A reader has lost the answers of these reads: rewind the cursor to what they were given.

        It says so with each of its reads, for another owner of the lane may not know it: what is known changes nothing.
        """
        for turn in turns:
            self.given_up[turn] = None
            start = self.turns.pop(turn, None)
            if start is not None:
                self.unread(consumer, max(start, self.committed))
        _forget_all_but_latest(self.given_up)

    def unread(self, consumer: str, start: int) -> None:
        """Rewind the cursor to a read from `start` on that was never answered."""
        low, _ = self.handed.pop(consumer, (start, start))
        if low < start:
            self.handed[consumer] = (low, start)
        self.next = min(self.next, start)

    def pass_over(self, consumer: str, start: int, end: int) -> None:
        """What a consumer was given of [start, end) is damaged, and so is the rest: the cursor moves behind it.

        Not where it was moved elsewhere meanwhile.
        """
        if consumer in self.handed and start <= self.next < end:
            self.handed[consumer] = (self.handed[consumer][0], end)
            self.next = end

    def needed_from(self) -> int:
        """The lowest offset that this group still needs."""
        return self.committed

    def next_due_ms(self) -> int | None:
        """None: a stream has no timers."""
        return None

    def has_unsealed(self) -> bool:
        """Whether anything changed since the last seal."""
        return self.cursor_dirty or bool(self.events.by_key)

    def seal(self, change: LaneChange) -> None:
        """Write what changed since the last seal into a commit."""
        if self.cursor_dirty:
            change.groups.append(GroupRow(self.id, self.next, self.committed))
            self.cursor_dirty = False

    def check(self) -> None:
        """Assert that cursor, commit and what readers hold are within the log."""
        end = self.lane.end
        assert 0 <= self.committed <= end, f"group {self.id} committed {self.committed}, the lane ends at {end}"
        assert 0 <= self.next <= end, f"group {self.id} is at {self.next}, the lane ends at {end}"
        for consumer, (low, high) in self.handed.items():
            assert low <= high <= end, f"{consumer!r} reads [{low}, {high}), the lane ends at {end}"


def _forget_all_but_latest(turns: dict[str, Any]) -> None:
    while len(turns) > TURNS_KEPT:
        del turns[next(iter(turns))]
