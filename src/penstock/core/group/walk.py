"""The walk: a claim looks at messages never handed out and decides for each.

Expired → dropped or dead; filtered out → done; delayed, locked or outranked → parked; else taken. A batch without
per-message decisions is taken by range arithmetic alone; one with damaged metadata is dead as a whole, since nothing
can be decided of its messages, and locks no partition. The walk stops when it has enough, at the end of what is
committed, when too much is parked, where heads are not in memory, or when its budget is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.batch import COLUMN_DELAY_MS, COLUMN_NOT_BEFORE_MS, COLUMN_PARTITION, COLUMN_PRIORITY, COLUMN_TTL_MS
from penstock.core.group.entries import Entry, merged
from penstock.core.group.state import WorkState
from penstock.core.log import DAMAGED, Missing, Segment
from penstock.model.work import MESSAGE_WORK, Budget

PARKED_MAX: Final = 100_000
"""Parked entries at which a claim stops looking further: the bound on a group's memory."""
TIMED: Final = COLUMN_DELAY_MS | COLUMN_NOT_BEFORE_MS | COLUMN_TTL_MS | DAMAGED
TIMED_OR_KEYED: Final = TIMED | COLUMN_PARTITION
"""Columns that need a decision per message; the second, in an ordered group."""


class Walk:
    """One pass of one claim over `[next, visible end)` of a group's lane."""

    __slots__ = ("budget", "group", "mine", "now_ms", "only", "room", "taken", "walked_to", "watched")

    def __init__(self, group: WorkState, now_ms: int, room: int, only: str | None, budget: Budget) -> None:
        settings = group.settings
        self.group = group
        self.now_ms = now_ms
        self.room = room
        self.only = only
        self.budget = budget
        self.walked_to = 0
        """Where `_entries` ended: at the end that it was given, or where the budget was spent."""
        self.taken: list[Entry] = []
        self.mine: set[str] = set()
        self.watched = TIMED_OR_KEYED if settings.ordered else TIMED
        if settings.prioritized:
            self.watched |= COLUMN_PRIORITY

    def run(self, *, park_all: bool = False, may_ask: bool = True) -> None:
        """Walk until there is no more room; with `park_all`, to the end, parking everything."""
        group, lane, budget = self.group, self.group.lane, self.budget
        while (park_all or self.room > 0) and group.next < lane.visible_end and budget.left > 0:
            try:
                segment = lane.log.find(group.next)
            except Missing:
                if self.taken or not may_ask:
                    break
                raise
            end = min(segment.end, lane.visible_end)
            if segment.columns & DAMAGED:
                budget.left -= MESSAGE_WORK
                group.bury(group.next, end, self.now_ms)
                group.move_to(end)
                continue
            take, left = self._take_range if self._is_plain(segment) else self._take_each, budget.left
            stop = take(segment, group.next, end, park_all)
            if stop == group.next:
                budget.left = left  # only what leads on is counted: the same claim would stop here again and again
                break
            group.move_to(stop)

    def _is_plain(self, segment: Segment) -> bool:
        return not segment.columns & self.watched and self.group.settings.filter is None

    # Whole ranges -----------------------------------------------------------------------------------------

    def _take_range(self, segment: Segment, start: int, end: int, park_all: bool) -> int:
        """Decide for a whole batch at once; returns where the walk goes on."""
        group, settings = self.group, self.group.settings
        self.budget.left -= MESSAGE_WORK
        expires_ms = 0 if settings.ttl_ms is None else segment.published_ms + settings.ttl_ms
        if expires_ms and expires_ms <= self.now_ms:
            group.expire(Entry(start, end), self.now_ms)
            return end
        due_ms = segment.published_ms + settings.delay_ms if settings.delay_ms else 0
        if park_all or due_ms > self.now_ms or self.only is not None:
            if len(group.waiting) >= PARKED_MAX:
                return start
            group.waiting.put(Entry(start, end, 0, due_ms if due_ms > self.now_ms else 0, expires_ms))
            return end
        end = min(end, start + self.room)
        self.taken.append(Entry(start, end, 1, 0, expires_ms))
        self.room -= end - start
        return end

    # Message by message -----------------------------------------------------------------------------------

    def _take_each(self, segment: Segment, start: int, end: int, park_all: bool) -> int:
        """Decide message by message; returns where the walk goes on."""
        group, waiting, now_ms = self.group, self.group.waiting, self.now_ms
        room_to_park = PARKED_MAX - len(waiting)
        parked: list[Entry] = []
        parked_partitions: set[str] = set()
        mine, ordered = self.mine, waiting.ordered
        for entry in self._entries(segment, start, end):
            if self.room <= 0 and not park_all:
                stop = entry.start
                break
            if entry.expires_ms and entry.expires_ms <= now_ms:
                group.expire(entry, now_ms)
                continue
            partition = entry.partition
            locked = (
                ordered
                and partition != ""
                and (
                    partition in parked_partitions
                    or (waiting.stands_behind(partition) if partition in mine else not waiting.is_free(partition))
                )
            )
            if park_all or locked or entry.due_ms > now_ms or (self.only is not None and partition != self.only):
                if room_to_park <= 0:
                    stop = entry.start
                    break
                room_to_park -= 1
                parked.append(entry if entry.due_ms > now_ms else entry.moved(0, 0))
                parked_partitions.add(partition)
                continue
            self.room -= 1
            self.taken.append(entry.moved(1, 0))
            if ordered and partition:
                mine.add(partition)
                waiting.lock(partition, 1)
        else:
            stop = self.walked_to
        for entry in merged(parked):
            waiting.put(entry)
        return stop

    def fresh(self, start: int, end: int, segment: Segment) -> list[Entry]:
        """An entry for each message of [start, end) that passes the filter, with no attempt spent; see `walked_to`."""
        return list(self._entries(segment, start, end))

    def anew(self, start: int, end: int, into: list[Entry]) -> None:
        """Entries for [start, end) as if just published without delay, ttl or filter: for what is redriven.

        Raises `Missing` where a head is needed; the entries before it are in `into` by then.
        """
        if not self.watched & (COLUMN_PARTITION | COLUMN_PRIORITY):
            into.append(Entry(start, end))
            return
        for offset in range(start, end):
            segment = self.group.lane.log.find(offset)
            if segment.columns & DAMAGED:  # whoever claims it finds out again
                into.append(Entry(offset, offset + 1))
                continue
            meta, index = segment.decoded(), offset - segment.base
            partition = "" if meta.partition is None or not self.watched & COLUMN_PARTITION else meta.partition[index]
            priority = 0 if meta.priority is None or not self.watched & COLUMN_PRIORITY else meta.priority[index]
            priority = min(priority, self.group.settings.priority_max)
            into.append(Entry(offset, offset + 1, 0, 0, 0, priority, partition or ""))

    def _entries(self, segment: Segment, start: int, end: int) -> Iterator[Entry]:
        settings, meta, base, published_ms = self.group.settings, segment.decoded(), segment.base, segment.published_ms
        partitions = meta.partition if self.watched & COLUMN_PARTITION else None
        priorities = meta.priority if settings.prioritized else None
        queue_due_ms = published_ms + settings.delay_ms
        debounced_ms = published_ms + settings.debounce_ms
        queue_expires_ms = 0 if settings.ttl_ms is None else published_ms + settings.ttl_ms
        condition, left = settings.filter, self.budget.left
        self.walked_to = end
        try:
            for offset in range(start, end):
                if left <= 0:
                    self.walked_to = offset
                    return
                left -= MESSAGE_WORK
                index = offset - base
                if condition is not None:
                    left -= condition.work_at(meta, index)
                    if not condition.matches_at(meta, index):
                        continue
                partition = (partitions[index] or "") if partitions is not None else ""
                due_ms = queue_due_ms if meta.delay_ms is None else queue_due_ms + meta.delay_ms[index]
                if meta.not_before_ms is not None:
                    due_ms = max(due_ms, meta.not_before_ms[index])
                if partition and settings.debounce_ms:
                    due_ms = max(due_ms, debounced_ms)
                expires_ms = queue_expires_ms
                ttl_ms = None if meta.ttl_ms is None else meta.ttl_ms[index]
                if ttl_ms is not None:
                    expires_ms = min(expires_ms, published_ms + ttl_ms) if expires_ms else published_ms + ttl_ms
                priority = min(priorities[index], settings.priority_max) if priorities is not None else 0
                yield Entry(offset, offset + 1, 0, due_ms, expires_ms, priority, partition)
        finally:  # also where the caller needs no more
            self.budget.left = left
