"""Standing claims: consumers that wait for messages, served in turn whenever a commit or a timer brings some.

A claim that waits costs nothing until it is woken. Whatever could make a message claimable (a publish, a nack,
an ack that unlocks a partition, a seek…) is a change of its lane, so looking after each commit of a lane
and at each tick of it is enough.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.api.slices import others_first
from penstock.api.ticket import Ticket
from penstock.core.group.entries import Entry
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.errors import LeaseLost, NotFound, Overloaded, PenstockError
from penstock.model.verdict import Verdict
from penstock.model.work import Budget, Pause
from penstock.node.catalog import Catalog, Group, Queue
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.lane_timers import LaneTimers
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle, Numbers
from penstock.node.timers import Tasks, Timers

WAITERS_MAX: Final = 100_000
SERVE_WORK: Final = 200
"""What serving a consumer in line costs, beside what its claim looks at."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """What a consumer asks for."""

    most: int
    minimum: int
    consumer: str
    lease_ms: int | None
    partition: str | None
    settle: bool
    priority: int = 0
    """Of several that wait, those with a higher one are served first."""
    session: str = ""
    """The session whose lease it will be; empty for none."""


class Claimed(msgspec.Struct, frozen=True):
    """What it got, in memory: an answer only once `committed` is done."""

    lane: Lane
    group: int
    lease_id: int
    entries: list[Entry]
    deadline_ms: int
    committed: Ticket[None]
    is_settled: bool
    """It was acked as it was claimed; otherwise there is a lease, which is acked before the answer if so asked."""

    @property
    def lowest(self) -> int:
        """Where the lane is pinned, if what was claimed is settled at once."""
        return min(entry.start for entry in self.entries)


@dataclass(eq=False, repr=False, slots=True)
class Waiter:
    """A consumer in line."""

    request: Request
    future: asyncio.Future[Claimed | None]


@dataclass(eq=False, repr=False)
class Waiters:
    """Waiting consumers, by queue and group."""

    _catalog: Catalog
    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _timers: Timers
    _lane_timers: LaneTimers
    _tasks: Tasks
    _lifecycle: Lifecycle
    _numbers: Numbers
    _ownership: Ownership

    def __post_init__(self) -> None:
        self._lines: dict[int, dict[int, deque[Waiter]]] = {}
        self._again: set[int] = set()
        """Lanes whose consumers are served once more soon."""
        self._readers: dict[int, list[asyncio.Future[None]]] = {}
        self.count = 0

    # Taking at once ---------------------------------------------------------------------------------------

    def take(
        self, lane: Lane, group_id: int, request: Request, *, patient: bool, budget: Budget | None = None
    ) -> Claimed | None:
        """Claim from one lane now. `patient`: leave it if there are fewer than the request's minimum."""
        group = lane.groups.get(group_id)
        if not isinstance(group, WorkGroup):
            return None
        if (group.has_nothing() and request.partition is None) or (patient and group.available() < request.minimum):
            return None
        lease_id = self._numbers.next()
        now_ms = self._clock.now_ms()
        # How much an answer can hold of batches of unknown size is seen when they are read: what is over goes back.
        is_settled = request.settle and not lane.log.guesses
        try:
            entries = group.claim(
                now_ms,
                request.most,
                request.consumer,
                lease_id,
                lease_ms=request.lease_ms,
                partition=request.partition,
                settle=is_settled,
                minimum=request.minimum if patient else 1,
                session=request.session,
                budget=budget,
            )
        except Pause:
            self._rearm(lane, group, now_ms)  # it may be repeated and find nothing: what was passed over is stored now
            raise
        except AssertionError as failure:
            raise self._commits.broken(lane, failure) from failure
        if not entries:
            self._rearm(lane, group, now_ms)
            return None
        if request.settle:
            lane.pin(min(entry.start for entry in entries))
        deadline_ms = now_ms + (group.settings.lease_ms if request.lease_ms is None else request.lease_ms)
        return Claimed(lane, group_id, lease_id, entries, deadline_ms, self._commits.commit(lane), is_settled)

    def _rearm(self, lane: Lane, group: WorkGroup, now_ms: int) -> None:
        """Nothing to be had now: come back when delays are over, or the rate limit lets go; no commit tells of it."""
        self._lane_timers.arm(lane)
        if group.has_unsealed():
            self._commits.touch(lane)  # the claim passed over messages that had expired or are not for the group
        ready_ms = group.rate_ready_ms(now_ms)
        if ready_ms is not None and group.available():
            self._timers.at(ready_ms, ("rate", lane.id, group.id), lambda: self.serve(lane))

    # Waiting ----------------------------------------------------------------------------------------------

    async def wait(self, queue: Queue, group: Group, request: Request, wait_ms: int) -> Claimed | None:
        """Stand in line for so long; None when the time is over."""
        self._lifecycle.check_open()
        if self._lifecycle.draining:
            return None
        if self.count >= WAITERS_MAX:
            raise Overloaded(f"{self.count} claims are waiting already; the limit is {WAITERS_MAX}")
        loop = asyncio.get_running_loop()
        waiter = Waiter(request, loop.create_future())
        line = self._lines.setdefault(queue.id, {}).setdefault(group.id, deque())
        _stand_in(line, waiter)
        self.count += 1
        timer = loop.call_later(wait_ms / 1000.0, self._give_up, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                claimed = waiter.future.result()
                if claimed is not None:  # it went between the claimed and the answer: nobody saw the messages
                    if request.settle:
                        claimed.lane.unpin(claimed.lowest)
                    self.give_back(claimed)
            raise
        finally:
            timer.cancel()
            self.count -= 1
            self._leave(queue.id, group.id, waiter)

    def _give_up(self, waiter: Waiter) -> None:
        if not waiter.future.done():
            waiter.future.set_result(None)

    def stop_waiting(self, queue: Queue, group: Group, consumer: str) -> None:
        """A consumer waits no more: its claims that are in line are answered as if their time were over."""
        for waiter in self._lines.get(queue.id, {}).get(group.id, ()):
            if waiter.request.consumer == consumer:
                self._give_up(waiter)

    def _leave(self, queue_id: int, group_id: int, waiter: Waiter) -> None:
        groups = self._lines.get(queue_id, {})
        line = groups.get(group_id)
        if line is None:
            return
        if waiter in line:
            line.remove(waiter)
        if not line:
            del groups[group_id]
            if not groups:
                del self._lines[queue_id]

    def serve(self, lane: Lane) -> None:
        """Hand a lane's messages to the consumers that wait for them: by priority, then first come, first served."""
        queue = self._catalog.by_lane.get(lane.id)
        if queue is None:
            return
        self._wake_readers(queue.id)
        groups = self._lines.get(queue.id)
        if not groups or self._lanes.get(lane.id) is not lane:
            return
        budget = Budget()
        had_their_turn: list[int] = []
        for group_id in list(groups):
            try:
                self._serve_line(lane, group_id, groups[group_id], budget)
            except Missing as missing:
                self._serve_again(lane, missing)
            except Pause:
                for id in had_their_turn or [group_id]:
                    groups[id] = groups.pop(id)  # the others come first then
                self._serve_again(lane, None)
                return
            had_their_turn.append(group_id)

    def loaded(self, lane: Lane) -> None:
        """A lane was read from the store: serve the consumers that wait for it, soon."""
        if self.is_waited_for(lane):
            asyncio.get_running_loop().call_soon(self.serve, lane)

    def serve_unsealed(self, lane: Lane) -> None:
        """Hand what is about to be committed to consumers that wait for it, in the same commit.

        They are answered after it, as its publishers are: delivery needs no commit of its own.
        """
        queue = self._catalog.by_lane.get(lane.id)
        groups = None if queue is None else self._lines.get(queue.id)
        if not groups:
            return
        visible_end, budget = lane.show_all(self._clock.now_ms()), Budget()
        try:
            for group_id in list(groups):
                with suppress(Missing, Pause):  # what must be read first, or takes long, is served after the commit
                    self._serve_line(lane, group_id, groups[group_id], budget)
        finally:
            lane.visible_end = visible_end

    def _serve_line(self, lane: Lane, group_id: int, line: deque[Waiter], budget: Budget) -> None:
        for waiter in list(line):
            if waiter.future.done():
                continue
            if budget.left <= 0:
                raise Pause
            claimed = self.take(lane, group_id, waiter.request, patient=waiter.request.minimum > 1, budget=budget)
            if claimed is not None:
                budget.left -= SERVE_WORK  # who gets nothing costs nothing, or the next turn would end there again
                line.remove(waiter)
                waiter.future.set_result(claimed)
            elif waiter.request.partition is None and not self._choosy(lane, group_id, waiter):
                break  # what one cannot have, the next cannot either

    def _choosy(self, lane: Lane, group_id: int, waiter: Waiter) -> bool:
        """Whether it may be this waiter's own wishes that kept it from getting anything."""
        group = lane.groups.get(group_id)
        return waiter.request.minimum > 1 or (group is not None and group.settings.single_active_consumer)

    def _serve_again(self, lane: Lane, missing: Missing | None) -> None:
        """Serve a lane once more, when missing heads were read or others have had their turn."""
        if lane.id not in self._again:
            self._again.add(lane.id)
            self._tasks.spawn(self._wait_and_serve(lane, missing))

    async def _wait_and_serve(self, lane: Lane, missing: Missing | None) -> None:
        try:
            if missing is None:
                await others_first()
            else:
                await self._lanes.feed(lane.id, missing.start)
        finally:
            self._again.discard(lane.id)
        self.serve(lane)

    @property
    def readers(self) -> int:
        """How many stream reads wait."""
        return sum(map(len, self._readers.values()))

    # Stream readers ---------------------------------------------------------------------------------------

    def listen(self, queue: Queue) -> asyncio.Future[None]:
        """Done at the next change of a queue. Listen first and look then: what comes in between is not missed."""
        self._lifecycle.check_open()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.setdefault(queue.id, []).append(future)
        return future

    def unlisten(self, queue: Queue, future: asyncio.Future[None]) -> None:
        if future.done():
            future.exception()  # seen: its reader ended for another reason
            return
        readers = self._readers[queue.id]
        readers.remove(future)
        if not readers:
            del self._readers[queue.id]

    def _wake_readers(self, queue_id: int, error: PenstockError | None = None) -> None:
        for future in self._readers.pop(queue_id, []):
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    # What was claimed for nobody --------------------------------------------------------------------------

    def give_back(self, claimed: Claimed, verdicts: Sequence[Verdict] = (Verdict("release"),)) -> None:
        """Release what was claimed and nobody saw, all of it unless said otherwise, without spending an attempt.

        Its commit need not be waited for: if that fails, the lane is loaded again, without the lease.
        """
        group = self._group_of(claimed)
        if not self._lifecycle.closed and group is not None and self._lanes.get(claimed.lane.id) is claimed.lane:
            with suppress(LeaseLost):  # a seek or a purge took some of it
                group.settle(self._clock.now_ms(), claimed.lease_id, verdicts)
            self._commits.touch(claimed.lane)

    def ack(self, claimed: Claimed) -> Ticket[None]:
        """Settle what was claimed to be settled at once and is leased still; raises where the lease is gone."""
        group, lane = self._group_of(claimed), self._lanes.get(claimed.lane.id)
        if group is None or lane is None:
            raise LeaseLost(f"lease {claimed.lease_id} ended before its messages could be read")
        group.settle(self._clock.now_ms(), claimed.lease_id, (Verdict("ack"),))
        return self._commits.commit(lane)

    def set_aside(self, claimed: Claimed, start: int, end: int, error: str) -> None:
        """Bury messages that were claimed and are damaged in the store, without spending an attempt.

        Its commit need not be waited for, as that of `give_back`.
        """
        if self._lifecycle.closed or self._lanes.get(claimed.lane.id) is not claimed.lane:
            return
        group = claimed.lane.groups.get(claimed.group)
        if isinstance(group, WorkGroup):
            with suppress(LeaseLost):  # a seek or a purge took some of it
                if claimed.is_settled:
                    group.set_aside_done(self._clock.now_ms(), start, end, error)
                else:
                    group.set_aside(self._clock.now_ms(), claimed.lease_id, start, end, error)
            self._commits.touch(claimed.lane)

    def is_held(self, claimed: Claimed) -> bool:
        """Whether its lease is still there."""
        return self._group_of(claimed) is not None

    def _group_of(self, claimed: Claimed) -> WorkGroup | None:
        """The group that has the lease, in the lane as it is loaded now; None where the lease is gone."""
        lane = self._lanes.get(claimed.lane.id)
        group = None if lane is None else lane.groups.get(claimed.group)
        return group if isinstance(group, WorkGroup) and claimed.lease_id in group.leases.by_id else None

    # Ends -------------------------------------------------------------------------------------------------

    def is_waited_for(self, lane: Lane) -> bool:
        queue = self._catalog.by_lane.get(lane.id)
        return queue is not None and self.has_waiters(queue)

    def has_waiters(self, queue: Queue) -> bool:
        return queue.id in self._lines or queue.id in self._readers

    def queue_removed(self, queue: Queue) -> None:
        self._end(queue.id, NotFound(f"the queue {queue.name!r} was deleted"))

    def slots_shed(self, slots: Set[int]) -> None:
        """Another node owns these slots from now on: their waiting consumers wait there."""
        for queue in self._catalog.in_slots(slots):
            self._end(queue.id, self._ownership.not_owner(queue.slot))

    def group_removed(self, queue: Queue, group: Group) -> None:
        line = self._lines.get(queue.id, {}).get(group.id, ())
        self._end_line(line, NotFound(f"the group {group.name!r} was deleted"))
        self._wake_readers(queue.id)

    def drain(self) -> None:
        """End everyone's wait as if its time were over: the node is about to stop, and nobody's claim failed."""
        for groups in list(self._lines.values()):
            for line in list(groups.values()):
                for waiter in line:
                    self._give_up(waiter)
        for queue_id in list(self._readers):
            self._wake_readers(queue_id)

    def close(self, error: PenstockError) -> None:
        """End everyone's wait with the reason."""
        for queue_id in [*self._lines, *self._readers]:
            self._end(queue_id, error)

    def _end(self, queue_id: int, error: PenstockError) -> None:
        self._wake_readers(queue_id, error)
        for line in self._lines.get(queue_id, {}).values():
            self._end_line(line, error)

    def _end_line(self, line: Iterable[Waiter], error: PenstockError) -> None:
        for waiter in line:
            if not waiter.future.done():
                waiter.future.set_exception(error)


def _stand_in(line: deque[Waiter], waiter: Waiter) -> None:
    """Behind all who rank as high; nearly always the end of the line."""
    place = len(line)
    while place and line[place - 1].request.priority < waiter.request.priority:
        place -= 1
    line.insert(place, waiter)


def is_visible(claimed: Claimed) -> bool:
    """Whether what was claimed was published before; otherwise it is published in the same commit."""
    return claimed.entries[-1].end <= claimed.lane.visible_end
