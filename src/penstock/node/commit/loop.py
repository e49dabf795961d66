"""The commit loop: everything that changed while one commit was under way goes into the next.

Callers change lanes at once and get a future; it is done when the commit that holds their change is durable.
If a commit fails, its callers and those behind it are told, and every lane that had changed is given up, to be
loaded anew: what is in the store is the truth. Next stop of a message: `store/contract.py`, and after it back
up through `node/consume/waiters.py` to whoever waits for it.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from penstock.core.lane import Lane, Sealed
from penstock.model.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.model.rows import REGISTRAR_SLOT, Commit, LaneChange, OutboxRow, TraceRow, slot_of
from penstock.node.catalog import EPHEMERAL_FROM
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.pending import Pending, Promise
from penstock.node.observe.counters import Counters
from penstock.store.checks import changes_enqueued
from penstock.store.contract import Store

if TYPE_CHECKING:
    from penstock.api.results import Receipt
    from penstock.node.commit.pending import Waiting
    from penstock.node.spool.records import Doubt
    from penstock.node.spool.spool import Unit

PENDING_BYTES_MAX = 16 * 1024 * 1024
COMPANY_MAX = 16
"""Up to so many callers in step are waited for: with more, the commit is large anyway."""
TURNS_MAX = 80
"""Turns of the loop, of some microseconds each, that a commit waits for company."""
TURNS_REMOTE = 400
"""The same where a commit takes a database a millisecond: who is not in it waits for two of them."""
PLENTY_BYTES = 768 * 1024
"""With so much to write nobody is waited for: that takes the disk longer than a sync, and the others come meanwhile."""
TURNS_PACED = 20
"""For who publishes without waiting for answers: it comes when it comes, and perhaps just now."""
ALONE_COMMITS = 32
"""After so many commits in a row of one waiter each, nobody else is taken to be there; one in so many looks again."""
RIDE_SECONDS = 0.005
"""So long a change that nobody waits for may wait for a commit to go with, before it gets one of its own."""


class Host(Protocol):
    """What the commit loop needs of its node."""

    def is_sealed_last(self, lane: Lane) -> bool:
        """Whether the lane takes in what the others' changes say, and is sealed by `sealed`."""

    def before_seal(self, lane: Lane) -> None:
        """The lane is about to be sealed, with new messages."""

    def is_current(self, lane: Lane) -> bool:
        """Whether this is the lane as it is loaded now: not one of a queue that was deleted meanwhile."""

    def sealed(self, sealed: list[tuple[Lane, Sealed]], now_ms: int) -> tuple[list[OutboxRow], list[TraceRow]]:
        """Lanes were sealed: seal the last one and add it to the list; what goes to the outbox and into traces."""

    def committed(self, sealed: list[tuple[Lane, Sealed]]) -> None:
        """A commit is durable."""

    def stamp(self, commit: Commit) -> Doubt | None:
        """Put into a commit what tells later whether it happened; None where that cannot be."""

    def lost(self, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        """A commit failed: these lanes (and the catalog) must be loaded again."""

    def rescue(self, publishes: list[Waiting], doubt: Doubt | None, error: PenstockError) -> None:
        """Answer those of a failed commit that can be kept elsewhere; with a doubt, it may have happened."""


class CommitLoop:
    """Seals, applies, answers; one commit at a time."""

    def __init__(
        self, host: Host, store: Store, memory: Store, clock: Clock, ownership: Ownership, counters: Counters
    ) -> None:
        self._host = host
        self._counters = counters
        self._store = store
        self._callback_log = store.callback_log
        self._turns_max = TURNS_REMOTE if store.capabilities.is_remote else TURNS_MAX
        self._memory = memory
        self._clock = clock
        self._ownership = ownership
        self._slots_under_way: set[int] = set()
        self._lost: PenstockError | None = None
        self._loop = asyncio.get_running_loop()
        self._pending = Pending()
        self._under_way: asyncio.Future[None] | None = None
        self._lanes_under_way: set[int] = set()
        self._scheduled = False
        self._room: list[asyncio.Future[None]] = []
        self._closed = False
        self._company = 0
        self._alone = 0
        """How many commits in a row had one waiter, and nobody came meanwhile."""
        self._turns_left = self._turns = 0
        self._riding: asyncio.TimerHandle | None = None
        self.count = 0
        self.failed = 0
        """How many commits have failed: what was changed before one did may not be there, and comes before the rest."""

    # What callers do --------------------------------------------------------------------------------------

    def touch(self, lane: Lane) -> None:
        """The lane changed: take it into the next commit."""
        self._pending.lanes[lane.id] = lane
        self._schedule()

    def wait(self, unit: Unit | None = None, *, turns: int = TURNS_MAX) -> asyncio.Future[None]:
        """Done when all that was changed so far is durable; raises why not, or that the unit was kept elsewhere.

        The commit after this one may wait so many turns for the caller to come again; none for who does not.
        """
        future = self._loop.create_future()
        if self._closed:
            future.set_exception(Closed("the broker is closed"))
            return future
        self._pending.waiters.append(future)
        self._expect_again(turns)
        if unit is not None:
            self._pending.publishes.append((future, unit))
        self._schedule()
        return future

    def _expect_again(self, turns: int) -> None:
        pending = self._pending
        if turns:
            pending.callers += 1
            pending.turns = max(pending.turns, turns)

    def promise(self, unit: Unit | None = None, receipt: Receipt | None = None) -> Promise:
        """As `wait`, for who sets `then` of the promise before the event loop goes on."""
        if self._closed:
            raise Closed("the broker is closed")
        promise = Promise(receipt)
        self._pending.promises.append(promise)
        if unit is not None:
            self._pending.publishes.append((promise, unit))
        self._expect_again(TURNS_MAX)
        self._schedule()
        return promise

    def changed(self, lane: Lane, *, turns: int = TURNS_MAX) -> asyncio.Future[None]:
        """`touch` and `wait` in one."""
        self._pending.lanes[lane.id] = lane
        return self.wait(turns=turns)

    def changed_in_passing(self, lane: Lane) -> asyncio.Future[None]:
        """As `changed`, by somebody who can wait: it goes with the next commit that others need, or by itself soon."""
        future = self._loop.create_future()
        if self._closed:
            future.set_exception(Closed("the broker is closed"))
            return future
        pending = self._pending
        pending.lanes[lane.id] = lane
        pending.riders.append(future)
        if not pending.is_wanted and self._riding is None:
            self._riding = self._loop.call_later(RIDE_SECONDS, self.hurry)
        return future

    def hurry(self) -> None:
        """Let what can wait wait no longer."""
        if self._riding is not None:
            self._riding.cancel()
            self._riding = None
        if self._pending.riders:
            self._schedule()

    def probe(self) -> asyncio.Future[None]:
        """Done when the store has taken a commit from now on, an empty one where nothing changed; raises why not."""
        future = self._loop.create_future()
        if self._closed:
            future.set_exception(Closed("the broker is closed"))
            return future
        self._pending.probes.append(future)
        self._schedule()
        return future

    def amend(self) -> Pending:
        """The next commit, to add rows and callbacks to it; schedules that commit."""
        self._schedule()
        self._pending.is_plain = False
        return self._pending

    @property
    def pending_bytes(self) -> int:
        """What publishers have put into the next commit."""
        return self._pending.bytes

    def concerns(self, lane: int) -> bool:
        """Whether the commit under way or the next one holds something of a lane."""
        return lane in self._pending.lanes or lane in self._lanes_under_way

    def concerns_slots(self, slots: set[int]) -> bool:
        """Whether the commit under way or the next one holds something of these slots."""
        pending = self._pending
        if not slots.isdisjoint(self._slots_under_way) or not slots.isdisjoint(pending.slots):
            return True
        return any(slot_of(lane) in slots for lane in (*pending.lanes, *pending.raw, *pending.lanes_deleted))

    def give_up(self, slots: set[int], error: PenstockError) -> None:
        """These slots are another node's: the next commit, if it holds something of them, fails before it begins.

        The one under way is refused by the store, as far as it is about them.
        """
        pending = self._pending
        named = {*pending.slots, *(slot_of(lane) for lane in (*pending.lanes, *pending.raw, *pending.lanes_deleted))}
        if not slots.isdisjoint(named):
            self._lost = error
            self._schedule()

    def has_room(self, size: int) -> bool:
        """Whether so many more bytes may be pending now; the first may always."""
        return not self._pending.bytes or self._pending.bytes + size <= PENDING_BYTES_MAX

    def take_room(self, size: int) -> None:
        """So many more bytes are pending, for which there is room."""
        self._pending.bytes += size

    async def room(self, size: int) -> None:
        """Wait until so many more bytes may be pending: the back-pressure on publishers."""
        while not self.has_room(size):
            future = self._loop.create_future()
            self._room.append(future)
            self._schedule()  # what was counted and then refused never asked for a commit
            await future
        self.take_room(size)

    # The loop ---------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._pending.is_wanted = True
        if not self._scheduled and self._under_way is None and not self._closed:
            self._scheduled = True
            self._turns_left = self._turns_for_company()
            # After what is ready to run now: everything it changes shares the commit.
            self._loop.call_soon(self._begin)

    def _turns_for_company(self) -> int:
        if not 1 < self._company <= COMPANY_MAX:
            return 0
        return self._turns_max if self._turns == TURNS_MAX else self._turns

    def _begin(self) -> None:
        if self._turns_left and self._pending.callers < self._company and self._pending.bytes < PLENTY_BYTES:
            # A few callers in step: those who were just answered ask again within moments. Without them now, they
            # would wait for this commit and then for their own; together they need one instead of two.
            self._turns_left -= 1
            self._loop.call_soon(self._begin)
            return
        if self._lost is None:
            self._serve_unsealed()
        self._scheduled = False
        if self._lost is not None:
            error, self._lost = self._lost, None
            self._fail(Pending(), [], error)
            self._go_on()
            return
        pending, self._pending = self._pending, Pending()
        if self._riding is not None:
            self._riding.cancel()
            self._riding = None
        now_ms = self._clock.now_ms()
        sealed: list[tuple[Lane, Sealed]] = []
        for lane in pending.lanes.values():
            if self._host.is_sealed_last(lane) or not self._host.is_current(lane) or lane.id in pending.lanes_deleted:
                continue  # what was still done to a queue that is deleted goes with it
            part = lane.seal(now_ms)
            if part is not None:
                sealed.append((lane, part))
        outbox, traces = self._host.sealed(sealed, now_ms)
        durable, ephemeral = self._split(pending, sealed, outbox, traces)
        for room in self._room:
            if not room.done():
                room.set_result(None)
        self._room.clear()
        if durable is None and ephemeral is None:
            if pending.probes:  # under way before anything else can begin
                self._under_way = self._loop.create_task(self._apply_probe(pending.probes))
            self._answer(pending, sealed)
            return
        if durable is not None and ephemeral is None and self._apply_soon(pending, sealed, durable):
            return
        under_way = self._loop.create_task(self._apply(pending, sealed, durable, ephemeral))
        self._is_begun(under_way, sealed, durable)

    def _is_begun(
        self, under_way: asyncio.Future[None], sealed: list[tuple[Lane, Sealed]], durable: Commit | None
    ) -> None:
        self._under_way = under_way
        self._lanes_under_way = {lane.id for lane, _ in sealed}
        self._slots_under_way = set() if durable is None else set(durable.epochs)

    def _is_over(self) -> None:
        self._under_way = None
        self._lanes_under_way = set()
        self._slots_under_way = set()

    def _serve_unsealed(self) -> None:
        """A message that somebody waits for is handed out in the commit that publishes it: one instead of two."""
        pending = self._pending
        callers, turns = pending.callers, pending.turns
        for lane in list(pending.lanes.values()):
            if lane.parts and self._host.is_current(lane) and lane.id not in pending.lanes_deleted:
                self._host.before_seal(lane)
        pending.callers, pending.turns = callers, turns  # who stood in line does not come of itself

    def _split(
        self, pending: Pending, sealed: list[tuple[Lane, Sealed]], outbox: list[OutboxRow], traces: list[TraceRow]
    ) -> tuple[Commit | None, Commit | None]:
        """The commit for the store and the one for memory, each None where it is empty."""
        kept = [part.change for lane, part in sealed if lane.id < EPHEMERAL_FROM]
        has_ephemeral = len(kept) < len(sealed) or bool(pending.lanes_deleted)
        if pending.is_plain and not (has_ephemeral or outbox or traces or pending.publishes):
            kept.sort(key=_lane)
            epochs = {slot: self._ownership.epoch(slot) for slot in [slot_of(change.lane) for change in kept]}
            return (Commit(epochs=epochs, lanes=kept) if kept else None, None)
        kept += pending.raw.values()
        durable = Commit(lanes=kept, outbox=pending.outbox + outbox, traces=pending.traces + traces)
        if pending.catalog or pending.catalog_deleted or pending.lanes_deleted:
            durable.lanes_deleted = [id for id in pending.lanes_deleted if id < EPHEMERAL_FROM]
            durable.catalog = [row for row in pending.catalog if row.id < EPHEMERAL_FROM]
            durable.catalog_deleted = [item for item in pending.catalog_deleted if item[1] < EPHEMERAL_FROM]
        durable.outbox_deleted = pending.outbox_deleted
        durable.traces_expired_ms = pending.traces_expired_ms
        durable.enqueued_deleted = pending.enqueued_deleted
        durable.enqueued_failed = pending.enqueued_failed
        durable.enqueued_retried = pending.enqueued_retried
        if pending.publishes and (durable.lanes or durable.outbox):
            pending.doubt = self._host.stamp(durable)
        durable.lanes.sort(key=_lane)
        slots = {slot_of(change.lane) for change in durable.lanes} | pending.slots
        slots.update(map(slot_of, durable.lanes_deleted))
        if changes_enqueued(durable):
            # Who is no longer the registrar has read rows that another one takes too.
            slots.add(REGISTRAR_SLOT)
        # A slot that was lost meanwhile has no epoch here, and epoch 0 is nobody's: the store refuses it.
        durable.epochs = {slot: self._ownership.epoch(slot) for slot in slots} or self._any_epoch()
        ephemeral = _ephemeral(pending, sealed) if has_ephemeral else None
        return (durable if _has_rows(durable) else None, ephemeral)

    def _any_epoch(self) -> dict[int, int]:
        """A commit about no slot is fenced all the same where this node has any."""
        return dict(islice(self._ownership.epochs.items(), 1))

    def _apply_soon(self, pending: Pending, sealed: list[tuple[Lane, Sealed]], durable: Commit) -> bool:
        """Apply without a task, where the store can; whether it was begun."""
        if self._callback_log is None:
            return False
        began = perf_counter()
        under_way: asyncio.Future[None] = self._loop.create_future()

        def done(failure: Exception | None) -> None:
            seconds = perf_counter() - began
            error = None if failure is None else self._failed(failure)
            _settle(pending.probes, error)
            self._is_over()
            under_way.set_result(None)
            self._end(pending, sealed, error)
            if error is None:
                self._counters.applied(durable, seconds)

        self._is_begun(under_way, sealed, durable)
        if not self._callback_log.apply_soon(durable, done, is_alone=self._is_alone()):
            self._is_over()
            return False
        return True

    def _is_alone(self) -> bool:
        """Whether one caller asks, is answered and asks again, and nobody else does anything."""
        # While the loop waits for the disk it hears of nobody, so now and then it does not.
        return self._alone > ALONE_COMMITS and self._alone % ALONE_COMMITS != 0

    async def _apply(
        self,
        pending: Pending,
        sealed: list[tuple[Lane, Sealed]],
        durable: Commit | None,
        ephemeral: Commit | None,
    ) -> None:
        error = None
        if durable is not None:
            error = await self._try(self._store, durable)
            _settle(pending.probes, error)
        elif pending.probes:
            await self._probe(pending.probes)
        if ephemeral is not None and error is None:
            error = await self._try(self._memory, ephemeral)
        self._is_over()
        self._end(pending, sealed, error)

    def _end(self, pending: Pending, sealed: list[tuple[Lane, Sealed]], error: PenstockError | None) -> None:
        if error is None:
            self._answer(pending, sealed)
        else:
            self._fail(pending, sealed, error)
        self._go_on()

    async def _try(self, store: Store, commit: Commit) -> PenstockError | None:
        """Apply a commit; why not, if it fails."""
        began = perf_counter()
        try:
            await store.apply(commit)
        except (Exception, asyncio.CancelledError) as failure:
            return self._failed(failure)
        if store is self._store:
            self._counters.applied(commit, perf_counter() - began)
        return None

    def _failed(self, failure: BaseException) -> PenstockError:
        self._counters.commits_failed += 1
        if isinstance(failure, PenstockError):
            return failure
        if isinstance(failure, asyncio.CancelledError):
            return Closed("the broker was closed while committing")
        return Unavailable(f"the store failed in an unexpected way: {failure!r}")

    async def _apply_probe(self, probes: list[asyncio.Future[None]]) -> None:
        await self._probe(probes)
        self._under_way = None
        self._go_on()

    async def _probe(self, probes: list[asyncio.Future[None]]) -> None:
        """An empty commit. If it fails nothing is in doubt, so nobody is told but those who asked."""
        error = await self._try(self._store, Commit(epochs=self._any_epoch()))
        if isinstance(error, Fenced):
            self._host.lost(set(), False, error)
        _settle(probes, error)

    def _go_on(self) -> None:
        if (self._pending.is_wanted and self._has_pending()) or self._room:
            self._schedule()

    def _has_pending(self) -> bool:
        pending = self._pending
        return bool(pending.lanes or pending.waiting or pending.probes)

    def _answer(self, pending: Pending, sealed: list[tuple[Lane, Sealed]]) -> None:
        self.count += 1
        self._company = pending.callers + self._pending.callers
        self._turns = max(pending.turns, self._pending.turns)
        is_one = pending.waiting + self._pending.waiting <= 1 and not pending.riders
        self._alone = self._alone + 1 if is_one else 0
        for lane, part in sealed:
            lane.committed(part)
        for action in pending.after:
            action()
        self._keep(pending.promises, None)
        _settle(pending.waiters, None)
        _settle(pending.riders, None)
        self._host.committed(sealed)

    def _fail(self, pending: Pending, sealed: list[tuple[Lane, Sealed]], error: PenstockError) -> None:
        """Nothing that was changed in memory since the last good commit can be trusted."""
        self.failed += 1
        behind, self._pending = self._pending, Pending()
        lost = {lane.id for lane, _ in sealed} | set(pending.lanes) | set(behind.lanes)
        # Nobody knows whether these are gone: who still wants them has to ask the store.
        lost |= {*pending.lanes_deleted, *behind.lanes_deleted}
        catalog = any(part.catalog or part.catalog_deleted or part.lanes_deleted for part in (pending, behind))
        self._host.lost(lost, catalog, error)
        if pending.doubt is not None:  # of what bears no stamp nobody could tell whether it happened
            self._host.rescue(pending.publishes, pending.doubt, error)
        self._host.rescue(behind.publishes, None, error)  # those were never tried
        self._keep(pending.promises + behind.promises, error)
        _settle(pending.waiters + behind.waiters, error)
        _settle(pending.riders + behind.riders, error)
        _settle(behind.probes, error)

    def _keep(self, promises: list[Promise], error: PenstockError | None) -> None:
        for promise in promises:
            if not promise.is_rescued:
                try:
                    promise.tell(error)
                except Exception as failure:  # one answer that cannot be given is no reason to give no other
                    self._loop.call_exception_handler({"message": "telling of a commit failed", "exception": failure})

    async def close(self) -> None:
        """Commit what is pending, then take nothing more."""
        while self._scheduled or self._under_way is not None or self._has_pending():
            self.hurry()
            if self._under_way is not None:
                await asyncio.wait([self._under_way])
            else:
                await asyncio.sleep(0)
        self._closed = True


def _settle(futures: list[asyncio.Future[None]], error: PenstockError | None) -> None:
    """Tell those who wait, but for those who went away."""
    for future in futures:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def _lane(change: LaneChange) -> int:
    return change.lane


def _ephemeral(pending: Pending, sealed: list[tuple[Lane, Sealed]]) -> Commit | None:
    """The commit for memory; None where it is empty."""
    lanes = sorted((part.change for lane, part in sealed if lane.id >= EPHEMERAL_FROM), key=_lane)
    deleted = [id for id in pending.lanes_deleted if id >= EPHEMERAL_FROM]
    if not lanes and not deleted:
        return None
    epochs = {slot_of(id): 1 for id in (*map(_lane, lanes), *deleted)}
    return Commit(epochs=epochs, lanes=lanes, lanes_deleted=deleted)


def _has_rows(commit: Commit) -> bool:
    return bool(
        commit.lanes
        or commit.lanes_deleted
        or commit.catalog
        or commit.catalog_deleted
        or commit.outbox
        or commit.outbox_deleted
        or commit.traces
        or commit.traces_expired_ms is not None
        or changes_enqueued(commit)
    )
