"""What happened to one message: who had it, when, and how each attempt ended; read from `$events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.events import Kind, decode_delivery
from penstock.node.streams import read_offsets

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

EVENTS_AT_ONCE = 1_000
EVENTS_SCANNED_MAX = 1_000_000


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
    found: list[HistoryEntry] = []
    start = await node.store.find_time(events.lanes[0], published_ms)
    scanned = 0
    while start is not None and scanned < EVENTS_SCANNED_MAX:
        page = await read_offsets(node, events, events.lanes[0], start, EVENTS_AT_ONCE)
        if not page.messages:
            break
        for received in page.messages:
            found += _entries(received.payload, queue, lane, offset)
        scanned += len(page.messages)
        start = page.next_offset
    return found


def _entries(payload: bytes, queue: Queue, lane: int, offset: int) -> list[HistoryEntry]:
    delivery = decode_delivery(payload)
    if delivery.lane != lane or delivery.queue != queue.name or delivery.namespace != queue.namespace:
        return []
    return [
        HistoryEntry(delivery.group, event.kind, event.at_ms, event.consumer, event.attempt, event.detail)
        for event in delivery.events
        if any(start <= offset < end for start, end in event.ranges)
    ]
