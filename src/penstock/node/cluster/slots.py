"""Slots that come and go: what a node has in memory of their queues, and what it does when it gets or gives one.

`membership.py` decides which; here is how. A slot is handed on when nothing of it is under way any more: commands that
come meanwhile are `Elsewhere`, those that wait are told so, and what was changed is committed first. A slot that is
lost is dropped at once, with everything that was not committed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError
from penstock.model.rows import REGISTRAR_SLOT, Commit, slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Queue

if TYPE_CHECKING:
    from penstock.node.node import Node


def queues_of(node: Node, slots: set[int]) -> list[Queue]:
    return [queue for queue in node.catalog.by_id.values() if queue.slot in slots]


# Getting -------------------------------------------------------------------------------------------------


async def take_up(node: Node, epochs: dict[int, int]) -> None:
    """These slots are this node's, and what their last owner declared is known: serve them."""
    slots = set(epochs)
    node.ownership.take(epochs)
    try:
        await node.outbox.drain(slots)  # before anything newer can overtake what was on its way to them
    except BaseException:
        node.ownership.abandon(slots)
        raise
    node.ownership.serve(slots)
    await mind(node, slots)


async def mind(node: Node, slots: set[int]) -> None:
    """Everything that goes by itself in these slots: leases and delays, retention, schedules, what sessions left."""
    await _drop_exclusive(node, slots)
    await node.events.move()
    queues = queues_of(node, slots)
    timed = {lane for queue in queues if queue.config.retain_ms or queue.config.ttl_ms for lane in queue.lanes}
    for lane in {*await node.store.lanes_in_use(), *timed}:
        if slot_of(lane) in slots and lane in node.catalog.by_lane:
            node.spawn(node.lanes.load(lane))
    for queue in queues:
        node.queue_retention.watch(queue)
    node.outbox.wake()
    if REGISTRAR_SLOT in slots:
        node.schedules.start()
        await node.staging.open()
        node.spawn(node.exchanges.drop_orphan_bindings())
    node.ownership.minded(slots)


async def _drop_exclusive(node: Node, slots: set[int]) -> None:
    """Delete the queues of sessions that ended with the process that had them."""
    for queue in queues_of(node, slots):
        session = queue.session
        if session is not None and not queue.deleting and not node.ownership.is_alive(session.holder):
            await node.declarations.drop_queue(queue)


# Giving --------------------------------------------------------------------------------------------------


async def hand_on(node: Node, slots: set[int]) -> None:
    """Finish what is under way in these slots and forget them; from the first moment on they are `Elsewhere`."""
    node.ownership.shed(slots)
    await node.events.move()
    _end_waits(node, slots)
    node.schedules.slots_gone(slots)
    while node.commits.concerns_slots(slots):
        try:
            await node.commits.commit()
        except PenstockError:
            await asyncio.sleep(0.01)
    _forget(node, slots)


def lose(node: Node, slots: set[int], error: PenstockError) -> None:
    """These slots are another's already: whatever was not committed of them was not done."""
    node.ownership.shed(slots)
    node.commits.give_up(slots, error)
    _end_waits(node, slots)
    node.schedules.slots_gone(slots)
    _forget(node, slots)
    node.events.lost(slots)


def _end_waits(node: Node, slots: set[int]) -> None:
    for queue in queues_of(node, slots):
        node.waiters.moved(queue, node.ownership.not_owner(queue.slot))


def _forget(node: Node, slots: set[int]) -> None:
    node.positions.forget()
    node.ownership.lose(slots)
    loaded = {lane.id for lane in node.lanes.loaded() if slot_of(lane.id) in slots}
    node.lanes.drop(loaded)
    for id in loaded:
        node.timers.cancel(("lane", id))
    node.cache.forget_slots(slots)
    ephemeral = [queue for queue in queues_of(node, slots) if queue.id >= EPHEMERAL_FROM]
    for queue in ephemeral:  # they are in this node's memory alone
        node.catalog.remove_queue(queue)
    lanes = [lane for queue in ephemeral for lane in queue.lanes]
    if lanes:
        node.spawn(node.memory.apply(Commit({slot_of(lane): 1 for lane in lanes}, lanes_deleted=lanes)))
