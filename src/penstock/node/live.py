"""Live delivery events: `$events` followed from its end, for whoever watches. Nothing is kept for a slow watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.core.events import Delivery, decode_delivery
from penstock.errors import OffsetGone
from penstock.node.streams import read_offsets

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

EVENTS_AT_ONCE = 500


async def follow(
    node: Node,
    events: Queue,
    namespace: str,
    queue: str | None,
    group: str | None,
    after: int | None,
    pause_s: float,
) -> AsyncIterator[list[tuple[int, Delivery]]]:
    """Events of a namespace (and queue, and group) as they are written, some at a time; none after a pause."""
    lane_id = events.lanes[0]
    offset = await node.lanes.run(lane_id, lambda lane: lane.visible_end)
    offset = offset if after is None else min(after + 1, offset)
    while not node.closed and not node.draining:
        change = node.polls.listen(events)  # before looking: what comes in between is not missed
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
        finally:
            node.polls.unlisten(events, change)
        offset = page.next_offset
        deliveries = [(received.offset, decode_delivery(received.payload)) for received in page.messages]
        chosen = [
            (place, delivery)
            for place, delivery in deliveries
            if delivery.namespace == namespace and queue in (None, delivery.queue) and group in (None, delivery.group)
        ]
        if chosen:
            yield chosen
