"""Claim, settle, extend: from a consumer's wish to messages in its hand, and back to a verdict on them.

Next stop: `bodies.py` for what is handed out, `commit/loop.py` for every change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.api.results import Claim, Lease, Slice
from penstock.api.slices import SLICE_ITEMS, in_turns, others_first
from penstock.api.ticket import Ticket
from penstock.core.group.draft import Draft
from penstock.core.group.entries import Entry, runs_of
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model import INTEGER_MAX
from penstock.model.errors import LeaseLost, PenstockError, StoreCorrupt, Unavailable
from penstock.model.rows import slot_of
from penstock.model.verdict import Verdict, by_start
from penstock.model.work import Pause
from penstock.node.catalog import Catalog, Group, Queue
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.consume.bodies import Bodies
from penstock.node.consume.waiters import Claimed, Request, Waiters, is_visible
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle


@dataclass(eq=False, repr=False)
class Claims:
    """Claims of work groups, and verdicts on them."""

    _catalog: Catalog
    _lanes: LaneSet
    _ownership: Ownership
    _commits: Commits
    _clock: Clock
    _lifecycle: Lifecycle
    _waiters: Waiters
    _bodies: Bodies

    # Claim ------------------------------------------------------------------------------------------------

    async def claim(self, queue: Queue, group: Group, request: Request, wait_ms: int) -> Claim:
        """Messages for a consumer, waiting up to `wait_ms` for the first (or the request's minimum) of them."""
        clock = self._clock
        queue.used_ms = clock.now_ms()
        deadline_ms = queue.used_ms + wait_ms
        claimed = await self._take(queue, group, request, patient=wait_ms > 0 and request.minimum > 1)
        while True:
            if claimed is None and wait_ms > 0:
                claimed = await self._waiters.wait(queue, group, request, max(1, deadline_ms - clock.now_ms()))
                if claimed is None and request.minimum > 1:
                    claimed = await self._take(queue, group, request, patient=False)
            if claimed is None:
                return Claim(queue.name, 0, None, 0, [])
            is_with_its_publish = not is_visible(claimed)
            try:
                delivered = await self._deliver(queue, claimed, request, is_with_its_publish)
            except asyncio.CancelledError:
                self._waiters.give_back(claimed)
                raise
            except Unavailable:
                may_wait = is_with_its_publish and not request.settle and clock.now_ms() < deadline_ms
                if not may_wait or not await self._is_undone(claimed):
                    raise
                # The publish failed, or what it published could not be read: the consumer waits on.
                claimed = await self._take(queue, group, request, patient=request.minimum > 1)
                continue
            if delivered.slices:
                return delivered
            # All of it was damaged: what is behind it may not be.
            claimed = await self._take(queue, group, request, patient=False)

    async def _is_undone(self, claimed: Claimed) -> bool:
        """Whether nothing is leased by a claim that failed, for certain: nobody would know of it."""
        try:
            lane = await self._lanes.run(claimed.lane.id, lambda lane: lane)
            if self._waiters.is_held(claimed):
                return False
            if lane is claimed.lane:  # not one that was read from the store since: what was given back is not stored
                await self._commits.commit(lane)
        except PenstockError:
            return False
        return True

    async def _take(self, queue: Queue, group: Group, request: Request, *, patient: bool) -> Claimed | None:
        """Try the queue's lanes in turn, beginning after the one that gave last; a damaged one is left out."""
        lanes, take = queue.lanes, self._waiters.take
        if len(lanes) == 1 and (only := self._lanes.get(lanes[0])) is not None:
            try:
                return take(only, group.id, request, patient=patient)
            except Missing:
                pass  # it is read below
            except Pause:
                await others_first()
        first, again = queue.rotation, True  # others turn it on while this one waits
        broken: dict[int, StoreCorrupt] = {}
        while again:
            self._lifecycle.check_open()  # a node that lost its lanes would load them again and again
            again = False
            for step in range(len(lanes)):
                index = (first + step) % len(lanes)
                lane = self._lanes.get(lanes[index])
                claimed: Claimed | None = None
                try:
                    if lane is not None:
                        claimed = take(lane, group.id, request, patient=patient)
                except Missing:
                    lane = None
                except Pause:
                    lane = None
                    await others_first()
                if lane is None:
                    try:
                        claimed = await self._lanes.run(
                            lanes[index], lambda lane: take(lane, group.id, request, patient=patient)
                        )
                    except StoreCorrupt as error:
                        broken[index] = error
                        continue
                    again = again or step > 0  # meanwhile something may have come to a lane that was empty
                if claimed is not None:
                    queue.rotation = (index + 1) % len(lanes)
                    return claimed
        if len(broken) == len(lanes):
            raise broken[first]
        return None

    async def _deliver(self, queue: Queue, claimed: Claimed, request: Request, is_with_its_publish: bool) -> Claim:
        """Fetch the bodies while the commit is under way; answer when both are there.

        Where it fails, the messages may be leased nevertheless: the error is never `NotOwner`, upon which others ask
        again as if nothing had been done.
        """
        lane, bodies = claimed.lane, self._bodies
        slot = slot_of(lane.id)
        epoch = self._ownership.epoch(slot)
        try:
            if is_with_its_publish:
                await claimed.committed  # there is nothing to read before it
            slices = bodies.cached(lane, claimed.entries) or await self._slices(claimed)
            acked = self._waiters.ack(claimed) if request.settle and slices and not claimed.is_settled else None
        except PenstockError as error:
            await claimed.committed
            is_lost = isinstance(error, StoreCorrupt) and not request.settle and not self._waiters.is_held(claimed)
            if isinstance(error, Unavailable | StoreCorrupt):
                self._waiters.give_back(claimed)  # nobody saw them, and it is nobody's fault
            if is_lost:
                raise LeaseLost(f"lease {claimed.lease_id} ended before its messages could be read") from None
            raise
        finally:
            if request.settle:
                lane.unpin(claimed.lowest)
        bodies.read_ahead(lane, claimed.group, claimed.entries[-1].end)
        await claimed.committed
        if acked is not None:
            await acked
        index = queue.index_of(lane.id)
        if request.settle:
            return Claim(queue.name, index, None, 0, slices)
        if not self._ownership.keeps(slot, epoch):
            # After a long pause another node may have handed the messages out, and they may be settled.
            self._waiters.give_back(claimed)
            raise Unavailable("others may own the queue since its messages were claimed: they return; try again")
        return Claim(queue.name, index, Lease(lane.id, claimed.group, claimed.lease_id), claimed.deadline_ms, slices)

    def _intact(self, claimed: Claimed, slices: list[Slice]) -> list[Slice]:
        """Those that can be handed out; the others become dead letters, and are nobody's fault."""
        for part in slices:
            if not part.reader.is_intact():
                end = part.offset + part.stop - part.start
                error = self._bodies.damage_of(claimed.lane, part)
                self._waiters.set_aside(claimed, part.offset, end, error)
        return [part for part in slices if part.reader.is_intact()]

    async def _slices(self, claimed: Claimed) -> list[Slice]:
        """The messages that are whole, or the first of them that make one answer; then the others are released."""
        entries, ahead = claimed.entries, _is_ahead(claimed)
        if claimed.is_settled:  # all of them are acked, and cannot be released; what they unfold to was known
            slices = await self._bodies.slices(claimed.lane, entries, ahead=ahead, bytes_most=INTEGER_MAX)
        else:
            slices = await self._bodies.slices(claimed.lane, entries, ahead=ahead)
            surplus = _behind(entries, sum([part.stop - part.start for part in slices]))
            if surplus:
                self._waiters.give_back(claimed, surplus)
        if all(part.reader.is_intact() for part in slices):
            return slices
        await claimed.committed
        return self._intact(claimed, slices)

    # Verdicts ---------------------------------------------------------------------------------------------

    def settle(self, lease: Lease, verdicts: Sequence[Verdict], *, deferred: bool = False) -> Ticket[None]:
        """Carry out verdicts on a lease's offsets; done when they are durable.

        `deferred`: they need no commit of their own at once, unless others may wait for what they change.
        """
        self.home_of(lease)
        lane = self._lanes.get(lease.lane)
        if lane is None or len(verdicts) > SLICE_ITEMS:
            return Ticket.of(self._settle_later(lease, verdicts, deferred))
        return self._settle(lease, verdicts, deferred, lane)

    async def _settle_later(self, lease: Lease, verdicts: Sequence[Verdict], deferred: bool) -> None:
        await (await self._settled(lease, verdicts, lambda group: deferred and not group.settling_frees()))

    def _settle(self, lease: Lease, verdicts: Sequence[Verdict], deferred: bool, lane: Lane) -> Ticket[None]:
        group = self.judge(lane, lease, verdicts)
        return self._commits.commit(lane, deferred=deferred and not group.settling_frees())

    async def _settled(
        self, lease: Lease, verdicts: Sequence[Verdict], is_deferred: Callable[[WorkGroup], bool]
    ) -> Ticket[None]:
        """The commit of verdicts that were carried out: many of them in turns with others."""
        while True:
            made = await self.draft(lease, verdicts)

            def command(lane: Lane, made: Draft | None = made) -> Ticket[None] | None:
                if made is not None and not lane.work(lease.group).fits(made):
                    return None
                group = self.judge(lane, lease, verdicts, made)
                return self._commits.commit(lane, deferred=is_deferred(group))

            committed = await self._lanes.run(lease.lane, command)
            if committed is not None:
                return committed

    async def draft(self, lease: Lease, verdicts: Sequence[Verdict]) -> Draft | None:
        """Verdicts carried out aside; None where they are few, or must be carried out in place."""
        if len(verdicts) <= SLICE_ITEMS or any(verdict.start is None for verdict in verdicts):
            return None
        lane = await self._lanes.run(lease.lane, lambda lane: lane)
        group = lane.work(lease.group)
        if not group.can_draft(lease.id):
            return None
        return await in_turns(group.draft(self._clock.now_ms(), lease.id, sorted(verdicts, key=by_start)))

    def judge(self, lane: Lane, lease: Lease, verdicts: Sequence[Verdict], made: Draft | None = None) -> WorkGroup:
        """Carry out verdicts in memory, or take over a draft of them that fits; the group that they are of."""
        group = lane.work(lease.group)
        try:
            if made is None:
                group.settle(self._clock.now_ms(), lease.id, verdicts)
            else:
                group.adopt(self._clock.now_ms(), made)
        except AssertionError as failure:
            raise self._commits.broken(lane, failure) from failure
        return group

    async def settle_and_claim(
        self, lease: Lease, verdicts: Sequence[Verdict], queue: Queue, group: Group, request: Request
    ) -> Claim:
        """Settle a lease and claim the next messages, in one commit unless a lane must be read first.

        Whether the settle succeeded is what the caller must know: where only the claim fails, it is empty, and the next
        one tells why.
        """
        lane = self._lanes.get(lease.lane)
        if lane is None or len(verdicts) > SLICE_ITEMS:
            settled = await self._settled(lease, verdicts, lambda _: True)
        else:
            self.judge(lane, lease, verdicts)
            settled = self._commits.commit(lane, deferred=True)  # it goes with the claim
        claimed = await self._claim_next(queue, group, request)
        self._commits.flush()
        await settled
        return claimed

    async def _claim_next(self, queue: Queue, group: Group, request: Request) -> Claim:
        claimed: Claimed | None = None
        try:
            claimed = await self._take(queue, group, request, patient=False)
            if claimed is not None:
                delivered = await self._deliver(queue, claimed, request, not is_visible(claimed))
                if delivered.slices:
                    return delivered
        except PenstockError:
            pass
        except asyncio.CancelledError:
            if claimed is not None:
                self._waiters.give_back(claimed)
            raise
        return Claim(queue.name, 0, None, 0, [])

    async def extend(self, lease: Lease, lease_ms: int | None) -> int:
        """Keep a lease for another span from now, the group's unless given; its new deadline, once durable."""

        def command(lane: Lane) -> tuple[int, Ticket[None]]:
            group = lane.work(lease.group)
            span_ms = group.settings.lease_ms if lease_ms is None else lease_ms
            deadline_ms = group.extend(self._clock.now_ms(), lease.id, span_ms)
            return deadline_ms, self._commits.commit(lane)

        self.home_of(lease)
        deadline_ms, committed = await self._lanes.run(lease.lane, command)
        await committed
        return deadline_ms

    def home_of(self, lease: Lease) -> tuple[Queue, Group]:
        """The queue and group of a lease; `LeaseLost` where they are gone."""
        queue = self._catalog.by_lane.get(lease.lane)
        group = None if queue is None or queue.deleting else queue.group_by_id(lease.group)
        if queue is None or group is None:
            raise LeaseLost(f"lease {lease} is gone: its queue or group does not exist any more")
        return queue, group


def _is_ahead(claimed: Claimed) -> bool:
    """Whether the group goes through the log in order, so that what follows is wanted next."""
    group = claimed.lane.groups.get(claimed.group)
    return group is not None and claimed.entries[-1].end == group.next


def _behind(entries: Sequence[Entry], count: int) -> list[Verdict]:
    """Verdicts that release what comes after the first `count` messages of entries."""
    verdicts: list[Verdict] = []
    for start, end, _ in runs_of(entries):
        kept = min(count, end - start)
        count -= kept
        if start + kept < end:
            verdicts.append(Verdict("release", start + kept, end))
    return verdicts
