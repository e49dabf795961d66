"""What happened to messages: who had them, when, and how each attempt ended; read from `$events`.

One pass over `$events` answers for any number of messages; it is bounded, and never sees a payload of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from penstock.core.events import Kind, decode_delivery
from penstock.errors import OffsetGone
from penstock.node.streams import read_offsets

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

EVENTS_AT_ONCE = 1_000
EVENTS_SCANNED_MAX = 1_000_000

Place = tuple[int, int, int]
"""(queue id, lane as users name it, offset)"""


class HistoryEntry(msgspec.Struct, frozen=True):
    """One thing that happened to a message under one group."""

    group: str
    kind: Kind
    at_ms: int
    consumer: str
    attempt: int
    detail: str


async def history(node: Node, events: Queue, queue: Queue, lane: int, offset: int) -> list[HistoryEntry]:
    """The events of one offset by rising time, as far back as `$events` is kept."""
    rows = await node.lanes.store_of(lane).heads(lane, offset, 1, 1)
    published_ms = rows[0].published_ms if rows and rows[0].base <= offset else 0
    place = (queue.id, queue.index_of(lane), offset)
    return [entry for _, entry in await histories(node, events, [place], published_ms)]


async def histories(
    node: Node, events: Queue, places: Iterable[Place], since_ms: int
) -> list[tuple[Place, HistoryEntry]]:
    """The events of several messages, none published before `since_ms`, in the order in which they were written."""
    offsets: dict[tuple[int, int], list[int]] = {}
    for queue_id, index, offset in places:
        offsets.setdefault((queue_id, index), []).append(offset)
    found: list[tuple[Place, HistoryEntry]] = []
    lane_id = events.lanes[0]
    start = await node.store.find_time(lane_id, since_ms)
    scanned = 0
    while start is not None and scanned < EVENTS_SCANNED_MAX:
        try:
            page = await read_offsets(node, events, lane_id, start, EVENTS_AT_ONCE)
        except OffsetGone:  # retention came in between: go on with what is left
            start = await node.lanes.run(lane_id, lambda lane: lane.first)
            continue
        if not page.messages:
            break
        for received in page.messages:
            found += _entries(received.payload, offsets)
        scanned += len(page.messages)
        start = page.next_offset
    return found


def _entries(payload: bytes, offsets: dict[tuple[int, int], list[int]]) -> list[tuple[Place, HistoryEntry]]:
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
