"""Live delivery events: `$events` followed from its end, for whoever watches. Nothing is kept for a slow watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.model.errors import Elsewhere, OffsetGone
from penstock.model.events import Delivery, decode_delivery
from penstock.node.consume.streams import read_offsets

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

EVENTS_AT_ONCE = 500
MOVING_S = 0.2


async def follow(
    node: Node,
    namespace: str,
    queue: str | None,
    group: str | None,
    after: int | None,
    pause_s: float,
) -> AsyncIterator[list[tuple[int, Delivery]]]:
    """Events of a namespace (and queue, and group) as this node writes them, some at a time; none after a pause."""
    offset = lane_id = -1
    events: Queue | None = None
    while not node.closed and not node.draining:
        written = None if node.events.lane is None else node.catalog.by_lane.get(node.events.lane)
        if written is None:  # between two queues, for this node has given its own on
            await asyncio.sleep(MOVING_S)
            yield []
            continue
        if written is not events:
            events, lane_id = written, written.lanes[0]
            offset = await node.lanes.run(lane_id, lambda lane: lane.visible_end)
            offset, after = offset if after is None else min(after + 1, offset), None
        change = node.waiters.listen(events)  # before looking: what comes in between is not missed
        try:
            page = await read_offsets(node, events, lane_id, offset, EVENTS_AT_ONCE)
            if not page:
                await asyncio.wait([change], timeout=pause_s)
                if not change.done():
                    yield []
                continue
        except OffsetGone:  # a watcher that was away for long goes on with what is left
            offset = await node.lanes.run(lane_id, lambda lane: lane.first)
            continue
        except Elsewhere:
            continue
        finally:
            node.waiters.unlisten(events, change)
        offset = page.next_offset
        deliveries = [(received.offset, decode_delivery(received.payload)) for received in page.messages]
        chosen = [
            (place, delivery)
            for place, delivery in deliveries
            if delivery.namespace == namespace and queue in (None, delivery.queue) and group in (None, delivery.group)
        ]
        if chosen:
            yield chosen
