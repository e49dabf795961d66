"""One node among others on the same store: it says that it is there, takes its share of the slots, and hands some on.

Every `heartbeat_ms` the node asks the store who is there and who owns what, in one round trip however many queues
there are. It takes slots that nobody has up to its fair share, sheds what is above that, and lets go of what the
store says is another's. What taking and letting go of slots means for lanes and timers is in `slots.py`, what others
declared in `catalog_feed.py`. How an operation finds its owner is in `node/broker/cluster.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

import msgspec

from penstock.model.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.model.rows import SLOTS, ClusterView, Member, NodeRow, slot_of
from penstock.node.clock import Clock, StoreClock
from penstock.node.cluster.catalog_feed import CatalogFeed
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import Landed, Landing
from penstock.node.cluster.renewal import Renewal
from penstock.node.cluster.slots import Slots
from penstock.node.consume.sessions import Sessions
from penstock.node.lifecycle import Lifecycle, Numbers
from penstock.node.session import Session
from penstock.node.spool.spool import Spool
from penstock.node.timers import Tasks
from penstock.store.contract import Coordination
from penstock.version import VERSION

SHED_AT_ONCE: Final = 8
"""Slots that are handed on at one heartbeat: their queues pause for some milliseconds, the others do not."""
TOLD_WITHIN_S: Final = 1.0
"""How long a declaration waits for the other nodes to have read it."""
FIRST_SLOTS_WITHIN_S: Final = 30.0
WATCH_S: Final = 0.05
KEPT_S: Final = 10.0
"""How long a slot stays where it was asked for: a consumer that settles leases of two owners once does so again."""
OUTBOX_EVERY: Final = 4
"""Heartbeats between two looks into the outbox for what nobody has announced."""

log = logging.getLogger("penstock.cluster")

TIME_ASKED = 5
TIME_QUICK_S = 0.005
"""What the store's time is, is asked so often unless an answer is as quick as this."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_ms: int = 500
    lease_ms: int = 2_000


class Peers(Protocol):
    """How other nodes are reached."""

    async def poke(self, url: str) -> None:
        """Let a node look at the store now; returns when it has, or raises."""

    async def end_session(self, url: str, session: str) -> None:
        """Let a node end what a session has there."""

    async def hand_over(self, url: str, slots: list[int], to: int) -> None:
        """Ask a node to hand over slots that it owns."""

    async def landed(self, url: str, landings: list[Landing]) -> list[Landed]:
        """Let a node append what was published to its queues; where that went."""


@dataclass(eq=False, repr=False)
class Cluster:
    """This node's place among the others."""

    _store: Coordination
    catalog_feed: CatalogFeed
    _slots: Slots
    _sessions: Sessions
    _outbox: Outbox
    _spool: Spool
    _clock: Clock
    _tasks: Tasks
    _numbers: Numbers
    _lifecycle: Lifecycle
    ownership: Ownership
    _name: str
    options: ClusterOptions
    _is_alone: bool = False
    """It owns everything or nothing, as a broker inside of a program does that nobody can reach."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._url = ""
        self.peers: Peers | None = None
        """None while this node cannot reach others, nor they it."""
        self.ownership.name = self._name
        self.ownership.lease_for(inf if self._is_alone else self.options.lease_ms / 1000)
        self.secret = ""
        self._heard_at = 0.0
        self._patient_until = 0.0
        self._beating = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_leaving = False
        self.heartbeats_failed = 0
        self._renewal: Renewal | None = None

    # Questions --------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether this process leaves the others, or has left."""
        return self._is_leaving or self._lifecycle.closed

    @property
    def is_store_away(self) -> bool:
        """Whether publishes are kept here until the store is back, whoever owns their queues."""
        return self._spool.is_away

    @property
    def _reachable(self) -> Peers:
        """The way to other nodes; raises where there is none."""
        if self.peers is None:
            raise Unavailable("this node cannot reach others")
        return self.peers

    def check_serving(self) -> None:
        """Raise unless this node is a member that has its share, as far as it knows."""
        if not (self.ownership.view.is_member and self.ownership.is_heard and self._is_settled()):
            raise Unavailable("this node has not joined the others yet, or not again")

    @property
    def heartbeat_age_s(self) -> float:
        """Since the store last heard of this node."""
        return max(0.0, self._loop.time() - self._heard_at)

    # Life -------------------------------------------------------------------------------------------------

    async def join(self, url: str) -> None:
        """Become a member, reachable at a URL, and take a share of the slots."""
        self._url = url
        await self._learn_time()
        await self._join()
        self._start_renewal()
        await self._spool.open(self.secret)
        self._task = asyncio.get_running_loop().create_task(self._run())
        deadline = self._loop.time() + FIRST_SLOTS_WITHIN_S
        while not self._is_settled() and self._loop.time() < deadline:
            deadline = min(deadline, self._loop.time() + self._patience_s())
            await self.changed(self.options.heartbeat_ms / 1000)
        if not self._is_settled():
            names = ", ".join(sorted({row.name for row in self._other_rows()}))
            why = "a broker inside of a program" if self._is_alone else "a server"
            raise Unavailable(
                f"the store is in use by {names or 'nobody, but it gave no slots'}: {why} cannot have it beside that; "
                "stop it first"
            )

    def _start_renewal(self) -> None:
        lease_s = self.options.lease_ms / 1000
        renewing = self._store.renewing(max(1.0, lease_s))
        if renewing is not None:
            self._renewal = Renewal(renewing, self.ownership, lease_s, lambda: self._heard_at)
            self._renewal.start()

    @property
    def renewals(self) -> int:
        """Renewals of the lease that a thread made because the event loop was busy."""
        return 0 if self._renewal is None else self._renewal.count

    async def _learn_time(self) -> None:
        """Begin with the quickest of a few answers: a clock is wrong by up to half of what its first one took."""
        clock = self._clock
        if not isinstance(clock, StoreClock):
            return
        quickest: tuple[float, int, float, float] | None = None
        for _ in range(TIME_ASKED):
            asked_at = time.monotonic()
            now_ms = (await self._store.heartbeat(0)).now_ms
            answered_at = time.monotonic()
            answer = (answered_at - asked_at, now_ms, asked_at, answered_at)
            quickest = answer if quickest is None else min(quickest, answer)
            if quickest[0] < TIME_QUICK_S:
                break
        assert quickest is not None
        clock.follow(*quickest[1:])

    def _is_settled(self) -> bool:
        """Whether this node serves its share, or others have all that there is and will give it some."""
        if self._is_alone:
            return len(self.ownership.owned) == SLOTS
        holders = {row.node for row in self.ownership.view.slots}
        others = [row for row in self._other_rows() if row.incarnation in holders]
        return bool(self.ownership.owned) or (bool(others) and all(row.url for row in others) and 0 not in holders)

    def _other_rows(self) -> list[NodeRow]:
        """All that have joined and not left, also those that cannot be reached."""
        return [row for row in self.ownership.view.nodes if row.incarnation != self.ownership.incarnation]

    def _patience_s(self) -> float:
        """How long dead nodes that hold the slots may still count as live."""
        in_the_way = [row for row in self._other_rows() if self._is_alone or not row.url]
        if not in_the_way:
            return FIRST_SLOTS_WITHIN_S
        return max(row.lease_ms for row in in_the_way) / 1000 + 2 * self.options.heartbeat_ms / 1000

    async def _join(self) -> None:
        member = Member(self._name, self._url, VERSION, self.options.lease_ms)
        began = self._loop.time()
        joined = await self._store.join(member)
        self.secret = joined.secret
        self.ownership.joined(joined.incarnation)
        self._numbers.start(joined.incarnation)
        self._heard_at = began
        self.ownership.heard(began)
        log.info("%s joined as node %d", self._name, self.ownership.incarnation)

    async def leave(self) -> None:
        """Release everything gracefully; other nodes get the requests from then on."""
        if self._is_leaving:
            return
        self._is_leaving = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._renewal is not None:
            await self._renewal.stop()
        async with self._beating:
            try:
                await self._slots.hand_on(set(self.ownership.owned))
                await self._store.leave(self.ownership.incarnation)
            except PenstockError as error:
                log.warning("this node could not say that it leaves: %s", error)
        self.ownership.joined(0)
        self._tasks.spawn(self._watch())
        await self.poke_all()

    async def _watch(self) -> None:
        """Look who owns what after this node has left: operations that still come are forwarded until it stops."""
        while not self._lifecycle.closed:
            try:
                self.ownership.saw(await self._store.heartbeat(0))
            except PenstockError:
                await asyncio.sleep(WATCH_S)
            self._tell()
            await asyncio.sleep(WATCH_S)

    # The heartbeat ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        beats = 0
        while not self._lifecycle.closed and not self._is_leaving:  # a cancellation can get lost in `wait_for`
            try:
                await self.beat()
            except (PenstockError, TimeoutError) as error:
                self.heartbeats_failed += 1
                reason = str(error) or "the store did not answer in time"
                log.warning("no heartbeat: %s", reason)
                if not self.ownership.is_heard:
                    self._spool.found_away(Unavailable(f"no heartbeat for the lease: {reason}"))
            except Exception:
                self.heartbeats_failed += 1
                log.exception("a heartbeat failed in an unexpected way")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self.options.heartbeat_ms / 1000)
            self._wanted.clear()
            beats += 1
            if beats % OUTBOX_EVERY == 0:
                self._outbox.wake()  # a node that left a row here may have died before it told

    def look(self) -> None:
        """Look at the store soon: something may have changed."""
        self._wanted.set()

    async def changed(self, seconds: float) -> None:
        """Until the next look at the store, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def beat(self) -> None:
        """Say that this node is there; do what the store's answer asks for."""
        async with self._beating:
            began, asked_at = self._loop.time(), time.monotonic()
            view = await asyncio.wait_for(
                self._store.heartbeat(self.ownership.incarnation), max(1.0, self.options.lease_ms / 1000)
            )
            if isinstance(self._clock, StoreClock):
                self._clock.follow(view.now_ms, asked_at, time.monotonic())
            await self._take_in(view, began)
        self._tell()

    async def _take_in(self, view: ClusterView, began: float) -> None:
        before = {row.incarnation for row in self.ownership.view.nodes if row.is_live}
        self.ownership.saw(view)
        if self.ownership.had_company:
            self._tasks.spawn(self._spool.note_company())  # the heartbeat does not wait for this disk
        if not view.is_member:
            await self._rejoin()
            return
        lease_s = self.options.lease_ms / 1000
        if began - self._heard_at > lease_s:
            self._patient_until = began + lease_s  # the store was away, for the others too: let them be heard of first
        self._heard_at = began
        self.ownership.heard(began)
        lost = self.ownership.lost_in(view)
        if lost:
            self._lose(lost, f"slots {sorted(lost)} are another node's now")
        if view.catalog_version != self.catalog_feed.version:
            await self.catalog_feed.refresh()
        await self._balance(view)
        if self.ownership.starting:
            await self._slots.start(set(self.ownership.starting))
        gone = before - {row.incarnation for row in self.ownership.view.nodes if row.is_live}
        if gone:
            await self._sessions.end_all_of(gone)

    def _lose(self, lost: set[int], why: str) -> None:
        """The store has given these to others: nothing that is in memory of them may be used."""
        log.warning("%s: what was in memory of them is dropped", why)
        self.catalog_feed.forget()
        self._slots.lose(lost, Fenced(f"{why}; nothing of this was done unless it is found there"))

    async def _rejoin(self) -> None:
        log.warning("%s was declared dead while it was not heard of; it joins again", self._name)
        self._lose(set(self.ownership.epochs), "this node was declared dead")
        await self._join()
        self.ownership.saw(await self._store.heartbeat(self.ownership.incarnation))
        await self.catalog_feed.refresh()
        await self._balance(self.ownership.view)

    def fenced(self) -> None:
        """A commit was refused: until the store has said what is still this node's, nothing is."""
        self.ownership.doubt()
        self.look()

    # Fair share -------------------------------------------------------------------------------------------

    async def _balance(self, view: ClusterView) -> None:
        ownership = self.ownership
        live = [row for row in view.nodes if row.is_live and (row.url or row.incarnation == ownership.incarnation)]
        incarnations = {row.incarnation for row in view.nodes if row.is_live}
        if self._is_alone and len(incarnations) > 1:
            return
        if self._loop.time() < self._patient_until and len(incarnations) < len(view.nodes):
            return
        if any(not row.url for row in live if row.incarnation != ownership.incarnation) and not ownership.owned:
            return
        share = -(-SLOTS // max(len(live), 1))
        known = {row.slot: row for row in view.slots}
        # Also those whose taking or giving broke off: for the store they are this node's, so nobody else can take them.
        meant = {
            slot
            for slot, row in known.items()
            if slot not in ownership.epochs and ownership.incarnation == (row.node or row.meant_for)
        }
        free = [
            slot
            for slot in range(SLOTS)
            if slot not in ownership.epochs
            and slot not in meant
            and (
                slot not in known
                or (known[slot].node not in incarnations and known[slot].meant_for not in incarnations)
            )
        ]
        wanted = [*meant, *free[: max(0, share - len(ownership.epochs) - len(meant))]]
        if wanted:
            await self.take(wanted)
        elif len(ownership.owned) > share and len(live) > 1:
            await self._shed(len(ownership.owned) - share, live)

    async def take(self, wanted: Collection[int]) -> None:
        """Take what can be had of these, and serve it."""
        taken = await self._store.take(sorted(wanted), self.ownership.incarnation)
        if not taken:
            return
        await self.catalog_feed.refresh()  # what their last owner declared
        await self._slots.take_up(taken)
        self.ownership.saw_taken(taken, f"taken by {self._name}")
        log.info("took slots %s", sorted(taken))

    async def _shed(self, excess: int, live: list[NodeRow]) -> None:
        """Hand some on to the node that has the fewest."""
        counts = {row.incarnation: 0 for row in live}
        for row in self.ownership.view.slots:
            holder = row.node or row.meant_for
            if holder in counts:
                counts[holder] += 1
        others = [row for row in live if row.incarnation != self.ownership.incarnation]
        to = min(others, key=lambda row: (counts[row.incarnation], row.incarnation))
        room = -(-SLOTS // len(live)) - counts[to.incarnation]
        chosen = set(self.ownership.movable()[: max(0, min(excess, SHED_AT_ONCE, room))])
        if chosen:
            await self.hand_over(chosen, to)

    async def hand_over(self, chosen: set[int], to: NodeRow) -> None:
        await self._slots.hand_on(chosen)
        await self._store.release(sorted(chosen), self.ownership.incarnation, to.incarnation)
        log.info("handed slots %s on to %s", sorted(chosen), to.name)
        self._tasks.spawn(self._poke(to.url))

    async def give(self, wanted: Iterable[int], to: int) -> None:
        """Hand these slots on to a node that asks for them, if they are this node's."""
        async with self._beating:
            chosen = set(wanted) & self.ownership.owned
            taker = self.ownership.node_of(to)
            if chosen and taker is not None and taker.is_live:
                await self.hand_over(chosen, taker)
        self.look()

    # What crosses owners ----------------------------------------------------------------------------------

    async def ask_for(self, slots: list[int]) -> None:
        """Get these slots, from their owners or unowned, and keep them for a while."""
        self.ownership.keep(slots, KEPT_S)
        by_url: dict[str, list[int]] = {}
        free: list[int] = []
        for slot in slots:
            owner = self.ownership.owner(slot)
            if owner is None:
                free.append(slot)
            elif owner.url and owner.incarnation != self.ownership.incarnation:
                by_url.setdefault(owner.url, []).append(slot)
        for url, wanted in by_url.items():
            with suppress(PenstockError):
                await self._reachable.hand_over(url, wanted, self.ownership.incarnation)
                free += wanted
        if free:
            async with self._beating:
                await self.take([slot for slot in free if slot not in self.ownership.epochs])
        self.look()

    async def ask_landed(self, slot: int, landings: list[Landing]) -> list[Landed]:
        """Where these went, as the present owner of their slot knows."""
        if slot in self.ownership.owned:
            return await self._outbox.landed(landings)
        owner = self.ownership.owner(slot)
        if owner is None or not owner.url:
            raise self.ownership.not_owner(slot)
        return await self._reachable.landed(owner.url, landings)

    async def landed(self, landings: list[Landing]) -> list[Landed]:
        """Another node asks where these went; those of slots that this node does not own are left out."""
        return await self._outbox.landed([one for one in landings if slot_of(one.lane) in self.ownership.owned])

    # Telling others ---------------------------------------------------------------------------------------

    async def declared(self) -> None:
        """Let every node read what was just declared here, before its client goes on to use it."""
        if self.ownership.others():
            await self.poke_all()

    async def poke_all(self) -> None:
        pokes = [asyncio.ensure_future(self._poke(row.url)) for row in self.ownership.others()]
        if pokes:
            await asyncio.wait(pokes, timeout=TOLD_WITHIN_S)
            for poke in pokes:
                poke.cancel()

    async def _poke(self, url: str) -> None:
        try:
            await asyncio.wait_for(self._reachable.poke(url), TOLD_WITHIN_S)
        except (PenstockError, OSError, TimeoutError) as error:
            log.info("%s could not be told at once, and finds out by itself: %s", url, error)

    async def session_ended(self, session: Session) -> None:
        """Let every node end what a session of this one has there; raises where one cannot be told."""
        await asyncio.gather(*(self._reachable.end_session(row.url, str(session)) for row in self.ownership.others()))

    async def end_session(self, session: str) -> None:
        """End what a session of another node has here."""
        await self._sessions.end(Session.parse(session))

    async def notify_changed(self) -> None:
        """Another node says that something has changed: read what is declared now, and look who owns what soon.

        Not both at once: two nodes that take and give slots to each other must not wait for each other.
        """
        if self._task is None or self._lifecycle.closed:
            raise Closed("this node is not a member")
        self.look()
        await self.catalog_feed.refresh()
