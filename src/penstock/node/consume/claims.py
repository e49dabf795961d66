"""Claim, settle, extend: from a consumer's wish to messages in its hand, and back to a verdict on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.api.results import Claim, Lease, Slice
from penstock.api.ticket import Ticket
from penstock.core.group.entries import Entry, runs_of
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.errors import Elsewhere, Fenced, LeaseLost, PenstockError, StoreCorrupt, Unavailable
from penstock.model.verdict import Verdict
from penstock.node.cache import CachedBatch
from penstock.node.consume.waiters import Claimed, Request, give_back, is_held, is_visible

if TYPE_CHECKING:
    from penstock.node.catalog import Group, Queue
    from penstock.node.node import Node

READ_BYTES = 2 * 1024 * 1024
LAG_TO_READ_AHEAD = 1_000
BATCHES_READ = 16
BATCHES_AHEAD = 8
"""So many batches before a group that lags runs out of what is in memory, more is read."""


async def claim(node: Node, queue: Queue, group: Group, request: Request, wait_ms: int) -> Claim:
    """Messages for a consumer, waiting up to `wait_ms` for the first (or the request's minimum) of them."""
    deadline_ms = node.clock.now_ms() + wait_ms
    claimed = await _take_now(node, queue, group, request, patient=wait_ms > 0 and request.minimum > 1)
    while True:
        if claimed is None and wait_ms > 0:
            claimed = await node.waiters.wait(queue, group, request, max(1, deadline_ms - node.clock.now_ms()))
            if claimed is None and request.minimum > 1:
                claimed = await _take_now(node, queue, group, request, patient=False)
        if claimed is None:
            return Claim(queue.name, 0, None, 0, [])
        is_with_its_publish = not is_visible(claimed)
        try:
            return await _deliver(node, queue, claimed, request, is_with_its_publish)
        except asyncio.CancelledError:
            give_back(node, claimed)
            raise
        except Unavailable as error:
            if not is_with_its_publish or request.settle or isinstance(error, Elsewhere | Fenced):
                raise
            # It was the publish that failed, or what it published could not be read. Who waited for whatever comes
            # waits on.
            claimed = None
            if node.clock.now_ms() >= deadline_ms:
                raise


async def _take_now(node: Node, queue: Queue, group: Group, request: Request, *, patient: bool) -> Claimed | None:
    """Try the queue's lanes in turn, beginning after the one that gave last."""
    lanes, take = queue.lanes, node.waiters.take
    first, again = queue.rotation, True  # others turn it on while this one waits
    while again:
        node.check_open()  # a node that lost its lanes would load them again and again
        again = False
        for step in range(len(lanes)):
            index = (first + step) % len(lanes)
            lane = node.lanes.get(lanes[index])
            claimed: Claimed | None = None
            try:
                if lane is not None:
                    claimed = take(lane, group.id, request, patient=patient)
            except Missing:
                lane = None
            if lane is None:
                claimed = await node.lanes.run(
                    lanes[index], lambda lane: take(lane, group.id, request, patient=patient)
                )
                again = again or step > 0  # meanwhile something may have come to a lane that was empty
            if claimed is not None:
                queue.rotation = (index + 1) % len(lanes)
                return claimed
    return None


async def _deliver(node: Node, queue: Queue, claimed: Claimed, request: Request, is_with_its_publish: bool) -> Claim:
    """Fetch the bodies while the commit is under way; answer when both are there."""
    lane = claimed.lane
    try:
        if is_with_its_publish:
            await claimed.committed  # there is nothing to read before it
        slices = cached_slices(node, lane, claimed.entries) or await slices_of(
            node, lane, claimed.entries, ahead=_is_ahead(claimed)
        )
    except PenstockError as error:
        await claimed.committed
        if isinstance(error, Unavailable):
            give_back(node, claimed)  # nobody saw them
        # Else the lease stands: what cannot be read at all comes again when it ends, until its attempts are spent.
        if isinstance(error, StoreCorrupt) and not request.settle and not is_held(node, claimed):
            raise LeaseLost(f"lease {claimed.lease_id} ended before its messages could be read") from None
        raise
    finally:
        if request.settle:
            lane.unpin(claimed.lowest)
    _read_ahead(node, claimed)
    await claimed.committed
    index = queue.index_of(lane.id)
    if request.settle:
        return Claim(queue.name, index, None, 0, slices)
    return Claim(queue.name, index, Lease(lane.id, claimed.group, claimed.lease_id), claimed.deadline_ms, slices)


# Bodies --------------------------------------------------------------------------------------------------


def cached_slices(node: Node, lane: Lane, entries: Sequence[Entry]) -> list[Slice] | None:
    """The messages of one run inside one batch that is in memory: the common case of small claims."""
    if len(entries) > 1 and len(runs_of(entries)) > 1:
        return None
    start, end, attempts = entries[0].start, entries[-1].end, entries[0].attempts
    batch = _cached(node, lane, start)
    if batch is None or end > batch.end:
        return None
    node.cache.hits += 1
    return [Slice(batch.reader, start - batch.base, end - batch.base, start, batch.published_ms, attempts)]


def _is_ahead(claimed: Claimed) -> bool:
    """Whether the group goes through the log in order, so that what follows is wanted next."""
    group = claimed.lane.groups.get(claimed.group)
    return group is not None and claimed.entries[-1].end == group.next


def _read_ahead(node: Node, claimed: Claimed) -> None:
    """A group that lags and goes through the log in order: have what it needs next in memory before it asks."""
    lane = claimed.lane
    group = lane.groups.get(claimed.group)
    if group is None or lane.visible_end - group.next < LAG_TO_READ_AHEAD or lane.id in node.reading_ahead:
        return
    if claimed.entries[-1].end != group.next:
        return
    ahead = lane.log.peek_some(group.next, BATCHES_AHEAD)
    if ahead and node.cache.has(lane.id, ahead[-1].base):
        return  # and so, nearly always, are those before it: others of the lane's groups were here, or this one
    for segment in ahead:
        if segment.base >= lane.visible_end:
            return
        if not node.cache.has(lane.id, segment.base):
            offset = max(segment.base, group.next)
            node.reading_ahead.add(lane.id)
            node.spawn(_fill(node, lane.id, offset, _some_batches_on(lane, offset)))
            return


def _some_batches_on(lane: Lane, offset: int) -> int:
    """The end of what is read ahead: a bounded number of batches, for a small one may unfold to a large one."""
    for segment in lane.log.peek_some(offset, BATCHES_READ):
        if segment.end > lane.visible_end:
            break
        offset = segment.end
    return offset


async def _fill(node: Node, lane: int, start: int, end: int) -> None:
    with suppress(PenstockError):  # who needs it reads it then, and is told
        await _read(node, lane, start, end)
    node.reading_ahead.discard(lane)


async def slices_of(node: Node, lane: Lane, entries: Sequence[Entry], *, ahead: bool = False) -> list[Slice]:
    """The messages of entries, cut from their batches; from memory where they are, else from the store.

    `ahead` reads what follows too: a group that lags needs it with its next claims.
    """
    slices: list[Slice] = []
    batch: CachedBatch | None = None
    for start, end, attempts in runs_of(entries):
        while start < end:
            if batch is None or not batch.base <= start < batch.end:
                batch = _cached(node, lane, start)
                if batch is not None:
                    node.cache.hits += 1
                else:
                    node.cache.misses += 1
                    batch = await _read(node, lane.id, start, max(end, _some_batches_on(lane, start)) if ahead else end)
            stop = min(end, batch.end)
            slices.append(
                Slice(batch.reader, start - batch.base, stop - batch.base, start, batch.published_ms, attempts)
            )
            start = stop
    return slices


def _cached(node: Node, lane: Lane, offset: int) -> CachedBatch | None:
    """The batch that holds an offset, if both its place and its bytes are in memory."""
    segment = lane.log.peek(offset)
    return None if segment is None else node.cache.get(lane.id, segment.base)


async def _read(node: Node, lane: int, start: int, end: int) -> CachedBatch:
    """Read the batches of a range into the cache, a large read at a time; the first of them."""
    rows = await node.lanes.store_of(lane).read(lane, start, end, READ_BYTES)
    if not rows or not rows[0].base <= start < rows[0].end:
        raise StoreCorrupt(f"offset {start} of lane {lane} should be in the store, but is not")
    # The first is put last, so that it is not pushed out before it is used.
    return [node.cache.put(lane, row) for row in reversed(rows)][-1]


# Verdicts ------------------------------------------------------------------------------------------------


def settle(node: Node, lease: Lease, verdicts: Sequence[Verdict], *, deferred: bool = False) -> Ticket[None]:
    """Carry out verdicts on a lease's offsets; done when they are durable.

    `deferred`: they need no commit of their own at once, unless others may wait for what they change.
    """
    check_lane(node, lease)
    lane = node.lanes.get(lease.lane)
    if lane is None:
        return Ticket.of(_settle_later(node, lease, verdicts, deferred))
    return _settle(node, lease, verdicts, deferred, lane)


async def _settle_later(node: Node, lease: Lease, verdicts: Sequence[Verdict], deferred: bool) -> None:
    await (await node.lanes.run(lease.lane, lambda lane: _settle(node, lease, verdicts, deferred, lane)))


def _settle(node: Node, lease: Lease, verdicts: Sequence[Verdict], deferred: bool, lane: Lane) -> Ticket[None]:
    group = lane.work(lease.group)
    group.settle(node.clock.now_ms(), lease.id, verdicts)
    return node.commits.commit(lane, deferred=deferred and not group.settling_frees())


async def settle_and_claim(
    node: Node, lease: Lease, verdicts: Sequence[Verdict], queue: Queue, group: Group, request: Request
) -> Claim:
    """Carry out verdicts on a lease and claim what is there then, in one commit unless a lane must be read first.

    Whether the settle succeeded is what the caller must know: where only the claim fails, it is empty, and the next one
    tells why.
    """

    def command(lane: Lane) -> Ticket[None]:
        lane.work(lease.group).settle(node.clock.now_ms(), lease.id, verdicts)
        return node.commits.commit(lane, deferred=True)  # it goes with the claim

    lane = node.lanes.get(lease.lane)
    settled = command(lane) if lane is not None else await node.lanes.run(lease.lane, command)
    claimed = await _claim_next(node, queue, group, request)
    node.commits.flush()
    await settled
    return claimed


async def _claim_next(node: Node, queue: Queue, group: Group, request: Request) -> Claim:
    claimed: Claimed | None = None
    try:
        claimed = await _take_now(node, queue, group, request, patient=False)
        if claimed is not None:
            return await _deliver(node, queue, claimed, request, False)
    except PenstockError:
        pass
    except asyncio.CancelledError:
        if claimed is not None:
            give_back(node, claimed)
        raise
    return Claim(queue.name, 0, None, 0, [])


async def extend(node: Node, lease: Lease, lease_ms: int | None) -> int:
    """Keep a lease for another span from now, the group's unless given; its new deadline, once durable."""

    def command(lane: Lane) -> tuple[int, Ticket[None]]:
        group = lane.work(lease.group)
        span_ms = group.settings.lease_ms if lease_ms is None else lease_ms
        deadline_ms = group.extend(node.clock.now_ms(), lease.id, span_ms)
        return deadline_ms, node.commits.commit(lane)

    check_lane(node, lease)
    deadline_ms, committed = await node.lanes.run(lease.lane, command)
    await committed
    return deadline_ms


def check_lane(node: Node, lease: Lease) -> None:
    """Raise `LeaseLost` where there is no such queue or group."""
    home_of(node, lease)


def home_of(node: Node, lease: Lease) -> tuple[Queue, Group]:
    """The queue and group of a lease; `LeaseLost` where they are gone."""
    queue = node.catalog.by_lane.get(lease.lane)
    group = None if queue is None or queue.deleting else queue.group_by_id(lease.group)
    if queue is None or group is None:
        raise LeaseLost(f"lease {lease} is gone: its queue or group does not exist any more")
    return queue, group
