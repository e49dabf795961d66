"""Live delivery events: `$events` followed from its end, for live views. Nothing is kept for a slow watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.api.results import StreamRead
from penstock.model.errors import NotOwner, OffsetGone
from penstock.model.events import Delivery, decode_delivery
from penstock.node.catalog import Catalog, Queue
from penstock.node.consume.streams import Streams
from penstock.node.consume.waiters import Waiters
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.events import EventWriter

EVENTS_AT_ONCE: Final = 500
MOVING_S: Final = 0.2


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
            page = await self._streams.read_offsets(queue, queue.lanes[0], offset, EVENTS_AT_ONCE)
            if page:
                return page
            await asyncio.wait([change], timeout=pause_s)
            return page if change.done() else None
        finally:
            self._waiters.unlisten(queue, change)


def _chosen(page: StreamRead, watch: Watch) -> list[tuple[int, Delivery]]:
    deliveries = ((received.offset, decode_delivery(received.payload)) for received in page.messages)
    return [(offset, delivery) for offset, delivery in deliveries if watch.wants(delivery)]
