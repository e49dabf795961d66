"""What happened to messages: who had them, when, and how each attempt ended; read from `$events`, or followed live.

One pass over `$events` answers for any number of messages; it is bounded, and never sees a payload of theirs. Among
several nodes each has written into a queue of its own (`events.py`): all of them are looked through, those of other
nodes as far as they are stored. Live views follow the queue that this node writes; nothing is kept for a slow one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.api.inspect import HistoryEntry
from penstock.api.results import StreamRead
from penstock.api.slices import others_first
from penstock.batch import EncodedBatch, Reader
from penstock.model.errors import NotOwner, OffsetGone
from penstock.model.events import Delivery, decode_delivery
from penstock.model.work import MESSAGE_WORK, Budget
from penstock.node.catalog import Catalog, Queue
from penstock.node.cluster.ownership import Ownership
from penstock.node.consume.streams import Streams
from penstock.node.consume.waiters import Waiters
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.events import EventWriter
from penstock.store.contract import Log

EVENTS_AT_ONCE: Final = 1_000
LIVE_AT_ONCE: Final = 500
EVENTS_SCANNED_MAX: Final = 1_000_000
MOVING_S: Final = 0.2
READ_BYTES: Final = 2 * 1024 * 1024

MessageKey = tuple[int, int, int]
"""(queue id, lane as users name it, offset)"""


@dataclass(eq=False, repr=False)
class Histories:
    """Reads `$events`."""

    _events: EventWriter
    _lanes: LaneSet
    _store: Log
    _ownership: Ownership
    _streams: Streams

    async def of_message(self, queue: Queue, lane: int, offset: int) -> list[HistoryEntry]:
        """The events of one offset by rising time, as far back as `$events` is kept."""
        rows = await self._lanes.store_of(lane).heads(lane, offset, 1, 1)
        published_ms = rows[0].published_ms if rows and rows[0].base <= offset else 0
        key = (queue.id, queue.index_of(lane), offset)
        return [entry for _, entry in await self.of_messages([key], published_ms)]

    async def of_messages(self, keys: Iterable[MessageKey], since_ms: int) -> list[tuple[MessageKey, HistoryEntry]]:
        """The events of several messages, none published before `since_ms`, in the order in which they were written."""
        offsets: dict[tuple[int, int], list[int]] = {}
        for queue_id, index, offset in keys:
            offsets.setdefault((queue_id, index), []).append(offset)
        for chosen in offsets.values():
            chosen.sort()
        found: list[tuple[MessageKey, HistoryEntry]] = []
        await self._events.arrived()
        queues, budget = self._events.queues(), Budget()
        for queue in queues:
            async for payload in self._payloads(queue, since_ms):
                delivery = decode_delivery(payload)
                if budget.spend(MESSAGE_WORK * sum([len(event.ranges) for event in delivery.events])):
                    budget.renew()
                    await others_first()
                found += _entries(delivery, offsets)
        if len(queues) > 1:
            found.sort(key=lambda item: item[1].at_ms)
        return found

    async def _payloads(self, events: Queue, since_ms: int) -> AsyncIterator[bytes]:
        """What was written into one queue of events from a time on, up to a limit."""
        lane_id = events.lanes[0]
        start = await self._store.find_time(lane_id, since_ms)
        scanned = 0
        while start is not None and scanned < EVENTS_SCANNED_MAX:
            try:
                payloads, following = await self._page(events, lane_id, start)
            except OffsetGone:  # retention came in between: go on with what is left
                start = await self._lanes.run(lane_id, lambda lane: lane.first)
                continue
            if following == start:
                return
            for payload in payloads:
                yield payload
            scanned += len(payloads)
            start = following

    async def _page(self, events: Queue, lane_id: int, start: int) -> tuple[list[bytes], int]:
        """Some payloads from an offset on, and where to go on."""
        if self._ownership.owns(events.slot):
            page = await self._streams.read_offsets(events, lane_id, start, EVENTS_AT_ONCE)
            return [received.payload for received in page.messages], page.next_offset
        payloads: list[bytes] = []
        for row in await self._store.read(lane_id, start, start + EVENTS_AT_ONCE, READ_BYTES):
            reader = Reader(EncodedBatch(row.count, row.meta, row.body), is_checked=row.is_intact)
            if reader.is_intact():
                payloads += reader.payloads(max(0, start - row.base), row.count)
            start = row.end
        return payloads, start


def _entries(delivery: Delivery, offsets: dict[tuple[int, int], list[int]]) -> list[tuple[MessageKey, HistoryEntry]]:
    place = (delivery.queue_id, delivery.lane)
    wanted = offsets.get(place)
    if wanted is None:
        return []
    return [
        (
            (*place, offset),
            HistoryEntry(delivery.group, event.kind, event.at_ms, event.consumer, event.attempt, event.detail),
        )
        for event in delivery.events
        for offset in _inside(event.ranges, wanted)
    ]


def _inside(ranges: Iterable[tuple[int, int]], wanted: Sequence[int]) -> list[int]:
    """Those of rising offsets that are in any of the ranges."""
    found = {at for start, end in ranges for at in wanted[bisect_left(wanted, start) : bisect_left(wanted, end)]}
    return sorted(found)


class Watch(NamedTuple):
    """Which events; None means of any queue or group."""

    namespace: str
    queue: str | None
    group: str | None

    def wants(self, delivery: Delivery) -> bool:
        return (
            delivery.namespace == self.namespace
            and self.queue in (None, delivery.queue)
            and self.group in (None, delivery.group)
        )


@dataclass(eq=False, repr=False)
class EventFeed:
    """Follows the queue that this node writes its events to."""

    _events: EventWriter
    _catalog: Catalog
    _lanes: LaneSet
    _waiters: Waiters
    _streams: Streams
    _lifecycle: Lifecycle

    async def follow(
        self, watch: Watch, after: int | None, pause_s: float
    ) -> AsyncIterator[list[tuple[int, Delivery]]]:
        """Events as this node writes them, some at a time; an empty list after a pause without any."""
        offset = -1
        queue: Queue | None = None
        while not self._lifecycle.closed and not self._lifecycle.draining:
            written = self._written()
            if written is None:  # between two queues: this node has handed its own on
                await asyncio.sleep(MOVING_S)
                yield []
                continue
            if written is not queue:
                queue = written
                end = await self._lanes.run(queue.lanes[0], lambda lane: lane.visible_end)
                offset, after = end if after is None else min(after + 1, end), None
            try:
                page = await self._next(queue, offset, pause_s)
            except OffsetGone:  # a watcher that was away for long goes on with what is left
                offset = await self._lanes.run(queue.lanes[0], lambda lane: lane.first)
                continue
            except NotOwner:
                continue
            if page is None:
                yield []
                continue
            offset = page.next_offset
            chosen = _chosen(page, watch)
            if chosen:
                yield chosen

    def _written(self) -> Queue | None:
        return None if self._events.lane is None else self._catalog.by_lane.get(self._events.lane)

    async def _next(self, queue: Queue, offset: int, pause_s: float) -> StreamRead | None:
        """Events from an offset on, or from the next change; None where there is none in time."""
        change = self._waiters.listen(queue)  # before looking: what comes in between is not missed
        try:
            page = await self._streams.read_offsets(queue, queue.lanes[0], offset, LIVE_AT_ONCE)
            if page or page.damaged:
                return page
            await asyncio.wait([change], timeout=pause_s)
            return page if change.done() else None
        finally:
            self._waiters.unlisten(queue, change)


def _chosen(page: StreamRead, watch: Watch) -> list[tuple[int, Delivery]]:
    deliveries = ((received.offset, decode_delivery(received.payload)) for received in page.messages)
    return [(offset, delivery) for offset, delivery in deliveries if watch.wants(delivery)]
