"""Where the lanes of a queue begin and end, and how far a read of one may go: what a scan is planned from.

Answered from heads of batches, in memory where they are, else with a look or two at the store; no body is read and
nothing is changed. Next stop: `node/consume/scans.py`.
"""

from __future__ import annotations

from typing import Final

from penstock.api.scan import Extent, LanePlace, QueueLanes
from penstock.core.lane import Lane
from penstock.model.errors import OffsetGone, StoreCorrupt
from penstock.model.rows import BatchHead
from penstock.node.catalog import Queue
from penstock.node.lanes import LaneSet

LANES_REMEMBERED_MAX: Final = 10_000
"""Lanes for which the bytes before their first kept batch are remembered."""


class Extents:
    """Measures lanes."""

    def __init__(self, lanes: LaneSet) -> None:
        self._lanes = lanes
        self._bytes_before: dict[int, tuple[int, int]] = {}
        """lane → (its first offset, bytes appended before it)"""

    async def queue_lanes(self, queue: Queue, time_ms: int | None) -> QueueLanes:
        places: list[LanePlace] = []
        for index, lane_id in enumerate(queue.lanes):
            at_time = None if time_ms is None else await self._lanes.offset_at(lane_id, time_ms)
            lane = await self._lanes.run(lane_id, lambda lane: lane)
            first, end = lane.first, lane.visible_end
            size = await self._bytes_held(lane, first, end) if first < end else 0
            places.append(LanePlace(index, first, end, size, None if at_time is None else min(at_time, end)))
        return QueueLanes(queue.name, queue.id, places)

    async def extent(
        self, queue: Queue, lane_id: int, start: int, rows_most: int | None, bytes_most: int | None
    ) -> Extent:
        """How far a read from `start` may go: `rows_most` messages, whole batches of `bytes_most`, one at least."""
        lane = await lane_from(self._lanes, queue, lane_id, start)
        end = lane.visible_end if rows_most is None else min(lane.visible_end, start + rows_most)
        if start >= end:
            return Extent(start, 0, 0)
        with lane.pinned(start):
            if bytes_most is not None:
                end = min(end, await self._end_within(lane, start, end, bytes_most))
            head = await self._head_at(lane, start)
            size = (await self._head_at(lane, end - 1)).bytes_end - head.bytes_end + head.size
            return Extent(end, end - start, size)

    async def _end_within(self, lane: Lane, start: int, end: int, bytes_most: int) -> int:
        """The last end of a batch within `bytes_most`: a binary search, with one look at a batch each."""
        head = await self._head_at(lane, start)
        most = head.bytes_end - head.size + bytes_most
        found, high = head.end, end
        while found < high:
            head = await self._head_at(lane, (found + high) // 2)
            if head.bytes_end <= most:
                found = head.end
            else:
                high = head.base
        return found

    async def _bytes_held(self, lane: Lane, first: int, end: int) -> int:
        """Bytes of the batches that are kept. How many were there before them is remembered until they go too."""
        with lane.pinned(first):
            before = self._bytes_before.get(lane.id)
            if before is None or before[0] != first:
                head = await self._head_at(lane, first)
                if len(self._bytes_before) >= LANES_REMEMBERED_MAX:
                    self._bytes_before.clear()
                before = self._bytes_before[lane.id] = (first, head.bytes_end - head.size)
            return (await self._head_at(lane, end - 1)).bytes_end - before[1]

    async def _head_at(self, lane: Lane, offset: int) -> BatchHead:
        """The head of the batch that holds an offset."""
        segment = lane.log.look(offset)
        if segment is not None:
            count = segment.end - segment.base
            return BatchHead(segment.base, count, segment.published_ms, segment.bytes_end, segment.size, segment.meta)
        visible_end = lane.visible_end
        heads = await self._lanes.store_of(lane.id).heads(lane.id, offset, 1, 1)
        if not heads or not heads[0].base <= offset < heads[0].end:
            self._lanes.check_stored(lane, offset + 1, visible_end)
            raise StoreCorrupt(f"offset {offset} of lane {lane.id} should be in the store, but is not")
        return heads[0]


async def lane_from(lanes: LaneSet, queue: Queue, lane_id: int, start: int) -> Lane:
    """A lane, for a read from `start` on; raises `OffsetGone` where that is not kept any more."""
    lane = await lanes.run(lane_id, lambda lane: lane)
    if start < lane.first:
        index = queue.index_of(lane_id)
        raise OffsetGone(f"offset {start} of queue {queue.name!r} is gone; its lane {index} begins at {lane.first}")
    return lane
