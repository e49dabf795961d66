"""What happened to messages: who had them, when, and how each attempt ended; read from `$events`.

One pass over `$events` answers for any number of messages; it is bounded, and never sees a payload of theirs. Among
several nodes each has written into a queue of its own (`events.py`): all of them are looked through, those of other
nodes as far as they are stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.api.inspect import HistoryEntry
from penstock.batch import EncodedBatch, decode
from penstock.model.errors import OffsetGone
from penstock.model.events import decode_delivery
from penstock.node.catalog import Queue
from penstock.node.cluster.ownership import Ownership
from penstock.node.consume.streams import Streams
from penstock.node.lanes import LaneSet
from penstock.node.observe.events import EventWriter
from penstock.store.contract import Log

EVENTS_AT_ONCE: Final = 1_000
EVENTS_SCANNED_MAX: Final = 1_000_000
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
        found: list[tuple[MessageKey, HistoryEntry]] = []
        await self._events.arrived()
        queues = self._events.queues()
        for queue in queues:
            async for payload in self._payloads(queue, since_ms):
                found += _entries(payload, offsets)
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
            if not payloads:
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
            messages = decode(EncodedBatch(row.count, row.meta, row.body))
            payloads += [message.payload for message in messages[max(0, start - row.base) :]]
            start = row.end
        return payloads, start


def _entries(payload: bytes, offsets: dict[tuple[int, int], list[int]]) -> list[tuple[MessageKey, HistoryEntry]]:
    delivery = decode_delivery(payload)
    place = (delivery.queue_id, delivery.lane)
    return [
        (
            (*place, offset),
            HistoryEntry(delivery.group, event.kind, event.at_ms, event.consumer, event.attempt, event.detail),
        )
        for offset in offsets.get(place, ())
        for event in delivery.events
        if any(start <= offset < end for start, end in event.ranges)
    ]
