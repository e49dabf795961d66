"""A store as simple as can be: flat lists of rows, filtered. Written from the contract, not from an engine."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from penstock.model.rows import (
    BatchHead,
    BatchRow,
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneChange,
    LaneImage,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
)


class Naive:
    """Each table of a lane is a list of (lane, row)."""

    def __init__(self) -> None:
        self.cursors: dict[int, tuple[int, int, int]] = {}
        self.batches: list[tuple[int, BatchRow]] = []
        self.groups: list[tuple[int, GroupRow]] = []
        self.leases: list[tuple[int, LeaseRow]] = []
        self.waiting: list[tuple[int, WaitingRow]] = []
        self.dead: list[tuple[int, DeadRow]] = []
        self.dedup: list[tuple[int, DedupRow]] = []
        self.declared: list[CatalogRow] = []
        self.promised: list[OutboxRow] = []
        self.happened: list[TraceRow] = []

    def apply(self, commit: Commit) -> None:
        commit = deepcopy(commit)
        for lane in commit.lanes_deleted:
            self.cursors.pop(lane, None)
            for table in (self.batches, self.groups, self.leases, self.waiting, self.dead, self.dedup):
                _drop(table, lambda at, _, gone=lane: at == gone)
            self.promised = [row for row in self.promised if row.lane != lane]
        for change in commit.lanes:
            self._change(change)
        self.declared = [row for row in self.declared if (row.kind, row.id) not in commit.catalog_deleted]
        for declared in commit.catalog:
            self.declared = [row for row in self.declared if (row.kind, row.id) != (declared.kind, declared.id)]
            self.declared.append(declared)
        self.promised = [row for row in self.promised if row.id not in commit.outbox_deleted]
        for promised in commit.outbox:
            self.promised = [row for row in self.promised if row.id != promised.id] + [promised]
        expired = commit.traces_expired_ms
        self.happened = [row for row in self.happened if expired is None or row.at_ms > expired]
        for happened in commit.traces:
            self.happened = [row for row in self.happened if _identity(row) != _identity(happened)] + [happened]

    def _change(self, change: LaneChange) -> None:
        lane = change.lane
        self.cursors[lane] = (change.first, change.end, change.bytes_end)
        for table in (self.groups, self.leases, self.waiting, self.dead):
            _drop(table, lambda at, row: at == lane and row.group in change.groups_deleted)
        _drop(self.leases, lambda at, row: at == lane and (row.group, row.lease) in change.leases_deleted)
        _drop(self.waiting, lambda at, row: at == lane and (row.group, row.chunk) in change.waiting_deleted)
        _drop(self.dead, lambda at, row: at == lane and (row.group, row.start) in change.dead_deleted)
        expired = change.dedup_expired_ms
        _drop(self.dedup, lambda at, row: at == lane and expired is not None and row.expires_ms <= expired)
        _put(self.groups, lane, change.groups, "group")
        _put(self.leases, lane, change.leases, "group", "lease")
        _put(self.waiting, lane, change.waiting, "group", "chunk")
        _put(self.dead, lane, change.dead, "group", "start")
        _put(self.dedup, lane, change.dedup, "key")
        _put(self.batches, lane, change.batches, "base")
        trim_to = change.trim_to
        _drop(self.batches, lambda at, row: at == lane and trim_to is not None and row.end <= trim_to)

    def image(self, lane: int, dedup_most: int) -> LaneImage:
        first, end, bytes_end = self.cursors.get(lane, (0, 0, 0))
        ids = sorted((row for at, row in self.dedup if at == lane), key=lambda row: (row.expires_ms, row.key))
        return LaneImage(
            lane,
            first,
            end,
            bytes_end,
            sorted((row for at, row in self.groups if at == lane), key=lambda row: row.group),
            sorted((row for at, row in self.leases if at == lane), key=lambda row: (row.group, row.lease)),
            sorted((row for at, row in self.waiting if at == lane), key=lambda row: (row.group, row.chunk)),
            sorted((row for at, row in self.dead if at == lane), key=lambda row: (row.group, row.start)),
            ids[-dedup_most:] if dedup_most else [],
            len(ids) <= dedup_most,
            max((row.published_ms for row in self.log(lane)[-1:]), default=0),
        )

    def log(self, lane: int) -> list[BatchRow]:
        return sorted((row for at, row in self.batches if at == lane), key=lambda row: row.base)

    def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        found = [row for row in self.log(lane) if row.base < end and row.end > start and start < end]
        fits = [row for index, row in enumerate(found) if sum(each.size for each in found[: index + 1]) <= bytes_most]
        return fits or found[:1]

    def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        found = [row.head() for row in self.log(lane) if row.end > start]
        sizes = [sum(len(each.meta) for each in found[: index + 1]) for index in range(len(found))]
        fits = [head for head, size in zip(found, sizes, strict=True) if size <= bytes_most][:batches_most]
        return fits or found[:1]

    def find_time(self, lane: int, time_ms: int) -> int | None:
        return min((row.base for row in self.log(lane) if row.published_ms >= time_ms), default=None)

    def find_dedup(self, lane: int, keys: list[bytes]) -> list[DedupRow]:
        return [row for at, row in self.dedup if at == lane and row.key in keys]

    def catalog(self) -> list[CatalogRow]:
        return sorted(self.declared, key=lambda row: (row.id, row.kind))

    def outbox(self, after: int, most: int) -> list[OutboxRow]:
        return sorted((row for row in self.promised if row.id > after), key=lambda row: row.id)[:most]

    def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        found = [row for row in self.happened if _identity(row)[:2] == (namespace, trace_id)]
        return sorted(found, key=_identity)[:most]

    def oldest_trace(self) -> int | None:
        return min((row.at_ms for row in self.happened), default=None)

    def lanes_in_use(self) -> list[int]:
        return sorted({lane for lane, _ in self.leases} | {lane for lane, _ in self.waiting})


def _identity(row: TraceRow) -> tuple[str, str, int, int]:
    return row.namespace, row.trace_id, row.at_ms, row.id


def _drop(table: list[tuple[int, Any]], goes: Any) -> None:
    table[:] = [(at, row) for at, row in table if not goes(at, row)]


def _put(table: list[tuple[int, Any]], lane: int, rows: list[Any], *key: str) -> None:
    for new in rows:
        _drop(table, lambda at, old, new=new: at == lane and all(getattr(old, k) == getattr(new, k) for k in key))
        table.append((lane, new))
