"""The end of a session, as far as this node is concerned: its exclusive queues go, what its consumers hold returns.

A session belongs to one node; its queues and leases may be any node's. Who has the session tells the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.node.catalog import Group, Queue
    from penstock.node.node import Node

ClaimKeys = set[tuple[int, str, str]]
"""(queue, group, consumer)"""


async def end(node: Node, session: str, claimed: ClaimKeys) -> None:
    """End what a session has in queues that this node owns. Safe to do again."""
    mine = [queue for queue in node.catalog.by_id.values() if node.ownership.owns(queue.slot)]
    for queue in mine:
        if queue.session == session and not queue.deleting:
            await node.declarations.delete_queue(queue)
    attached = {(queue.id, *place) for queue in mine for place in queue.consumers if _is_of(place[1], session)}
    for id, group, consumer in sorted(attached | claimed | node.session_claims.get(session, set())):
        known = node.catalog.by_id.get(id)
        if (
            known is not None
            and node.ownership.owns(known.slot)
            and not known.deleting
            and group in ("", *known.groups)
        ):
            await consumer_left(node, known, known.groups.get(group), consumer)
    node.session_claims.pop(session, None)


def _is_of(consumer: str, session: str) -> bool:
    """Whether a consumer is a session's: of its name, or one of several that it has, named `SESSION/…`."""
    return consumer == session or consumer.startswith(f"{session}/")


async def consumer_left(node: Node, queue: Queue, group: Group | None, consumer: str, *, keep: bool = False) -> None:
    """A consumer has gone: what it holds returns at once, counted as an attempt; with `keep`, not yet."""
    place = ("" if group is None else group.name, consumer)
    queue.consumers -= {place}
    if queue.only_consumer == place:
        queue.only_consumer = None
    if group is not None and not keep:
        for lane in await node.lanes.together(queue.lanes):
            lane.groups[group.id].consumer_left(node.clock.now_ms(), consumer)
            node.commits.touch(lane)
        await node.commits.wait()
    if queue.config.auto_delete and queue.had_consumer and not queue.consumers:
        await node.declarations.delete_queue(queue)
