"""The overlay: commits in the log that the tables, its index, do not have yet.

It keeps the last put of each row and the widest delete: a row that is put and deleted between two writes of the index
never reaches it, nor does a batch that is trimmed. Whatever the index holds is older than the overlay, so deletes go
there first and puts behind them. It may not know files, threads or SQL. Next stop: `writes.py`, which writes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.model.rows import CatalogRow, DeadRow, DedupRow, GroupRow, LeaseRow, OutboxRow, TraceRow, WaitingRow
from penstock.store.sqlite.log.log import START, Entry, LogPosition
from penstock.store.sqlite.log.records import LoggedLane


class BatchPointer(NamedTuple):
    """A batch without its body, and where the body is: the values of its row in the index."""

    lane: int
    base: int
    messages: int
    published_ms: int
    bytes_end: int
    size: int
    meta: bytes
    segment: int
    """0 where the body is in the row itself, as those of older files are."""
    position: int

    @property
    def end(self) -> int:
        return self.base + self.messages


@dataclass(slots=True, eq=False)
class LaneOverlay:
    """What commits changed in one lane. None in place of a row means that it is deleted."""

    deleted: bool = False
    """Everything that the index holds of the lane is deleted first."""
    cursor: tuple[int, int, int] | None = None
    batches: dict[int, BatchPointer] = field(default_factory=dict)
    _order: deque[BatchPointer] = field(default_factory=deque)
    """The batches by rising base."""
    trim_to: int | None = None
    groups_deleted: set[int] = field(default_factory=set)
    groups: dict[int, GroupRow] = field(default_factory=dict)
    leases: dict[tuple[int, int], LeaseRow | None] = field(default_factory=dict)
    waiting: dict[tuple[int, int], WaitingRow | None] = field(default_factory=dict)
    dead: dict[tuple[int, int], DeadRow | None] = field(default_factory=dict)
    dedup: dict[bytes, DedupRow] = field(default_factory=dict)
    dedup_expired_ms: int | None = None

    def fold(self, change: LoggedLane, segment: int, position: int) -> int:
        """Fold in a change whose bodies begin at a position of the log; returns where they end."""
        self.cursor = (change.first, change.end, change.bytes_end)
        for group in change.groups_deleted:
            self._delete_group(group)
        for key in change.leases_deleted:
            self.leases[key] = None
        for key in change.waiting_deleted:
            self.waiting[key] = None
        for key in change.dead_deleted:
            self.dead[key] = None
        if change.dedup_expired_ms is not None:
            self._expire(change.dedup_expired_ms)
        for cursor in change.groups:
            self.groups[cursor.group] = cursor
        for lease in change.leases:
            self.leases[lease.group, lease.lease] = lease
        for waiting in change.waiting:
            self.waiting[waiting.group, waiting.chunk] = waiting
        for dead in change.dead:
            self.dead[dead.group, dead.start] = dead
        for known in change.dedup:
            self.dedup[known.key] = known
        for row in change.batches:
            size = len(row.meta) + row.body_bytes
            place = (change.lane, row.base, row.count, row.published_ms, row.bytes_end, size, row.meta)
            self._append(BatchPointer(*place, segment, position))
            position += row.body_bytes
        if change.trim_to is not None:
            self._trim(change.trim_to)
        return position

    def _append(self, row: BatchPointer) -> None:
        in_order = not self._order or self._order[-1].base < row.base
        self.batches[row.base] = row
        if in_order:
            self._order.append(row)
        else:
            self._order = deque(sorted(self.batches.values(), key=lambda row: row.base))

    @property
    def deletes_ids(self) -> bool:
        return self.deleted or self.dedup_expired_ms is not None

    @property
    def first_end(self) -> int:
        """Where the lowest batch ends; beyond every offset where there is none."""
        return self._order[0].end if self._order else 1 << 63

    def between(self, start: int, end: int) -> list[BatchPointer]:
        """The batches that overlap [start, end), in order."""
        found = []
        for row in reversed(self._order):
            if row.end <= start:
                break
            if row.base < end:
                found.append(row)
        return found[::-1]

    def _delete_group(self, group: int) -> None:
        self.groups_deleted.add(group)
        self.groups.pop(group, None)
        tables: tuple[dict[tuple[int, int], Any], ...] = (self.leases, self.waiting, self.dead)
        for rows in tables:
            for key in [key for key in rows if key[0] == group]:
                del rows[key]

    def _expire(self, time_ms: int) -> None:
        self.dedup_expired_ms = _later(time_ms, self.dedup_expired_ms)
        for key in [key for key, row in self.dedup.items() if row.expires_ms <= time_ms]:
            del self.dedup[key]

    def _trim(self, offset: int) -> None:
        self.trim_to = _later(offset, self.trim_to)
        order = self._order
        while order and order[0].end <= offset:
            row = order.popleft()
            del self.batches[row.base]


class Overlay:
    """What one or more consecutive commits add up to."""

    def __init__(self) -> None:
        self.lanes: dict[int, LaneOverlay] = {}
        self.catalog: dict[tuple[str, int], CatalogRow | None] = {}
        self.outbox: dict[int, OutboxRow | None] = {}
        self.traces: dict[tuple[str, str, int, int], TraceRow] = {}
        self.traces_expired_ms: int | None = None
        self.epochs: dict[int, int] = {}
        """Epochs of commits that were found in the log: their writers held them."""
        self.rows = 0
        """Rows that were put and deleted, counted each time."""
        self.rows_bytes = 0
        self.log_bytes = 0
        self.end: LogPosition = START
        """Behind the last commit that is in here."""

    def __bool__(self) -> bool:
        return self.end is not START

    def fold(self, entry: Entry) -> None:
        """Fold in the next commit of the log."""
        commit, position = entry.commit, entry.bodies_at
        for lane in commit.lanes_deleted:
            self.lanes[lane] = LaneOverlay(deleted=True)
            for id in [id for id, row in self.outbox.items() if row is not None and row.lane == lane]:
                self.outbox[id] = None
        for change in commit.lanes:
            overlay = self.lanes.get(change.lane)
            if overlay is None:
                overlay = self.lanes[change.lane] = LaneOverlay()
            position = overlay.fold(change, entry.segment, position)
            self.rows += 1 + len(change.batches) + len(change.groups) + len(change.leases) + len(change.leases_deleted)
            self.rows += len(change.waiting) + len(change.waiting_deleted) + len(change.dead) + len(change.dedup)
        for key in commit.catalog_deleted:
            self.catalog[key] = None
        for declared in commit.catalog:
            self.catalog[declared.kind, declared.id] = declared
        for number in commit.outbox_deleted:
            self.outbox[number] = None
        for promised in commit.outbox:
            self.outbox[promised.id] = promised
        if commit.traces_expired_ms is not None:
            self._expire_traces(commit.traces_expired_ms)
        for row in commit.traces:
            self.traces[row.namespace, row.trace_id, row.at_ms, row.id] = row
        self.rows += len(commit.catalog) + len(commit.outbox) + len(commit.traces)
        self.rows_bytes += entry.rows_bytes
        self.log_bytes += entry.rows_bytes + position - entry.bodies_at
        self.end = entry.end

    def changes(self, lanes: Iterable[int]) -> bool:
        """Whether one of these lanes differs from the index."""
        mine = self.lanes
        return any(lane in mine for lane in lanes)

    def _expire_traces(self, time_ms: int) -> None:
        self.traces_expired_ms = _later(time_ms, self.traces_expired_ms)
        for key in [key for key in self.traces if key[2] <= time_ms]:
            del self.traces[key]


def _later(new: int, old: int | None) -> int:
    return new if old is None else max(new, old)
