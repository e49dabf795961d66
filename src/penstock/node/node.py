"""The node: one broker process's moving parts put together, and what happens around a commit.

It owns the lanes (through their slots' epochs), the commit loop, timers, cache and waiters. The operations that
users call are in the modules beside it, one concern each; `node/broker/` is their face.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.lane import Lane, Sealed
from penstock.model.errors import Closed, Fenced, PenstockError
from penstock.model.rows import SLOTS, BatchRow, Commit, Member, OutboxRow, TraceRow, home_slot, slot_of
from penstock.node.background.enqueued import POLL_S, Enqueueing
from penstock.node.background.retention import LaneRetention, QueueRetention
from penstock.node.background.schedules import Schedules
from penstock.node.cache import BatchCache
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster import slots as holdings
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.loop import CommitLoop
from penstock.node.consume.scan_limit import ScanLimit
from penstock.node.consume.sessions import Sessions
from penstock.node.consume.streams import read_offsets
from penstock.node.consume.waiters import Waiters
from penstock.node.declarations import Declarations
from penstock.node.exchanges import Exchanges
from penstock.node.lane_timers import LaneTimers
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.limits import Limits
from penstock.node.marks import Marks
from penstock.node.numbers import Numbers
from penstock.node.observe.counters import Counters
from penstock.node.observe.events import EventWriter
from penstock.node.observe.feed import EventFeed
from penstock.node.observe.history import Histories
from penstock.node.observe.readiness import Readiness
from penstock.node.observe.survey import Survey
from penstock.node.observe.traces import Traces
from penstock.node.publish.publisher import Publisher
from penstock.node.spool.positions import Positions
from penstock.node.spool.spool import Spool, SpoolSettings
from penstock.node.staging.chunks import Chunks
from penstock.node.staging.finish import Finisher
from penstock.node.staging.ledger import Ledger
from penstock.node.staging.staging import Staging
from penstock.node.tasks import Tasks
from penstock.node.timers import Timers
from penstock.store.contract import Store
from penstock.store.memory.engine import MemoryStore
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.api.ticket import Ticket
    from penstock.node.commit.pending import Publish
    from penstock.node.spool.records import Doubt

CACHE_BYTES = 64 * 1024 * 1024
SOLO_LEASE_MS = 1
"""Alone on its store a node is heard of once, when it opens it; what an earlier one left is cleared away then."""

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
        self.lifecycle = Lifecycle()
        self.tasks = Tasks()
        self.timers = Timers(clock)
        self.numbers = Numbers()
        self.catalog = Catalog()
        self.cache = BatchCache(cache_bytes)
        self.counters = Counters()
        self.ownership = Ownership(asyncio.get_running_loop().time)
        self.cluster: Cluster | None = None
        """None where this node is alone on its store, and owns everything."""
        self.commits = CommitLoop(self, store, self.memory, clock, self.ownership, self.counters)
        self.writer = CatalogWriter(self.catalog, store, self.commits, self.ownership, self.lifecycle)
        self.lanes = LaneSet(self.catalog, store, self.memory, self.ownership, self.writer.known)
        self.lane_timers = LaneTimers(self.lanes, self.commits, clock, self.timers, self.tasks)
        self.waiters = Waiters(self)
        self.exchanges = Exchanges(self.catalog, self.writer, self.ownership)
        self.declarations = Declarations(
            self.catalog,
            self.writer,
            self.exchanges,
            self.lanes,
            self.commits,
            clock,
            self.ownership,
            limits.queues,
        )
        self.marks = Marks(self.catalog, self.writer, clock)
        self.publisher = Publisher(self)
        self.scan_limit = ScanLimit(
            limits.scans, limits.scan_bytes_per_second, lambda: self.counters.commit_seconds.count
        )
        self.bytes_before: dict[int, tuple[int, int]] = {}
        """lane → (its first offset, bytes appended before it): see `node/consume/extents.py`"""
        self.sessions = Sessions(
            self.catalog, self.ownership, self.lanes, clock, self.commits, self.declarations.delete_queue
        )
        self.reading_ahead: set[int] = set()
        self.outbox = Outbox(self)
        self.positions = Positions(self)
        self.spool = Spool(self, spool)
        self._build_staging()
        self._build_background(enqueue_poll)
        self._build_observation(events)
        self._wire()
        self._is_closing = False

    def _build_staging(self) -> None:
        log, catalog, writer, commits = self.store, self.catalog, self.writer, self.commits
        publisher, clock, timers, tasks = self.publisher, self.clock, self.timers, self.tasks
        check_free, ownership = self.spool.check_free, self.ownership
        chunks = Chunks(log, catalog, self.lanes, publisher)
        ledger = Ledger(log, catalog, writer, commits, clock, timers, tasks, ownership)
        finisher = Finisher(catalog, writer, publisher, chunks, ledger, tasks, self.lifecycle, ownership, check_free)
        self.staging = Staging(
            catalog,
            writer,
            commits,
            publisher,
            self.marks,
            chunks,
            ledger,
            finisher,
            clock,
            timers,
            tasks,
            ownership,
            check_free,
            bytes_max=self.limits.staging_bytes,
            ttl_ms=round(self.limits.staging_ttl * 1000),
        )

    def _build_background(self, enqueue_poll: float) -> None:
        clock, timers, tasks = self.clock, self.timers, self.tasks
        self.lane_retention = LaneRetention(self.lanes, self.commits, clock, timers, tasks, self.spool.ids_until_ms)
        self.queue_retention = QueueRetention(
            self.catalog,
            clock,
            timers,
            tasks,
            self.ownership,
            self.waiters.has_waiters,
            self.declarations.drop_queue,
        )
        self.schedules = Schedules(
            self.catalog,
            self.writer,
            self.publisher,
            clock,
            timers,
            tasks,
            self.lifecycle,
            self.ownership,
            self.limits.schedules,
        )
        self.enqueueing = Enqueueing(
            self.store.enqueueing,
            self.catalog,
            self.commits,
            self.publisher,
            clock,
            self.counters,
            self.lifecycle,
            self.ownership,
            enqueue_poll,
        )

    def _build_observation(self, events: bool) -> None:
        read = partial(read_offsets, self)
        self.events = EventWriter(self.catalog, self.writer, self.lanes, self.tasks, self.ownership, is_on=events)
        self.feed = EventFeed(self.events, self.catalog, self.lanes, self.waiters, read, self.lifecycle)
        self.histories = Histories(self.events, self.lanes, self.store, self.ownership, read)
        self.traces = Traces(
            self.store,
            self.lanes,
            self.commits,
            self.clock,
            self.timers,
            self.tasks,
            self.numbers,
            self.histories,
        )
        self.readiness = Readiness(self.commits, self.spool, self.lifecycle, self.ownership)
        self.survey = Survey(
            self.catalog,
            self.lanes,
            self.cache,
            self.counters,
            self.waiters,
            self.commits,
            self.enqueueing,
            self.spool,
            self.clock,
            self.lifecycle,
        )

    def _wire(self) -> None:
        """Who hears of what."""
        self.catalog.on_put.append(self.enqueueing.declared)
        self.catalog.on_queue_removed += [
            self.lanes.queue_removed, self.counters.queue_removed, self.waiters.queue_deleted,
        ]  # fmt: skip
        self.catalog.on_group_removed += [self.counters.group_removed, self.waiters.group_deleted]
        self.catalog.on_replaced += [
            self.lanes.catalog_replaced,
            lambda: self.counters.keep(self.catalog.group_ids()),
            self.schedules.reloaded,
            self.staging.reloaded,
            self.enqueueing.catalog_replaced,
        ]
        self.declarations.on_declared.append(self.queue_retention.watch)
        self.declarations.on_reconfigured += [self.lane_retention.changed, self.waiters.serve]
        self.lane_timers.on_ticked.append(self.waiters.serve)
        self.lanes.on_loaded.append(self._lane_loaded)
        self.lanes.in_use += [
            lambda lane: lane.id == self.events.lane,
            lambda lane: self.commits.concerns(lane.id),
            self._is_waited_for,
        ]
        self.spool.on_back.append(self.readiness.forget)

    def _is_waited_for(self, lane: Lane) -> bool:
        queue = self.catalog.by_lane.get(lane.id)
        return queue is not None and self.waiters.has_waiters(queue)

    # Opening and closing ----------------------------------------------------------------------------------

    async def open(self, owner: str) -> None:
        """Own every slot, know what was declared, and mind the timers of lanes that have something under way."""
        joined = await self.store.join(Member(owner, "", VERSION, SOLO_LEASE_MS))
        await self.store.take((), joined.incarnation)  # clears away who ended without a word
        self.ownership.own_all(await self.store.acquire(range(SLOTS), owner))
        await self.memory.acquire(range(SLOTS), "memory")
        self.joined(joined.incarnation)
        self.catalog.put(await self.store.catalog())
        await self.writer.reserve_ids()
        await self.traces.open()
        await self.exchanges.drop_ephemeral()
        await holdings.mind(self, set(self.ownership.epochs))
        self.outbox.start()
        await self.enqueueing.open()
        await self.spool.open(joined.secret)

    async def open_among(self, owner: str, options: ClusterOptions, *, is_alone: bool = False) -> Cluster:
        """Be ready to be one of several nodes; `join` of what this returns makes it one."""
        self.cluster = Cluster(self, owner, options, is_alone=is_alone)
        self.catalog.on_replaced.append(self.cluster.catalog_feed.forget)  # what others declared since is not in it
        self.writer.announce = self.cluster.declared
        await self.memory.acquire(range(SLOTS), "memory")
        await self.cluster.catalog_feed.refresh()
        await self.traces.open()
        self.outbox.start()
        await self.enqueueing.open()
        return self.cluster

    def joined(self, incarnation: int) -> None:
        """This node has a number that none had before: what it numbers from here on is unique."""
        self.ownership.joined(incarnation)
        self.numbers.start(incarnation)

    async def close(self) -> None:
        """Commit what is pending, end what waits, release everything. Leases stay as they are."""
        if self._is_closing:
            return
        self._is_closing = True
        if self.cluster is not None:
            await self.cluster.leave()
        self.lifecycle.closed = True
        self.waiters.close(Closed("the broker is closing"))
        self.timers.close()
        await self.outbox.close()
        await self.enqueueing.close()
        await self.spool.replay.stop()
        await self.tasks.close()
        await self.lanes.close()
        await self.commits.close()
        if self.cluster is None:
            with suppress(PenstockError):
                await self.store.leave(self.ownership.incarnation)
        await self.spool.close()
        await self.store.close()
        await self.memory.close()

    # What modules that still take a node use -----------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.lifecycle.closed

    @property
    def draining(self) -> bool:
        return self.lifecycle.draining

    @property
    def fenced(self) -> PenstockError | None:
        return self.lifecycle.fenced

    def check_open(self) -> None:
        self.lifecycle.check_open()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.spawn(work)

    def new_lease_id(self) -> int:
        return self.numbers.next()

    def check_catalog(self) -> None:
        self.writer.check_known()

    def schedule(self, lane: Lane) -> None:
        self.lane_timers.arm(lane)

    # Who owns what ----------------------------------------------------------------------------------------

    def find_queue(self, namespace: str, name: str) -> Queue:
        """A queue that this node owns. Of one that it does not know, the owner of its home slot knows the truth."""
        queue = self.catalog.queues.get((namespace, name))
        self.ownership.check(home_slot(namespace, name) if queue is None else queue.slot)
        return self.catalog.queue(namespace, name)

    # Around a commit (the commit loop's host) -------------------------------------------------------------

    def is_sealed_last(self, lane: Lane) -> bool:
        return lane.id == self.events.lane

    def last_slot(self) -> int | None:
        return None if self.events.lane is None else slot_of(self.events.lane)

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
        for lane, part in sealed:
            if part.change.batches and self._is_wanted_soon(lane, part.change.batches[0]):
                for row in part.change.batches:
                    self.cache.put(lane.id, row, is_checked=True)
            if part.change.trim_to is not None:
                self.cache.trimmed(lane.id, part.trimmed_from, part.change.trim_to)
            self._count(lane, part)
            self.lane_timers.arm(lane)
            self.lane_retention.changed(lane)
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

    def rescue(self, publishes: list[Publish], doubt: Doubt | None, error: PenstockError) -> set[Ticket[Any]]:
        return self.spool.rescue(publishes, doubt, error)

    def lost(self, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        log.warning("a commit failed, %d lanes are loaded anew: %s", len(lanes), error)
        if isinstance(error, Fenced) and self.cluster is not None:
            self.cluster.fenced()
        elif isinstance(error, Fenced):
            self.lifecycle.fenced = error
            self.waiters.close(error)
        self.lanes.drop(lanes)
        self.cache.forget_lanes(lanes)  # another node may store else than this one did
        for id in lanes:
            self.lane_timers.disarm(id)
        self.positions.forget()
        self.spool.lost(error)
        if self.closed:
            return
        self.outbox.wake_later()  # it may have happened all the same, with new rows in the outbox
        if catalog:
            self.writer.reload()
        # All of them: they may have leases to end, delays to mind and consumers who wait.
        for id in lanes:
            self.tasks.spawn(self._reload(id))

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

    # Time -------------------------------------------------------------------------------------------------

    def _lane_loaded(self, lane: Lane) -> None:
        self.sessions.loaded(lane)
        self.lane_timers.arm(lane)
        self.lane_retention.changed(lane)
        if self.waiters.has_waiters(self.catalog.by_lane[lane.id]):
            asyncio.get_running_loop().call_soon(self.waiters.serve, lane)
