"""Delivery events: a node writes what happens to messages to `$events`, or to a queue of its own beside it.

An event goes into the same commit as what it tells of, so the node must own the queue: `$events` itself where it
owns that, else `$events-<slot>` in the lowest slot that it has. Readers look into all of them (`history.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from penstock.batch import encode_alike
from penstock.core.lane import ROW_BYTES_MAX, ROW_MESSAGES_MAX, Lane, Sealed
from penstock.model import DEFAULT_NAMESPACE, EVENTS_QUEUE, Message, QueueConfig
from penstock.model.errors import PenstockError, StoreCorrupt
from penstock.model.events import Delivery, encode_delivery
from penstock.model.rows import SLOTS, OutboxRow, home_slot, slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue, queue_row
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import RemotePublish
from penstock.node.lanes import LaneSet
from penstock.node.publish.parts import Part
from penstock.node.timers import Tasks

EVENTS_RETAIN_MS: Final = 7 * 24 * 3600 * 1000
EVENTS_RETAIN_BYTES: Final = 256 * 1024 * 1024
WAITING_MAX: Final = 10_000
"""Events that wait for a lane to be written to; past that, the oldest are dropped."""
_CONTENT_TYPE: Final = "application/json"

log = logging.getLogger("penstock.node")


@dataclass(eq=False, repr=False)
class EventWriter:
    """This node's events and the lane that they go to."""

    _catalog: Catalog
    _writer: CatalogWriter
    _lanes: LaneSet
    _tasks: Tasks
    _ownership: Ownership
    _remote: RemotePublish
    _outbox: Outbox
    _is_on: bool

    def __post_init__(self) -> None:
        self.lane: int | None = None
        self._waiting: list[bytes] = []
        self._is_promised = False
        """Events may be on their way through the outbox."""

    async def slots_served(self, _slots: Set[int]) -> None:
        await self.move()

    async def move(self) -> None:
        """Write to a lane that this node owns."""
        if not self._is_on or (self.lane is not None and self._ownership.owns(slot_of(self.lane))):
            return
        self.lane = None
        slot = self._home()
        if slot is None:
            return
        try:
            queue = await self._queue(slot)
            await self._lanes.load(queue.lanes[0])
            self.lane = queue.lanes[0]
        except PenstockError as error:
            if self._ownership.is_sole and not isinstance(error, StoreCorrupt):
                raise
            log.warning("events wait, their queue cannot be declared or loaded: %s", error)

    def writes_to(self, lane: Lane) -> bool:
        return lane.id == self.lane

    def lost(self, slots: Set[int]) -> None:
        """Another node has these slots."""
        if self.lane is not None and slot_of(self.lane) in slots:
            self.lane = None
            self._tasks.spawn(self.move())

    def _home(self) -> int | None:
        """The slot to write to: that of `$events` where it is this node's, else the lowest."""
        return next((slot for slot in (self._first_slot(), *range(SLOTS)) if self._ownership.owns(slot)), None)

    def _first_slot(self) -> int:
        """The slot of `$events` itself."""
        known = self._catalog.queues.get((DEFAULT_NAMESPACE, EVENTS_QUEUE))
        return home_slot(DEFAULT_NAMESPACE, EVENTS_QUEUE) if known is None else slot_of(known.lanes[0])

    async def _queue(self, slot: int) -> Queue:
        catalog = self._catalog
        name = EVENTS_QUEUE if slot == self._first_slot() else f"{EVENTS_QUEUE}-{slot}"
        async with self._writer.declaring("queue", DEFAULT_NAMESPACE, name):
            queue = catalog.queues.get((DEFAULT_NAMESPACE, name))
            if queue is None:
                config = QueueConfig(
                    retain_ms=EVENTS_RETAIN_MS, retain_bytes=EVENTS_RETAIN_BYTES, description="delivery events"
                )
                id, lane = catalog.new_id(), catalog.new_lane(slot)
                queue = Queue(id, DEFAULT_NAMESPACE, name, config, (lane,))
                await self._writer.commit([queue_row(queue, config)], slot=slot)
                queue = catalog.queues[DEFAULT_NAMESPACE, name]
            return queue

    # Into it ----------------------------------------------------------------------------------------------

    def happened(self, queue: Queue, lane: int, part: Sealed) -> None:
        """Note what a commit does to a lane's messages."""
        if part.events and self._is_on and lane < EPHEMERAL_FROM:
            self._waiting += _deliveries(queue, lane, part)

    def seal(self, sealed: list[tuple[Lane, Sealed]], now_ms: int, slot: int | None) -> list[OutboxRow]:
        """Write them into the commit that they tell of, or into a later one while the lane is being loaded.

        A commit of another slot alone promises them to the lane: the rows for the outbox.
        """
        lane = None if self.lane is None else self._lanes.get(self.lane)
        if lane is None:
            del self._waiting[: len(self._waiting) - WAITING_MAX]
            return []
        if slot is not None and slot != slot_of(lane.id):
            return self._promised(lane.id)
        if self._waiting:
            self._append(lane, now_ms)
            self._waiting = []
        part = lane.seal(now_ms)
        if part is not None:
            part.events = []  # what happens to events is no event
            sealed.append((lane, part))
        return []

    def _promised(self, lane: int) -> list[OutboxRow]:
        waiting, self._waiting = self._waiting, []
        queue = self._catalog.by_lane.get(lane)
        if not waiting or queue is None:
            return []
        messages = [Message(payload, content_type=_CONTENT_TYPE) for payload in waiting]
        self._is_promised = True
        return [self._remote.promise(Part(queue, lane, messages, None, None, None))[0]]

    async def arrived(self) -> None:
        """Wait until those are in their queue whose commit is durable."""
        if self._is_promised and self.lane is not None:
            await self._outbox.drain({slot_of(self.lane)})

    def _append(self, lane: Lane, now_ms: int) -> None:
        """As a batch of their own: they are alike in all but their payloads, and with each commit there are some."""
        waiting = self._waiting
        if len(waiting) <= ROW_MESSAGES_MAX and sum(map(len, waiting)) <= ROW_BYTES_MAX:
            lane.append_batch(now_ms, encode_alike(waiting, _CONTENT_TYPE), None)
        else:
            lane.append(now_ms, [Message(payload, content_type=_CONTENT_TYPE) for payload in waiting])

    def queues(self) -> list[Queue]:
        """Every queue in which events are, this node's and others'."""
        queues = self._catalog.queues
        names = [EVENTS_QUEUE, *(f"{EVENTS_QUEUE}-{slot}" for slot in range(SLOTS))]
        return [queues[DEFAULT_NAMESPACE, name] for name in names if (DEFAULT_NAMESPACE, name) in queues]


def _deliveries(queue: Queue, lane: int, part: Sealed) -> list[bytes]:
    """The payload of one message per group: what happened to it in this commit."""
    payloads: list[bytes] = []
    index = queue.index_of(lane)
    for group_id, events in part.events:
        group = queue.group_by_id(group_id)
        if group is not None:
            delivery = Delivery(queue.namespace, queue.name, index, group.name, events, queue.id)
            payloads.append(encode_delivery(delivery))
    return payloads
