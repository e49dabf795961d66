"""Transactions: any verdicts and publishes, over several queues, as one commit; all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.api.results import Lease, Receipt
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.rows import slot_of
from penstock.model.verdict import Verdict
from penstock.node.cluster import remote_publish
from penstock.node.consume.claims import check_lane
from penstock.node.publish.append import (
    Known,
    append_ready,
    check_limits,
    check_room,
    known_ids,
    ready_lanes,
)
from penstock.node.publish.parts import Part, Results

if TYPE_CHECKING:
    from penstock.node.node import Node


async def commit(node: Node, settles: Mapping[Lease, Sequence[Verdict]], count: int, parts: Sequence[Part]) -> Receipt:
    """Check everything, then do everything, without a wait between the two."""
    if not node.ownership.is_sole:
        await remote_publish.gather(node, {slot_of(lease.lane) for lease in settles})
        if not settles:
            remote_publish.check_owners(node, parts)
    node.spool.check_free(parts)
    await node.commits.room(check_limits(node, count, parts))
    while True:
        known = await known_ids(node, parts)
        try:
            results = await _try(node, settles, parts, known)
        finally:
            known.close()
        if results is not None:
            await node.commits.commit()
            return Receipt(count, results if node.ownership.is_sole else await remote_publish.landed(node, results))


async def _try(
    node: Node, settles: Mapping[Lease, Sequence[Verdict]], parts: Sequence[Part], known: Known
) -> Results | None:
    """Do it all, if everything it needs is in memory at one and the same moment; None to try again."""
    lanes = await _lanes_of(node, settles, parts)
    if lanes is None or not known.is_true_of(lanes):
        return None
    try:
        _check(node, lanes, settles, parts)
    except Missing:
        return None  # what was in memory a moment ago was pushed out: ready_lanes feeds it again
    for lease, verdicts in settles.items():
        lane = lanes[lease.lane]
        lane.work(lease.group).settle(node.clock.now_ms(), lease.id, verdicts)
        node.commits.touch(lane)
    return append_ready(node, parts, lanes, known.rows)


async def _lanes_of(
    node: Node, settles: Mapping[Lease, Sequence[Verdict]], parts: Sequence[Part]
) -> dict[int, Lane] | None:
    """Every lane concerned, loaded at one and the same moment; None to try again."""
    for lease in settles:
        check_lane(node, lease)
        if node.lanes.get(lease.lane) is None:
            await node.lanes.load(lease.lane)
    ready = await ready_lanes(node, parts)
    settled = {lease.lane: node.lanes.get(lease.lane) for lease in settles}
    if ready is None or None in settled.values():
        return None
    return ready | {id: lane for id, lane in settled.items() if lane is not None}


def _check(
    node: Node, lanes: Mapping[int, Lane], settles: Mapping[Lease, Sequence[Verdict]], parts: Sequence[Part]
) -> None:
    for lease, verdicts in settles.items():
        lanes[lease.lane].work(lease.group).check_settle(lease.id, verdicts)
    for lane in lanes.values():
        check_room(node, lane, parts)
