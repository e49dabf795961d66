"""Scans: a lane's log by offset, batches as they are stored, for bulk readers. No group and no lease.

A scan takes what the cache has and reads the rest past it: what consumers who keep up are served from stays. What it
reads is pinned while it does, and one answer is bounded. How fast it may go on is for `node/consume/scan_limit.py` to
say; what the batches hold is not looked at here, but for the metadata where there is a condition on it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, NamedTuple

import msgspec

from penstock.api.results import DamagedRange, Scan, ScanSlice, ScanState
from penstock.batch import decode_meta, is_intact, is_meta_intact
from penstock.core.filters import Filter
from penstock.core.group.entries import union
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.core.log import DAMAGED
from penstock.model.errors import InvalidBatch, NotFound, StoreCorrupt
from penstock.model.work import SLICE_WORK
from penstock.node.cache import BatchCache
from penstock.node.catalog import Catalog, Group, Queue
from penstock.node.consume.extents import lane_from
from penstock.node.consume.scan_limit import ScanLimit
from penstock.node.lanes import LaneSet
from penstock.node.observe.damage import Damage

SCAN_BYTES: Final = 8 * 1024 * 1024
SCAN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one answer, decompressed or not, unless a single batch is larger."""
SLICES_MAX: Final = 16_384
"""Batches of one answer: small ones cost more than their bytes."""
READ_BYTES: Final = 2 * 1024 * 1024
"""Read from the store at a time: the loop has a pause in between."""
STEP_WORK: Final = SLICE_WORK // 10
"""What is done for a condition between two looks at the clock."""
STEP_SECONDS: Final = 0.0005
"""Roughly how long a scan holds the loop before others have a turn."""


class Wanted(NamedTuple):
    """What a scan gives of each message."""

    payload: bool = True
    metadata: bool = True
    condition: Filter | None = None
    group: Group | None = None


class _Stored(msgspec.Struct, frozen=True, gc=False):
    """A batch on its way into a slice; without a body where none is wanted."""

    base: int
    count: int
    published_ms: int
    meta: bytes
    body: bytes | None = None
    is_intact: bool = False
    """Known to be."""

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def size(self) -> int:
        return len(self.meta) + len(self.body or b"")


@dataclass(eq=False, repr=False)
class Scans:
    """Reads lanes past the cache, no faster than the limit lets it."""

    _catalog: Catalog
    _lanes: LaneSet
    _cache: BatchCache
    _limit: ScanLimit
    _damage: Damage

    async def scan(self, queue: Queue, lane_id: int, start: int, end: int, wanted: Wanted, bytes_most: int) -> Scan:
        """[start, end) of a lane, or the first part of it that makes one answer."""
        async with self._limit.place():
            lane = await lane_from(self._lanes, queue, lane_id, start)
            stop = min(end, lane.visible_end)
            first, visible_end = lane.first, lane.visible_end
            slices: list[ScanSlice] = []
            damaged: list[tuple[int, int]] = []
            if start < stop:
                try:
                    with lane.pinned(start):
                        slices, damaged = await self._slices(
                            lane, start, stop, wanted, self._limit.bytes_most(bytes_most)
                        )
                except InvalidBatch as error:
                    raise StoreCorrupt(f"queue {queue.name!r}, lane {queue.index_of(lane_id)}: {error}") from error
            next_offset = slices[-1].end if slices else start
            if wanted.group is not None:
                began = perf_counter()
                slices = _with_states(slices, _states(lane, wanted.group, start, next_offset))
                await self._limit.used(perf_counter() - began)
        index = queue.index_of(lane_id)
        gaps = [DamagedRange(index, *gap) for gap in union(damaged)]
        return Scan(queue.name, queue.id, index, first, visible_end, next_offset, slices, gaps)

    async def _slices(
        self, lane: Lane, start: int, stop: int, wanted: Wanted, bytes_most: int
    ) -> tuple[list[ScanSlice], list[tuple[int, int]]]:
        """Consecutive slices from `start` on, until there is enough; which of them are damaged and give nothing."""
        slices: list[ScanSlice] = []
        damaged: list[tuple[int, int]] = []
        steps = _Steps(self._limit)
        offset, size, unfolded, visible_end = start, 0, 0, lane.visible_end
        while offset < stop and len(slices) < SLICES_MAX and (size < bytes_most or not slices):
            room = max(1, min(READ_BYTES, bytes_most - size))
            batches = await self._batches(lane, offset, stop, room, wanted.payload)
            if not batches or not batches[0].base <= offset < batches[0].end:
                if lane.id not in self._catalog.by_lane:
                    raise NotFound("the queue was deleted while it was scanned")
                self._lanes.check_stored(lane, offset + 1, visible_end)
                raise StoreCorrupt(f"offset {offset} of lane {lane.id} should be in the store, but is not")
            steps.begin()
            for batch in batches:
                if batch.base > offset:
                    self._lanes.check_stored(lane, batch.base, visible_end)
                    raise StoreCorrupt(f"offsets {offset} to {batch.base - 1} of lane {lane.id} should be in the store")
                part = _slice(batch, offset, min(stop, batch.end), wanted)
                if not self._is_whole(lane, batch):
                    damaged.append((part.offset, part.end))
                    part = msgspec.structs.replace(part, rows=b"", meta=None, body=None)
                elif wanted.condition is not None:
                    part = await _chosen(steps, part, batch.meta, wanted.condition)
                unfolded += part.unfolded
                if unfolded > SCAN_BYTES_MAX and slices:
                    stop = offset
                    break
                slices.append(part)
                offset = part.end
                # What a condition passed over counts too: it was read, and an answer must come in bounded time.
                size += part.size if wanted.condition is None else batch.size
                steps.read(part.size)
                if len(slices) == SLICES_MAX or offset >= stop or size >= bytes_most:
                    break
                await steps.may_end()
            await steps.end()
        return slices, damaged

    def _is_whole(self, lane: Lane, batch: _Stored) -> bool:
        """Whether all that was read of a batch can be given. Damage is told."""
        if batch.is_intact:
            return True
        if not is_meta_intact(batch.meta, batch.count):
            self._damage.found(lane.id, batch.base, batch.end, "meta")
            return False
        if batch.body is not None and not is_intact(batch.body):
            self._damage.found(lane.id, batch.base, batch.end, "body")
            return False
        return True

    # Batches from memory and from the store ---------------------------------------------------------------

    async def _batches(self, lane: Lane, offset: int, stop: int, bytes_most: int, payload: bool) -> Sequence[_Stored]:
        """Some batches from an offset on: those in memory, or else a read's worth from the store."""
        held = list(self._in_memory(lane, offset, stop, bytes_most, payload))
        if held:
            return held
        store = self._lanes.store_of(lane.id)
        if not payload:
            heads = await store.heads(lane.id, offset, SLICES_MAX, bytes_most)
            return [_Stored(h.base, h.count, h.published_ms, h.meta) for h in heads if h.base < stop]
        rows = await store.read(lane.id, offset, stop, bytes_most)
        return [_Stored(r.base, r.count, r.published_ms, r.meta, r.body, r.is_intact) for r in rows]

    def _in_memory(self, lane: Lane, offset: int, stop: int, bytes_most: int, payload: bool) -> Iterator[_Stored]:
        """Looked at without being used: what a scan passes does not count as wanted."""
        size = 0
        while offset < stop and size < bytes_most:
            segment = lane.log.look(offset)
            if segment is None:
                return
            place = (segment.base, segment.end - segment.base, segment.published_ms)
            if payload:
                batch = self._cache.look(lane.id, segment.base)
                if batch is None:
                    return
                encoded = batch.reader.batch
                yield _Stored(*place, encoded.meta, encoded.body, batch.reader.is_checked)
                size += encoded.size
            else:
                yield _Stored(*place, segment.meta, is_intact=not segment.columns & DAMAGED)
                size += len(segment.meta)
            offset = segment.end


class _Steps:
    """Work that is done a little at a time, with a rest after each step as long as the limit says."""

    def __init__(self, limit: ScanLimit) -> None:
        self._limit = limit
        self._began = 0.0
        self._size = 0

    def begin(self) -> None:
        self._began = perf_counter()

    def read(self, size: int) -> None:
        """So much more is to be sent."""
        self._size += size

    async def may_end(self) -> None:
        """Rest if the step has been long enough."""
        if perf_counter() - self._began >= STEP_SECONDS:
            await self.end()

    async def end(self) -> None:
        await self._limit.used(perf_counter() - self._began, self._size)
        self._began, self._size = perf_counter(), 0


def _slice(batch: _Stored, offset: int, end: int, wanted: Wanted) -> ScanSlice:
    return ScanSlice(
        batch.base,
        batch.count,
        batch.published_ms,
        offset - batch.base,
        end - batch.base,
        batch.meta if wanted.metadata else None,
        batch.body,
    )


async def _chosen(steps: _Steps, part: ScanSlice, meta: bytes, condition: Filter) -> ScanSlice:
    """The slice with the places that match the condition, a few at a time."""
    try:
        columns = decode_meta(meta, part.count)
    except InvalidBatch as error:
        raise InvalidBatch(f"the metadata of offsets {part.base} to {part.base + part.count - 1}: {error}") from error
    places: list[int] = []
    low = part.start
    while low < part.stop:
        high = condition.reach(columns, low, part.stop, STEP_WORK)
        places += condition.select(columns, range(low, high))
        low = high
        await steps.may_end()
    if len(places) == part.stop - part.start:
        return part
    rows = struct.pack(f"<{len(places)}I", *places)
    if not places:
        return msgspec.structs.replace(part, rows=rows, meta=None, body=None)
    return msgspec.structs.replace(part, rows=rows)


# What a group makes of it --------------------------------------------------------------------------------


def _states(lane: Lane, group: Group, start: int, end: int) -> list[ScanState]:
    """What of [start, end) a group is not done with, by rising offset."""
    state = lane.groups.get(group.id)
    if isinstance(state, StreamGroup):
        low = max(start, state.committed)
        return [ScanState(low, end, "ready", 0)] if low < end else []
    if not isinstance(state, WorkGroup):
        return []
    reasons = {row.start: row.reason for row in state.dead.overlapping(start, end)}
    return [
        ScanState(low, high, name, attempts, reasons[low] if name == "dead" else None)
        for low, high, name, attempts in state.states(start, end)
    ]


def _with_states(slices: Iterable[ScanSlice], states: Sequence[ScanState]) -> list[ScanSlice]:
    """Each slice with its part of the states; both rise."""
    done = 0
    found: list[ScanSlice] = []
    for part in slices:
        own: list[ScanState] = []
        while done < len(states) and states[done].end <= part.offset:
            done += 1
        for state in states[done:]:
            if state.start >= part.end:
                break
            low, high = max(state.start, part.offset), min(state.end, part.end)
            own.append(ScanState(low, high, state.state, state.attempts, state.reason))
        found.append(msgspec.structs.replace(part, states=own))
    return found
