"""The commit loop: everything that changed while one commit was under way goes into the next.

Callers change lanes at once and get a ticket, which is done when the commit that holds their change is durable. The
loop is idle, has a round scheduled, or has one under way: several, of slots that have nothing in common, where the
engine can do that. A round reads from top to bottom: `_turn`, `_seal`, `_apply`, `_applied`, `_answer` (or `_fail`),
`_next`; it begins on the event loop only, never from within another, also where the store is done at once.

If a commit fails, its callers and those behind it are told, and every lane that had changed is given up, to be loaded
again: what is in the store is the truth. Next stop of a message: `store/contract.py`, and after it back up through
`node/consume/waiters.py` to the consumers that wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from penstock.api.ticket import Ticket, end_all
from penstock.core.lane import Lane, Sealed
from penstock.model.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.model.rows import Commit
from penstock.node.clock import Clock
from penstock.node.commit.commits import PENDING_BYTES_MAX, Commits
from penstock.node.commit.host import CommitHost
from penstock.node.commit.pacing import DEFERRED_SECONDS, Pacing
from penstock.node.commit.pending import Pending, Round, any_epoch, build
from penstock.node.observe.counters import Counters
from penstock.node.publish.parts import Unit
from penstock.store.contract import Store

log = logging.getLogger("penstock.commits")


class Ground(NamedTuple):
    """What commits are made on."""

    store: Store
    memory: Store
    """For the lanes of ephemeral queues."""
    clock: Clock
    epochs: Mapping[int, int]
    """Of the slots that this node has now."""
    counters: Counters


class CommitLoop(Commits):
    """Seals, applies, answers; as many commits at a time as the engine can do, one in each slot."""

    spans_slots = True

    def __init__(self, ground: Ground, slot: int | None = None) -> None:
        """`slot` is the only one that its rounds are of; None where they may be of several."""
        self._store, self._memory, self._clock, self._epochs, self._counters = ground
        self._slot = slot
        self._pacing = Pacing(is_remote=self._store.capabilities.is_remote)
        self._loop = asyncio.get_running_loop()
        self._rounds_max = self._store.capabilities.commits_under_way
        self._pending = Pending()
        self._is_scheduled = False
        self._rounds: list[Round] = []
        """Those under way."""
        self._lost: PenstockError | None = None
        """Why the next round fails before it begins; it does when nothing is under way."""
        self._room: list[asyncio.Future[None]] = []
        self._deferral: asyncio.TimerHandle | None = None
        """When deferred changes get a commit of their own."""
        self._rests: list[asyncio.Future[None]] = []
        """Done when a round has ended."""
        self._closed = False
        self.count = 0
        self.failed = 0

    def attach(self, host: CommitHost) -> None:
        """Tell the host of every commit; before the first one."""
        self._host = host

    # What callers do --------------------------------------------------------------------------------------

    def commit(
        self,
        lane: Lane | None = None,
        *,
        slot: int | None = None,  # noqa: ARG002 - it waits for everything
        result: Any = None,
        unit: Unit | None = None,
        deferred: bool = False,
    ) -> Ticket[Any]:
        if self._closed:
            return Ticket.failed(Closed("the broker is closed"))
        pending, ticket = self._pending, Ticket(result)
        if lane is not None:
            pending.lanes[lane.id] = lane
            if lane.has_died:
                self._host.copy_dead(lane)
        elif result is None:
            pending.is_barrier = True
        if deferred:
            pending.deferred.append(ticket)
            if not pending.is_wanted and self._deferral is None:
                self._deferral = self._loop.call_later(DEFERRED_SECONDS, self.flush)
            return ticket
        pending.tickets.append(ticket)
        pending.callers += 1
        if unit is not None:
            pending.publishes.append((ticket, unit))
        pending.is_wanted = True  # also where a turn is scheduled: that may be of what was pending before
        if not self._is_scheduled:
            self._schedule()
        return ticket

    def touch(self, lane: Lane) -> None:
        self._pending.lanes[lane.id] = lane
        if lane.has_died:
            self._host.copy_dead(lane)
        self._pending.is_wanted = True
        if not self._is_scheduled:
            self._schedule()

    def amend(self, slot: int | None) -> Pending:
        self._schedule()
        pending = self._pending
        pending.is_plain = False
        if slot is not None:
            pending.slots.add(slot)
        return pending

    def broken(self, lane: Lane, failure: AssertionError) -> PenstockError:
        self._lost = contradicted(f"lane {lane.id}", failure)
        self.touch(lane)
        return self._lost

    def flush(self) -> None:
        self._end_deferral()
        if self._pending.deferred:
            self._schedule()

    def probe(self) -> Ticket[None]:
        if self._closed:
            return Ticket.failed(Closed("the broker is closed"))
        ticket: Ticket[None] = Ticket()
        self._pending.probes.append(ticket)
        self._schedule()
        return ticket

    # What is pending --------------------------------------------------------------------------------------

    async def publishes_settled(self) -> None:
        while self._pending.publishes or any(each.pending.publishes for each in self._rounds):
            await self._until(self._rests)

    async def catalog_settled(self) -> None:
        """At once: a round that changes the catalog goes alone, and takes what is pending with it when it fails."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and nothing pending that is to be committed at once."""
        return not (self._is_scheduled or self._rounds or self._pending.has_callers)

    @property
    def under_way(self) -> int:
        """How many commits are."""
        return len(self._rounds)

    @property
    def pending_bytes(self) -> int:
        return self._pending.bytes

    def holds(self, lane: Lane) -> bool:
        id = lane.id
        return id in self._pending.lanes or any(id == one.id for each in self._rounds for one, _ in each.sealed)

    def concerns_slots(self, slots: set[int]) -> bool:
        return not slots.isdisjoint(self._pending.all_slots().union(*(each.slots for each in self._rounds)))

    def give_up(self, slots: set[int], error: PenstockError) -> None:
        if not slots.isdisjoint(self._pending.all_slots()):
            self._lost = error
            self._schedule()

    def has_room(self, size: int) -> bool:
        return not self._pending.bytes or self._pending.bytes + size <= PENDING_BYTES_MAX

    def take_room(self, size: int, slot: int | None) -> None:  # noqa: ARG002 - the room is one for all
        self._pending.bytes += size

    async def room(self, size: int, slot: int | None) -> None:
        while not self.has_room(size):
            await self.sealed()
        self.take_room(size, slot)

    async def sealed(self) -> None:
        """Wait until what is pending has become a commit."""
        self._schedule()  # what was counted and then refused never asked for a commit
        await self._until(self._room)

    # A round ----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Have a round soon: after what is ready to run now, so that everything it changes shares the commit."""
        self._pending.is_wanted = True
        if not self._is_scheduled and not self._closed and self._may_begin():
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _may_begin(self) -> bool:
        """Whether what is pending may be committed beside the rounds under way."""
        if not self._rounds:
            return True
        pending = self._pending
        if len(self._rounds) >= self._rounds_max or self._lost is not None or not pending.may_overlap:
            return False
        last = self._host.last_slot()
        slots = pending.all_slots() if last is None else pending.all_slots() | {last}
        return all(each.pending.may_overlap and slots.isdisjoint(each.slots) for each in self._rounds)

    def _turn(self) -> None:
        """One turn of the event loop while a round is scheduled: wait for company, or begin."""
        if self._pacing.should_wait(self._pending):
            self._loop.call_soon(self._turn)
            return
        try:
            if self._lost is None and self._may_begin():
                self._serve_unsealed()
        finally:
            self._is_scheduled = False  # not before: what was handed out goes into this round
        if not self._may_begin():
            return  # the end of a round that is under way schedules the next
        if self._lost is None:
            self._begin()
        else:
            error, self._lost = self._lost, None
            self._fail(Round(Pending(), []), error)
            self._next()

    def _begin(self) -> None:
        """Commit what is pending; what is changed from here on is for the next round."""
        pending, self._pending = self._pending, Pending()
        self._end_deferral()
        try:
            current = self._seal(pending)
        except AssertionError as failure:
            self._fail(Round(pending, []), contradicted("what is to be committed", failure))
            self._next()
            return
        self._apply(current)

    def _seal(self, pending: Pending) -> Round:
        """Make a commit of what was pending."""
        now_ms = self._clock.now_ms()
        sealed: list[tuple[Lane, Sealed]] = []
        for lane in pending.lanes.values():
            if not self._is_sealed_now(lane, pending):
                continue
            part = lane.seal(now_ms)
            if part is not None:
                sealed.append((lane, part))
        outbox, traces = self._host.sealed(sealed, now_ms, self._slot)
        current = Round(pending, sealed)
        build(current, outbox, traces, self._epochs, self._slot, self._host.stamp)
        _wake(self._room)
        return current

    def _is_sealed_now(self, lane: Lane, pending: Pending) -> bool:
        """What was still done to a queue that is deleted goes with it."""
        host = self._host
        is_current = host.is_current(lane)
        assert is_current or not lane.dirty or host.is_deleted(lane), f"lane {lane.id} was dropped with changes"
        return is_current and not host.is_sealed_last(lane) and lane.id not in pending.lanes_deleted

    def _serve_unsealed(self) -> None:
        """Hand a message that a consumer waits for out in the commit that publishes it: one instead of two."""
        pending = self._pending
        callers = pending.callers
        with suppress(PenstockError):  # a lane contradicted itself: this round is lost
            for lane in list(pending.lanes.values()):
                if lane.parts and self._host.is_current(lane) and lane.id not in pending.lanes_deleted:
                    self._host.before_seal(lane)
        pending.callers = callers  # a claim that stood in line is served by others, and does not come of itself

    def _end_deferral(self) -> None:
        if self._deferral is not None:
            self._deferral.cancel()
            self._deferral = None

    def _apply(self, current: Round) -> None:
        """Hand a round to the store, and then to memory. Where nothing is for the store, callers may probe that."""
        self._rounds.append(current)
        commit = current.durable
        if commit is not None:
            began = perf_counter()
            ticket = current.applying = self._store.apply(commit)
            ticket.then(partial(self._applied, current, commit, began))
        elif current.pending.probes:
            self._probe(current)
        else:
            self._apply_rest(current)

    def _applied(self, current: Round, commit: Commit, began: float, ticket: Ticket[None]) -> None:
        """The store has the round's commit, or failed."""
        seconds = perf_counter() - began
        error = self._explained(ticket.error)
        if current.pending.probes:
            _tell(current.pending.probes, error)
        if error is not None:
            self._end(current, error)
            return
        self._apply_rest(current)
        self._counters.applied(commit, seconds)

    def _apply_rest(self, current: Round) -> None:
        """Hand to memory what is for memory; where nothing is, the round ends."""
        if current.ephemeral is None:
            self._end(current, None)
        else:
            current.applying = self._memory.apply(current.ephemeral)
            current.applying.then(lambda ticket: self._end(current, self._explained(ticket.error)))

    def _end(self, current: Round, error: PenstockError | None) -> None:
        self._rounds.remove(current)
        if error is None:
            self._answer(current)
        else:
            self._fail(current, error)
        self._next()

    def _next(self) -> None:
        """The round is over: begin another one, where a caller wants it."""
        if (self._pending.is_wanted and self._pending.has_callers) or self._room or self._lost is not None:
            self._schedule()
        _wake(self._rests)

    def _probe(self, current: Round) -> None:
        """Apply an empty commit, for callers who ask whether that succeeds. Others do not wait for it."""
        if current.is_empty:
            self._answer(current)
        commit = Commit(epochs=any_epoch(self._epochs, self._slot))
        began = perf_counter()
        current.applying = self._store.apply(commit)
        current.applying.then(partial(self._probed, current, commit, began))

    def _probed(self, current: Round, commit: Commit, began: float, ticket: Ticket[None]) -> None:
        """If a probe failed nothing is in doubt, so only its callers are told."""
        error = self._explained(ticket.error)
        if error is None:
            self._counters.applied(commit, perf_counter() - began)
        elif isinstance(error, Fenced):
            self._host.lost(set(), False, error)
        _tell(current.pending.probes, error)
        if current.is_empty:
            self._rounds.remove(current)
            self._next()
        else:
            self._apply_rest(current)

    def _explained(self, failure: BaseException | None) -> PenstockError | None:
        """Why a commit failed, for its callers; None where it did not."""
        if failure is None:
            return None
        self._counters.commits_failed += 1
        if isinstance(failure, PenstockError):
            return failure
        if isinstance(failure, asyncio.CancelledError):
            return Closed("the broker was closed while committing")
        return Unavailable(f"the store failed in an unexpected way: {failure!r}")

    # Answers ----------------------------------------------------------------------------------------------

    def _answer(self, current: Round) -> None:
        """A round is durable. What later reads and other consumers need of it comes behind its callers' answers."""
        self.count += 1
        pending = current.pending
        self._pacing.answered(pending.callers + self._pending.callers)
        for lane, part in current.sealed:
            try:
                lane.committed(part)
            except AssertionError as failure:  # it is durable: only what is in memory of it is wrong
                self.broken(lane, failure)
        for action in pending.after:
            action()
        _tell(pending.tickets, None)
        if pending.deferred:
            _tell(pending.deferred, None)
        self._host.committed(current.sealed, current.durable)

    def _fail(self, current: Round, error: PenstockError) -> None:
        """Nothing that was changed in memory since the last good commit can be trusted.

        What is pending fails with it, though not while lanes of it are in another round: that may still succeed.
        """
        self.failed += 1
        pending = current.pending
        if self._rounds:
            self._lost, behind = error, Pending()
        else:
            behind, self._pending = self._pending, Pending()
        # Whether deleted lanes are gone is not known either: who still wants them has to ask the store.
        lost = {*current.lanes(), *behind.lanes, *behind.lanes_deleted}
        self._host.lost(lost, pending.changes_catalog or behind.changes_catalog, error)
        kept: set[Ticket[Any]] = set()
        if pending.doubt is not None:  # of what bears no stamp nobody could tell whether it happened
            kept |= self._host.rescue(pending.publishes, pending.doubt, error)
        kept |= self._host.rescue(behind.publishes, None, error)  # those were never tried
        for tickets in (pending.tickets, behind.tickets, pending.deferred, behind.deferred, behind.probes):
            _tell([ticket for ticket in tickets if ticket not in kept], error)

    async def close(self) -> None:
        await self.rest()
        self._closed = True

    async def rest(self) -> None:
        """Commit what is pending, and wait until nothing is under way."""
        while not self.is_idle:
            self.flush()
            await self._until(self._rests)

    async def _until(self, waiting: list[asyncio.Future[None]]) -> None:
        """Wait with the others in this list, until they are all woken."""
        future: asyncio.Future[None] = self._loop.create_future()
        waiting.append(future)
        await future


def contradicted(what: str, failure: AssertionError) -> PenstockError:
    """What callers are told when an assertion of the core fails: nothing of it is committed."""
    log.error("%s contradicted itself in memory, and is read again from the store", what, exc_info=failure)
    return Unavailable(f"{what} contradicted itself in memory ({failure}), and is read again from the store")


def _tell(tickets: list[Ticket[Any]], error: PenstockError | None) -> None:
    if error is None:
        end_all(tickets)
    else:
        for ticket in tickets:
            ticket.fail(error)


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()
