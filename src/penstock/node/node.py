"""The node: one broker process's moving parts put together, and what happens around a commit.

It owns the lanes (through their slots' epochs), the commit loop, timers, cache and waiters. The operations that
users call are in the modules beside it, one concern each; `node/broker/` is their face.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane, Sealed
from penstock.core.log import Missing
from penstock.model.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.model.rows import (
    REGISTRAR_SLOT,
    SLOTS,
    BatchRow,
    CatalogRow,
    Commit,
    Member,
    OutboxRow,
    TraceRow,
    home_slot,
    slot_of,
)
from penstock.node import declarations
from penstock.node.background.enqueued import POLL_S, Enqueueing
from penstock.node.background.retention import Retention
from penstock.node.background.schedules import Schedules
from penstock.node.cache import BatchCache
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue
from penstock.node.clock import Clock
from penstock.node.cluster import slots as holdings
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.loop import CommitLoop
from penstock.node.consume.scan_limit import ScanLimit
from penstock.node.consume.waiters import Waiters
from penstock.node.lanes import LaneSet
from penstock.node.limits import Limits
from penstock.node.observe.counters import Counters
from penstock.node.observe.events import EventWriter
from penstock.node.observe.readiness import Readiness
from penstock.node.observe.survey import Survey
from penstock.node.observe.traces import Traces
from penstock.node.spool.positions import Positions
from penstock.node.spool.spool import Spool, SpoolSettings
from penstock.node.staging.staging import Staging
from penstock.node.timers import Timers
from penstock.store.contract import Store
from penstock.store.memory.engine import MemoryStore
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.node.commit.pending import Waiting
    from penstock.node.spool.records import Doubt

CACHE_BYTES = 64 * 1024 * 1024
LEASES_PER_EPOCH = 1 << 40
"""Of each incarnation of a node: leases, and rows of the outbox and of traces, have numbers that nobody else gives."""
IDS_AT_ONCE = 10_000
IDS_LEFT_MIN = 2_000
"""Ids that must be at hand before something is declared; with fewer, more are reserved first."""
SOLO_LEASE_MS = 1
"""Alone on its store a node is heard of once, when it opens it; what an earlier one left is cleared away then."""
NAME_LOCKS_MAX = 2_000
READ_AGAIN_MS = 1_000

_TOLD = frozenset({"queue", "group", "exchange", "binding"})
"""What other nodes must know of before it is used through them; the rest is asked of the registrar."""

log = logging.getLogger("penstock.node")


class Node:
    """Everything that one broker process holds."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        cache_bytes: int = CACHE_BYTES,
        events: bool = True,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        enqueue_poll: float = POLL_S,
        spool: SpoolSettings | None = None,
    ) -> None:
        self.store = store
        self.limits = limits
        self.memory = MemoryStore()
        self.clock = clock
        self.catalog = Catalog()
        self.cache = BatchCache(cache_bytes)
        self.counters = Counters()
        self.scan_limit = ScanLimit(
            limits.scans, limits.scan_bytes_per_second, lambda: self.counters.commit_seconds.count
        )
        self.bytes_before: dict[int, tuple[int, int]] = {}
        """lane → (its first offset, bytes appended before it): see `node/consume/extents.py`"""
        self.timers = Timers(clock)
        self.cluster: Cluster | None = None
        """None where this node is alone on its store, and owns everything."""
        self.ownership = Ownership(asyncio.get_running_loop().time)
        self.lanes = LaneSet(
            self.catalog, store, self.memory, self._lane_loaded, self._is_idle, self._declared, self.ownership
        )  # fmt: skip
        self.waiters = Waiters(self)
        self.retention = Retention(self)
        self.outbox = Outbox(self)
        self.traces = Traces(self)
        self.schedules = Schedules(self)
        self.staging = Staging(self)
        self.enqueueing = Enqueueing(self, enqueue_poll)
        self.readiness = Readiness(self)
        self.survey = Survey(self)
        self.positions = Positions(self)
        self.spool = Spool(self, spool)
        self.commits: CommitLoop
        self.names: dict[tuple[str, str, str], asyncio.Lock] = {}
        self.events = EventWriter(self, events)
        self.session_claims: dict[str, set[tuple[int, str, str]]] = {}
        """session → (queue, group, consumer) of its claims here, where it is another node that has the session"""
        self._reserving = asyncio.Lock()
        self.incarnation = 0
        """This process's number: none had it before."""
        self._next_lease = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._catalog_reload: asyncio.Task[None] | None = None
        self.fenced: PenstockError | None = None
        self.reading_ahead: set[int] = set()
        self.closed = False
        self._is_closing = False
        self.draining = False
        """Nobody waits for messages any more: about to stop."""

    # Opening and closing ----------------------------------------------------------------------------------

    async def open(self, owner: str) -> None:
        """Own every slot, know what was declared, and mind the timers of lanes that have something under way."""
        joined = await self.store.join(Member(owner, "", VERSION, SOLO_LEASE_MS))
        await self.store.take((), joined.incarnation)  # clears away who ended without a word
        self.ownership.own_all(await self.store.acquire(range(SLOTS), owner))
        await self._begin()
        self.joined(joined.incarnation)
        self.catalog.put(await self.store.catalog())
        await self.reserve_ids()
        await self.traces.open()
        await declarations.drop_ephemeral_exchanges(self)
        await holdings.mind(self, set(self.ownership.epochs))
        self.outbox.start()
        await self.enqueueing.open()
        await self.spool.open(joined.secret)

    async def open_among(self, owner: str, options: ClusterOptions, *, is_alone: bool = False) -> Cluster:
        """Be ready to be one of several nodes; `join` of what this returns makes it one."""
        self.cluster = Cluster(self, owner, options, is_alone=is_alone)
        await self._begin()
        await self.cluster.catalog_feed.refresh()
        await self.traces.open()
        self.outbox.start()
        await self.enqueueing.open()
        return self.cluster

    async def _begin(self) -> None:
        await self.memory.acquire(range(SLOTS), "memory")
        self.commits = CommitLoop(self, self.store, self.memory, self.clock, self.ownership, self.counters)

    def joined(self, incarnation: int) -> None:
        """This node has a number that none had before: what it numbers from here on is unique."""
        self.incarnation = incarnation
        self.ownership.joined(incarnation)
        self._next_lease = incarnation * LEASES_PER_EPOCH
        self.outbox.number_from(self._next_lease)
        self.traces.number_from(self._next_lease)

    async def reserve_ids(self, least: int = 0) -> None:
        """Have ids at hand for what is about to be declared."""
        wanted = max(IDS_LEFT_MIN, least)
        if self.catalog.ids_left >= wanted:
            return
        async with self._reserving:
            if self.catalog.ids_left < wanted:
                count = max(IDS_AT_ONCE, wanted)
                self.catalog.reserved(await self.store.reserve_ids(count, self.catalog.last_id), count)

    async def close(self) -> None:
        """Commit what is pending, end what waits, release everything. Leases stay as they are."""
        if self.closed or self._is_closing:
            return
        self._is_closing = True
        if self.cluster is not None:
            await self.cluster.leave()
        self.closed = True
        self.waiters.close(Closed("the broker is closing"))
        self.timers.close()
        await self.outbox.close()
        await self.enqueueing.close()
        await self.spool.replay.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.lanes.close()
        await self.commits.close()
        if self.cluster is None:
            with suppress(PenstockError):
                await self.store.leave(self.incarnation)
        await self.spool.close()
        await self.store.close()
        await self.memory.close()

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the broker is closed")
        if self.fenced is not None:
            raise self.fenced

    # Who owns what ----------------------------------------------------------------------------------------

    def find_queue(self, namespace: str, name: str) -> Queue:
        """A queue that this node owns. Of one that it does not know, the owner of its home slot knows the truth."""
        queue = self.catalog.queues.get((namespace, name))
        self.ownership.check(home_slot(namespace, name) if queue is None else queue.slot)
        return self.catalog.queue(namespace, name)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; a failure is logged, and ends nothing else."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed: %s", error)

    def new_lease_id(self) -> int:
        """An id that no lease of this store ever had: incarnations never repeat."""
        self._next_lease += 1
        return self._next_lease

    # Catalog changes --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def declaring(self, kind: str, namespace: str, name: str) -> AsyncIterator[None]:
        """Declarations of one name happen one after the other; of different names, together.

        None begins while it is not known what a failed commit has left declared.
        """
        async with self._name_lock(kind, namespace, name):
            await self._declared()
            await self.reserve_ids()
            yield

    async def _declared(self) -> None:
        """Until it is known what is declared."""
        while self._catalog_reload is not None:
            await asyncio.wait([self._catalog_reload])

    def check_declarations(self, slot: int = REGISTRAR_SLOT) -> None:
        """Raise while it is not known what a failed commit has left declared, or where this slot is another node's."""
        self.check_catalog()
        self.ownership.check(slot)

    def check_catalog(self) -> None:
        """Raise while it is not known what a failed commit has left declared."""
        if self._catalog_reload is not None:
            raise Unavailable("what is declared is being read anew after a failed commit; try again")

    def _name_lock(self, kind: str, namespace: str, name: str) -> asyncio.Lock:
        key = (kind, namespace, name)
        lock = self.names.get(key)
        if lock is None:
            if len(self.names) > NAME_LOCKS_MAX:
                # One that was just given back, and whose next holder has not had his turn, says that it is not locked.
                self.names = {key: lock for key, lock in self.names.items() if lock.locked() or lock._waiters}
            lock = self.names[key] = asyncio.Lock()
        return lock

    async def commit_catalog(
        self,
        rows: list[CatalogRow],
        deleted: list[tuple[str, int]] | None = None,
        after: Callable[[], None] | None = None,
        *,
        slot: int = REGISTRAR_SLOT,
    ) -> None:
        """Make declarations durable, then known: those about a queue under its slot, others under the registrar's."""
        self.check_declarations(slot)
        pending = self.commits.amend()
        pending.slots.add(slot)
        pending.catalog += rows
        pending.catalog_deleted += deleted or []
        pending.after.append(lambda: self.catalog.put(rows))
        pending.after.append(lambda: self.enqueueing.declared(rows))
        if after is not None:
            pending.after.append(after)
        await _through(self.commits.wait())
        if self.cluster is not None and _is_told(rows, deleted or ()):
            await self.cluster.declared()

    async def delete_queue(self, queue: Queue) -> None:
        """Delete a queue with its lanes, groups and bindings."""
        queue.deleting = True
        try:
            await self.commits.wait()  # groups and bindings on their way are known after it, none comes later
            self.check_declarations(max(queue.slot, 0))
        except PenstockError:
            queue.deleting = False
            raise
        router = self.catalog.router(queue.namespace)
        bindings = router.queue_deleted(queue.name)
        deleted = [("queue", queue.id), *(("group", group.id) for group in queue.groups.values())]
        is_registrar = self.ownership.owns(REGISTRAR_SLOT)
        for binding in bindings if is_registrar else ():  # otherwise the registrar deletes them, when it hears of it
            id = self.catalog.binding_id(queue.namespace, binding)
            if id is not None:
                deleted.append(("binding", id))
        self.commits.amend().lanes_deleted += queue.lanes
        if is_registrar:
            self.commits.amend().slots.add(REGISTRAR_SLOT)

        def forget() -> None:
            self.catalog.remove_queue(queue)
            if is_registrar:
                self.catalog.remove_bindings(queue.namespace, bindings)
            else:
                self.catalog.orphan_bindings(queue.namespace, bindings)
            self.lanes.drop(set(queue.lanes))
            self.counters.forget(group.id for group in queue.groups.values())
            self.waiters.queue_deleted(queue)

        await self.commit_catalog([], deleted, forget, slot=max(queue.slot, 0))
        if is_registrar:  # otherwise it does this too when it hears of it
            await declarations.drop_unbound(self, queue.namespace, {binding.exchange for binding in bindings})

    # Around a commit (the commit loop's host) -------------------------------------------------------------

    def is_sealed_last(self, lane: Lane) -> bool:
        return lane.id == self.events.lane

    def before_seal(self, lane: Lane) -> None:
        self.waiters.serve_unsealed(lane)

    def is_current(self, lane: Lane) -> bool:
        return self.lanes.get(lane.id) is lane

    def sealed(self, sealed: list[tuple[Lane, Sealed]], now_ms: int) -> tuple[list[OutboxRow], list[TraceRow]]:
        outbox: list[OutboxRow] = []
        traces: list[TraceRow] = []
        for lane, part in sealed:
            queue = self.catalog.by_lane.get(lane.id)
            if queue is None:
                continue
            if part.died:
                outbox += self.outbox.rows(queue, lane.id, part.died)
            if part.change.batches and lane.id < EPHEMERAL_FROM:
                traces += self.traces.published(queue, lane.id, part.change.batches)
            self.events.happened(queue, lane.id, part)
        self.events.seal(sealed, now_ms)
        return outbox, traces

    def _is_wanted_soon(self, lane: Lane, first: BatchRow) -> bool:
        """Whether what is published now may be read from memory: behind a long backlog it is pushed out unread.

        `first` is its first batch; the others are taken to be like it.
        """
        if self.cache.keeps(first, lane.lag_bytes()):
            return True
        queue = self.catalog.by_lane.get(lane.id)
        return queue is not None and self.waiters.has_waiters(queue)

    def committed(self, sealed: list[tuple[Lane, Sealed]]) -> None:
        now_ms = self.clock.now_ms()
        for lane, part in sealed:
            if part.change.batches and self._is_wanted_soon(lane, part.change.batches[0]):
                for row in part.change.batches:
                    self.cache.put(lane.id, row, is_checked=True)
            if part.change.trim_to is not None:
                self.cache.trimmed(lane.id, part.trimmed_from, part.change.trim_to)
            self._count(lane, part)
            self.schedule(lane)
            self.retention.committed(lane, now_ms)
            self.waiters.serve(lane)
            if part.died:
                self.outbox.wake()

    def _count(self, lane: Lane, part: Sealed) -> None:
        counters = self.counters
        if part.change.batches and lane.id != self.events.lane:
            counters.published += sum([row.count for row in part.change.batches])
        for group, events in part.events:
            exists = group in counters.groups or self._has_group(lane.id, group)
            counters.happened(group, events, exists=exists)

    def _has_group(self, lane: int, group: int) -> bool:
        queue = self.catalog.by_lane.get(lane)
        return queue is not None and queue.group_by_id(group) is not None

    def stamp(self, commit: Commit) -> Doubt | None:
        return self.spool.stamp(commit)

    def rescue(self, publishes: list[Waiting], doubt: Doubt | None, error: PenstockError) -> None:
        self.spool.rescue(publishes, doubt, error)

    def lost(self, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        log.warning("a commit failed, %d lanes are loaded anew: %s", len(lanes), error)
        if isinstance(error, Fenced) and self.cluster is not None:
            self.cluster.fenced()
        elif isinstance(error, Fenced):
            self.fenced = error
            self.waiters.close(error)
        self.lanes.drop(lanes)
        self.cache.forget_lanes(lanes)  # another node may store else than this one did
        for id in lanes:
            self.timers.cancel(("lane", id))
        self.positions.forget()
        self.spool.lost(error)
        if self.closed:
            return
        self.outbox.wake_later()  # it may have happened all the same, with new rows in the outbox
        if catalog and self._catalog_reload is None:
            self._catalog_reload = asyncio.get_running_loop().create_task(self._reload_catalog())
        # All of them: they may have leases to end, delays to mind and consumers who wait.
        for id in lanes:
            self.spawn(self._reload(id))

    async def _reload(self, id: int) -> None:
        """Bring a lane back that somebody waits on, as soon as the store answers."""
        pause_s = 0.05
        if id >= EPHEMERAL_FROM:
            # Memory answers at once. What is due on it, and failed because the store is away, would fail without end.
            await asyncio.sleep(pause_s)
        while not self.closed and self.lanes.get(id) is None and id in self.catalog.by_lane and self.fenced is None:
            if not self.ownership.owns(slot_of(id)):
                return
            try:
                await self.lanes.load(id)
            except PenstockError as error:
                log.warning("lane %d cannot be loaded yet: %s", id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)

    async def _reload_catalog(self) -> None:
        """A commit with declarations failed and may have happened all the same: read what is true."""
        pause_s = 0.05
        while not self.closed:
            try:
                rows = await self.store.catalog()
            except Exception as error:  # of whatever kind: as long as this is not read, nothing can be declared
                log.warning("the catalog cannot be loaded yet: %r", error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)
                continue
            self._replace_catalog(rows)
            break
        self._catalog_reload = None

    def _replace_catalog(self, rows: list[CatalogRow]) -> None:
        fresh = Catalog()
        fresh.put(rows)
        kept = self.catalog
        ephemeral = [queue for queue in kept.by_id.values() if queue.id >= EPHEMERAL_FROM]
        gone = set(kept.by_lane) - set(fresh.by_lane) - {lane for queue in ephemeral for lane in queue.lanes}
        kept.replace(fresh, ephemeral)
        self.lanes.drop(gone)
        self.counters.keep({group.id for queue in kept.by_id.values() for group in queue.groups.values()})
        for lane in self.lanes.loaded():
            queue = kept.by_lane[lane.id]
            lane.configure(queue.config, queue.settings())
        if self.cluster is not None:
            self.cluster.catalog_feed.forget()  # what others declared since this was read
        if self.ownership.owns(REGISTRAR_SLOT):
            self.schedules.reloaded()
            self.staging.reloaded()
        self.enqueueing.declared(rows)

    # Time -------------------------------------------------------------------------------------------------

    def _lane_loaded(self, lane: Lane) -> None:
        self._end_leases_of_the_gone(lane)
        self.schedule(lane)
        self.retention.committed(lane, self.clock.now_ms())
        if self.waiters.has_waiters(self.catalog.by_lane[lane.id]):
            asyncio.get_running_loop().call_soon(self.waiters.serve, lane)

    def _end_leases_of_the_gone(self, lane: Lane) -> None:
        """What sessions held whose process is gone returns at once, as when such a session ends by itself."""
        for group in lane.groups.values():
            held_by = list(group.leases.by_consumer) if isinstance(group, WorkGroup) else []
            for consumer in [name for name in held_by if holdings.has_ended(self, name)]:
                group.consumer_left(self.clock.now_ms(), consumer)
                self.commits.touch(lane)

    def _is_idle(self, lane: Lane) -> bool:
        """Whether a lane can be forgotten and loaded again without anybody noticing."""
        queue = self.catalog.by_lane.get(lane.id)
        return (
            lane.is_idle()
            and lane.id != self.events.lane
            and not self.commits.concerns(lane.id)
            and (queue is None or not self.waiters.has_waiters(queue))
        )

    def schedule(self, lane: Lane) -> None:
        """Wake up when the lane has something to do."""
        due_ms, id = lane.next_due_ms(), lane.id
        if due_ms is None:
            self.timers.cancel(("lane", id))
        else:
            self.timers.at(due_ms, ("lane", id), lambda: self._tick_by_id(id))

    def _tick_by_id(self, id: int) -> None:
        lane = self.lanes.get(id)
        if lane is not None:
            self._tick(lane)

    def _tick(self, lane: Lane) -> None:
        try:
            lane.tick(self.clock.now_ms())
        except Missing as missing:
            self.spawn(self._feed_and_tick(lane, missing.start))
            return
        finally:
            if lane.dirty:
                self.commits.touch(lane)
        self.waiters.serve(lane)
        self.schedule(lane)

    async def _feed_and_tick(self, lane: Lane, start: int) -> None:
        try:
            await self.lanes.feed(lane.id, start)
        except PenstockError:
            again_ms = self.clock.now_ms() + READ_AGAIN_MS
            self.timers.at(again_ms, ("lane", lane.id), lambda: self._tick_by_id(lane.id))
            raise
        self._tick_by_id(lane.id)


async def _through(commit: asyncio.Future[None]) -> None:
    """Wait for a commit to the end, also when cancelled: until then nobody else may declare the same name."""
    cancelled: asyncio.CancelledError | None = None
    while not commit.done():
        try:
            await asyncio.wait([commit])
        except asyncio.CancelledError as error:
            cancelled = error
    commit.result()
    if cancelled is not None:
        raise cancelled


def _is_told(rows: list[CatalogRow], deleted: Iterable[tuple[str, int]]) -> bool:
    """Not of the system's own queues: nobody waits to use those."""
    named = any(row.kind in _TOLD and not row.name.startswith("$") for row in rows)
    return named or any(kind in _TOLD for kind, _ in deleted)
