"""What must happen in queues of several owners at once: decided in one commit, carried out by each owner, exactly once.

The node that publishes commits its own part and, in the very same commit, a row in the outbox for each part that
belongs to another node. The owner of that slot appends the messages and deletes the row in one commit of its own
(`outbox.py`), so whatever crashes, each part is there once. Where only one other node is concerned nothing crosses: the
request is `Elsewhere`. Verdicts on leases of several owners cannot be promised for later, for a lease may end
meanwhile: there the slots themselves are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.batch import EncodedBatch, decode, decode_meta, encode
from penstock.model.appended import Appended
from penstock.model.errors import Elsewhere, NotFound, PenstockError, Unavailable
from penstock.model.rows import OutboxRow, slot_of
from penstock.node.publish.parts import ENCODE_FROM, Origin, Part, Results

if TYPE_CHECKING:
    from penstock.node.node import Node

LANDED_WITHIN_S: Final = 10.0
"""How long a publish waits for other nodes to have carried out their parts."""
GATHERED_WITHIN_S: Final = 5.0
AGAIN_S: Final = 0.05


class Carried(msgspec.Struct, frozen=True):
    """An outbox document: append these messages to the row's lane."""

    namespace: str
    queue: str
    queue_id: int
    count: int
    meta: bytes
    body: bytes
    publish_id: str
    """By which the owner knows it again; also those without one of their own get one."""
    asked_ms: int | None = None
    spool: str = ""
    """The spool that it comes from, if it does,"""
    sequence: int = 0
    """and the number of its record there."""


class Landing(msgspec.Struct, frozen=True):
    """What is asked of the owner: whether this row has been carried out, and where its messages went."""

    id: int
    lane: int
    count: int
    publish_id: str


class Landed(msgspec.Struct, frozen=True):
    id: int
    base: int
    count: int
    duplicates: dict[int, int] = {}


class Sent(Appended, frozen=True):
    """In the place of an answer until the owner has given one."""

    landing: Landing | None = None


_decoder: Final = msgspec.msgpack.Decoder(Carried)


def is_elsewhere(node: Node, part: Part) -> bool:
    return not node.ownership.has_taken(slot_of(part.lane))


def is_carried(row: OutboxRow) -> bool:
    """Whether it is such a document: others are JSON."""
    return not row.document.startswith(b"{")


def is_of_spool(row: OutboxRow, spool: str) -> bool:
    return is_carried(row) and _decoder.decode(row.document).spool == spool


def carried_part(node: Node, row: OutboxRow) -> Part:
    """What a row asks for, as a part to be appended here; raises `NotFound` where its queue is gone."""
    carried = _decoder.decode(row.document)
    queue = node.catalog.by_lane.get(row.lane)
    if queue is None or queue.deleting or queue.id != carried.queue_id:
        raise NotFound(f"the queue {carried.queue!r} was deleted")
    batch = EncodedBatch(carried.count, carried.meta, carried.body)
    origin = Origin(carried.spool, carried.sequence) if carried.spool else None
    if carried.count < ENCODE_FROM:
        part = Part(queue, row.lane, decode(batch), None, None, None, carried.publish_id)
    else:
        part = Part(queue, row.lane, (), batch, decode_meta(batch.meta, batch.count), None, carried.publish_id)
    return part if origin is None else msgspec.structs.replace(part, asked_ms=carried.asked_ms, origin=origin)


# Before --------------------------------------------------------------------------------------------------


def check_owners(node: Node, parts: Sequence[Part]) -> None:
    """Raise `Elsewhere` where all of it is another node's: that can do it in one commit."""
    if not parts or any(not is_elsewhere(node, part) for part in parts):
        return
    slots = {slot_of(part.lane) for part in parts}
    if len(node.ownership.owners(slots)) == 1:
        raise node.ownership.not_owner(min(slots))


async def gather(node: Node, slots: Collection[int]) -> None:
    """Own these slots: those of leases that are settled together. `Elsewhere` where one other node has all of them."""
    cluster, ownership = node.cluster, node.ownership
    if cluster is None or all(map(ownership.owns, slots)):
        return
    if len(ownership.owners(slots)) == 1:
        raise ownership.not_owner(min(slots))
    deadline = asyncio.get_running_loop().time() + GATHERED_WITHIN_S
    while not all(map(ownership.owns, slots)):
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(
                "these leases are of several nodes, whose queues could not be brought together; try again"
            )
        await cluster.ask_for([slot for slot in slots if not ownership.owns(slot)])
        await cluster.changed(AGAIN_S)


def send(node: Node, part: Part) -> Sent:
    """Put a part of another node's into the next commit; in the same step as what belongs together with it."""
    batch = part.batch if part.batch is not None else encode(part.messages)
    id = node.numbers.next()
    publish_id = part.publish_id or f"crossing-{id}"
    queue = part.queue
    spool, sequence = part.origin or ("", 0)
    carried = Carried(
        queue.namespace, queue.name, queue.id, batch.count, batch.meta, batch.body, publish_id,
        part.asked_ms, spool, sequence,
    )  # fmt: skip
    row = OutboxRow(id, part.lane, 0, msgspec.msgpack.encode(carried), slot_of(part.lane))
    node.commits.amend().outbox.append(row)
    return Sent(-1, batch.count, landing=Landing(id, part.lane, batch.count, publish_id))


# After ---------------------------------------------------------------------------------------------------


async def landed(node: Node, results: Results) -> Results:
    """The results with the places of what was sent to other nodes, when it is there."""
    if node.cluster is None or not any(isinstance(appended, Sent) for _, _, appended, _ in results):
        return results
    waiting = [appended.landing for _, _, appended, _ in results if isinstance(appended, Sent)]
    found = await _all_landed(node, [landing for landing in waiting if landing is not None])
    return [
        (queue, lane, found[appended.landing.id], indexes)
        if isinstance(appended, Sent) and appended.landing is not None
        else (queue, lane, appended, indexes)
        for queue, lane, appended, indexes in results
    ]


async def _all_landed(node: Node, landings: list[Landing]) -> dict[int, Appended]:
    cluster = node.cluster
    assert cluster is not None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LANDED_WITHIN_S
    found: dict[int, Appended] = {}
    reason: PenstockError | None = None
    left = landings
    while left:
        by_slot: dict[int, list[Landing]] = {}
        for landing in left:
            by_slot.setdefault(slot_of(landing.lane), []).append(landing)
        for slot, wanted in by_slot.items():
            try:
                for one in await cluster.ask_landed(slot, wanted):
                    found[one.id] = Appended(one.base, one.count, one.duplicates)
            except PenstockError as error:
                reason = error
        left = [landing for landing in landings if landing.id not in found]
        if left and loop.time() > deadline:
            raise Unavailable(
                f"what belongs to other nodes is decided and not all there yet ({reason}); it will be. Published again "
                "under the same publish_id, it is there once"
            )
        if left:
            cluster.look()
            await asyncio.sleep(AGAIN_S)  # not until the next look: where a queue is full, that would go on and on
    return found


def nudge(node: Node, results: Results) -> None:
    """The same for who does not wait: let the owners begin."""
    if node.cluster is not None and any(isinstance(appended, Sent) for _, _, appended, _ in results):
        node.spawn(_quietly(node, results))


async def _quietly(node: Node, results: Results) -> None:
    try:
        await landed(node, results)
    except Elsewhere:
        return
