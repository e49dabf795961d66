"""The memory engine: the store contract on plain dicts, for ephemeral queues and for the simulation.

It may not know asyncio, threads or files. Rows are frozen and are shared with the caller; every list and dict is
the store's own, so a commit that is changed after `apply` changes nothing here. Nothing of a commit is touched
before all of it was checked, which makes `apply` atomic also when it raises. Next stop: back to the node.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from time import time_ns
from typing import TypeVar

from penstock.api.ticket import Ticket, ticketed
from penstock.model import INTEGER_MAX
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    CheckedBatch,
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
from penstock.store.checking import check_batches
from penstock.store.contract import Capabilities, Enqueueing, check_commit
from penstock.store.memory.coordination import MemoryCoordination

Row = TypeVar("Row")


class MemoryStore(MemoryCoordination):
    """A store that lives as long as its object; `now_ms` is its clock, by which members are judged."""

    capabilities = Capabilities()
    enqueueing: Enqueueing | None = None
    """No application can reach it."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        super().__init__(now_ms or (lambda: time_ns() // 1_000_000))
        self._lanes: dict[int, _Lane] = {}
        self._outbox: dict[int, OutboxRow] = {}
        self._traces = _Traces()

    @ticketed
    def apply(self, commit: Commit) -> Ticket[None]:
        self._check_open()
        check_commit(commit)
        self._check_epochs(commit.epochs)
        for number in commit.lanes_deleted:
            self._lanes.pop(number, None)
        if commit.lanes_deleted:
            gone = set(commit.lanes_deleted)
            self._outbox = {id: row for id, row in self._outbox.items() if row.lane not in gone}
        for change in commit.lanes:
            lane = self._lanes.get(change.lane)
            if lane is None:
                lane = self._lanes[change.lane] = _Lane()
            lane.apply(change)
        self._catalog.apply(commit.catalog, commit.catalog_deleted)
        for number in commit.outbox_deleted:
            self._outbox.pop(number, None)
        for promised in commit.outbox:
            self._outbox[promised.id] = promised
        if commit.traces_expired_ms is not None:
            self._traces.expire(commit.traces_expired_ms)
        for happened in commit.traces:
            self._traces.put(happened)
        return Ticket.done(None)

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        self._check_open()
        return [
            self._lanes[number].image(number, dedup_most) if number in self._lanes else LaneImage(number)
            for number in lanes
        ]

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        self._check_open()
        found: list[BatchRow] = []
        size = 0
        for row in self._batches_after(lane, start):
            size += row.size
            if row.base >= end or start >= end or (found and size > bytes_most):
                break
            found.append(row)
        return found

    async def check(self, lane: int, start: int, bytes_most: int) -> list[CheckedBatch]:
        return check_batches(await self.read(lane, start, INTEGER_MAX, bytes_most))

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        self._check_open()
        found: list[BatchHead] = []
        size = 0
        for row in self._batches_after(lane, start):
            size += len(row.meta)
            if found and (len(found) >= batches_most or size > bytes_most):
                break
            found.append(row.head())
        return found

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        self._check_open()
        known = self._lanes.get(lane)
        if known is None:
            return None
        index = bisect_left(known.bases, time_ms, key=lambda base: known.batches[base].published_ms)
        return known.bases[index] if index < len(known.bases) else None

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        self._check_open()
        known = self._lanes.get(lane)
        return [known.dedup[key] for key in dict.fromkeys(keys) if key in known.dedup] if known else []

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        self._check_open()
        rows = [self._outbox[number] for number in sorted(self._outbox) if number > after]
        return [row for row in rows if slots is None or row.slot in slots][: max(most, 0)]

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        self._check_open()
        return self._traces.find(namespace, trace_id)[: max(most, 0)]

    async def oldest_trace(self) -> int | None:
        self._check_open()
        return self._traces.oldest()

    async def lanes_in_use(self) -> list[int]:
        self._check_open()
        return sorted(number for number, lane in self._lanes.items() if lane.in_use())

    # For the tools ----------------------------------------------------------------------------------------

    async def list_lanes(self, after: int, most: int) -> list[int]:
        self._check_open()
        return sorted(number for number in self._lanes if number > after)[: max(most, 0)]

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        self._check_open()
        known = self._lanes[lane].dedup if lane in self._lanes else {}
        keys = sorted(key for key in known if (after is None or key > after) and known[key].offset >= from_offset)
        return [known[key] for key in keys[: max(most, 0)]]

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        self._check_open()
        return self._traces.behind(after_ms, max(most, 1))

    def _batches_after(self, lane: int, start: int) -> Iterable[BatchRow]:
        """The batches that end after an offset, in order."""
        known = self._lanes.get(lane)
        if known is None:
            return
        bases = known.bases
        index = max(bisect_right(bases, start) - 1, 0)
        if index < len(bases) and known.batches[bases[index]].end <= start:
            index += 1
        for position in range(index, len(bases)):
            yield known.batches[bases[position]]


class _Traces:
    """Trace rows by namespace and id."""

    def __init__(self) -> None:
        self.by_id: dict[tuple[str, str], dict[tuple[int, int], TraceRow]] = {}
        # (time, namespace, trace id, id) of every put: the same row put twice is here twice.
        self.times: list[tuple[int, str, str, int]] = []

    def put(self, row: TraceRow) -> None:
        self.by_id.setdefault((row.namespace, row.trace_id), {})[row.at_ms, row.id] = row
        heappush(self.times, (row.at_ms, row.namespace, row.trace_id, row.id))

    def expire(self, time_ms: int) -> None:
        while self.times and self.times[0][0] <= time_ms:
            at_ms, namespace, trace_id, id = heappop(self.times)
            rows = self.by_id.get((namespace, trace_id), {})
            rows.pop((at_ms, id), None)
            if not rows:
                self.by_id.pop((namespace, trace_id), None)

    def find(self, namespace: str, trace_id: str) -> list[TraceRow]:
        rows = self.by_id.get((namespace, trace_id), {})
        return [rows[key] for key in sorted(rows)]

    def behind(self, time_ms: int, most: int) -> list[TraceRow]:
        """Those behind a time, all of one time together."""
        every = (row for rows in self.by_id.values() for row in rows.values())
        found = sorted((row for row in every if row.at_ms > time_ms), key=lambda row: row.at_ms)
        last_ms = found[:most][-1].at_ms if found else 0
        return [row for row in found if row.at_ms <= last_ms]

    def oldest(self) -> int | None:
        return self.times[0][0] if self.times else None


class _Lane:
    """The rows of one lane. What belongs to a group is kept by group, so that a group goes in one step."""

    def __init__(self) -> None:
        self.first = 0
        self.end = 0
        self.bytes_end = 0
        self.bases: list[int] = []
        self.batches: dict[int, BatchRow] = {}
        self.groups: dict[int, GroupRow] = {}
        self.leases: dict[int, dict[int, LeaseRow]] = {}
        self.waiting: dict[int, dict[int, WaitingRow]] = {}
        self.dead: dict[int, dict[int, DeadRow]] = {}
        self.dedup: dict[bytes, DedupRow] = {}
        # (expiry, key) of every put: may name rows that were replaced since, so an expiry checks the row itself.
        self.expiries: list[tuple[int, bytes]] = []

    def apply(self, change: LaneChange) -> None:
        self.first, self.end, self.bytes_end = change.first, change.end, change.bytes_end
        self._delete(change)
        self._put(change)
        for row in change.batches:
            self._append(row)
        if change.trim_to is not None:
            self._trim(change.trim_to)

    def image(self, number: int, dedup_most: int) -> LaneImage:
        newest = sorted(self.dedup.values(), key=lambda row: (row.expires_ms, row.key))
        return LaneImage(
            lane=number,
            first=self.first,
            end=self.end,
            bytes_end=self.bytes_end,
            groups=[self.groups[group] for group in sorted(self.groups)],
            leases=_in_order(self.leases),
            waiting=_in_order(self.waiting),
            dead=_in_order(self.dead),
            dedup=newest[max(len(newest) - max(dedup_most, 0), 0) :],
            dedup_complete=len(newest) <= dedup_most,
            published_ms=self.batches[self.bases[-1]].published_ms if self.bases else 0,
        )

    def in_use(self) -> bool:
        return any(self.leases.values()) or any(self.waiting.values())

    def _delete(self, change: LaneChange) -> None:
        for group in change.groups_deleted:
            for rows in (self.groups, self.leases, self.waiting, self.dead):
                rows.pop(group, None)
        for group, lease in change.leases_deleted:
            self.leases.get(group, {}).pop(lease, None)
        for group, chunk in change.waiting_deleted:
            self.waiting.get(group, {}).pop(chunk, None)
        for group, start in change.dead_deleted:
            self.dead.get(group, {}).pop(start, None)
        if change.dedup_expired_ms is not None:
            self._expire(change.dedup_expired_ms)

    def _put(self, change: LaneChange) -> None:
        for cursor in change.groups:
            self.groups[cursor.group] = cursor
        for lease in change.leases:
            self.leases.setdefault(lease.group, {})[lease.lease] = lease
        for waiting in change.waiting:
            self.waiting.setdefault(waiting.group, {})[waiting.chunk] = waiting
        for dead in change.dead:
            self.dead.setdefault(dead.group, {})[dead.start] = dead
        for known in change.dedup:
            self.dedup[known.key] = known
            heappush(self.expiries, (known.expires_ms, known.key))

    def _append(self, row: BatchRow) -> None:
        if not self.bases or row.base > self.bases[-1]:
            self.bases.append(row.base)
        elif row.base not in self.batches:
            insort(self.bases, row.base)
        self.batches[row.base] = row

    def _trim(self, offset: int) -> None:
        gone = bisect_left(self.bases, offset)
        if gone and self.batches[self.bases[gone - 1]].end > offset:
            gone -= 1
        for base in self.bases[:gone]:
            del self.batches[base]
        del self.bases[:gone]

    def _expire(self, time_ms: int) -> None:
        while self.expiries and self.expiries[0][0] <= time_ms:
            _, key = heappop(self.expiries)
            row = self.dedup.get(key)
            if row is not None and row.expires_ms <= time_ms:
                del self.dedup[key]


def _in_order(rows: dict[int, dict[int, Row]]) -> list[Row]:
    """By group, then by the row's own key: the order in which every engine returns them."""
    return [rows[group][key] for group in sorted(rows) for key in sorted(rows[group])]
