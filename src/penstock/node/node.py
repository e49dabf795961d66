"""The node: builds the services of one broker process, wires their callbacks, starts and stops them. Nothing else.

Each service names in its constructor what it uses. They are built from the ground up: store, clock and catalog;
ownership of slots; lanes and the commit loop; consuming and publishing; the spool, staging and what goes by itself;
what is observed; membership among other nodes. `node/broker/` is their face.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.model.errors import Closed, PenstockError
from penstock.model.rows import SLOTS, Member
from penstock.node.alarms import Alarms
from penstock.node.background.enqueued import POLL_S, Enqueueing
from penstock.node.background.retention import LaneRetention, QueueRetention
from penstock.node.background.schedules import Schedules
from penstock.node.background.scrub import Scrub
from penstock.node.cache import BatchCache
from penstock.node.catalog import Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster.catalog_feed import CatalogFeed
from penstock.node.cluster.dead_copies import DeadCopies
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.node.cluster.outbox import Outbox, OwnSlots
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import RemotePublish
from penstock.node.cluster.slots import Slots
from penstock.node.commit.by_slot import SlotCommits
from penstock.node.commit.commits import Commits
from penstock.node.commit.host import CommitHost
from penstock.node.commit.loop import CommitLoop, Ground
from penstock.node.consume.bodies import Bodies
from penstock.node.consume.claims import Claims
from penstock.node.consume.dead_letters import DeadLetters
from penstock.node.consume.extents import Extents
from penstock.node.consume.scan_limit import ScanLimit
from penstock.node.consume.scans import Scans
from penstock.node.consume.sessions import Sessions
from penstock.node.consume.streams import Streams
from penstock.node.consume.waiters import Waiters
from penstock.node.declarations import Declarations
from penstock.node.exchanges import Exchanges
from penstock.node.lane_timers import LaneTimers
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle, Numbers
from penstock.node.limits import Limits
from penstock.node.marks import Marks
from penstock.node.observe.counters import Counters
from penstock.node.observe.damage import Damage
from penstock.node.observe.events import EventWriter
from penstock.node.observe.history import EventFeed, Histories
from penstock.node.observe.readiness import Readiness
from penstock.node.observe.survey import Survey
from penstock.node.observe.traces import Traces
from penstock.node.publish.append import Publisher
from penstock.node.publish.transactions import Transactions
from penstock.node.spool.positions import Positions
from penstock.node.spool.replay import Replay
from penstock.node.spool.spool import Spool, SpoolSettings
from penstock.node.spool.state import SpoolState
from penstock.node.staging.chunks import Chunks
from penstock.node.staging.finish import Finisher
from penstock.node.staging.ledger import Ledger
from penstock.node.staging.staging import Staging
from penstock.node.timers import Tasks, Timers
from penstock.store.contract import Store
from penstock.store.memory.engine import MemoryStore
from penstock.version import VERSION

CACHE_BYTES: Final = 64 * 1024 * 1024
SOLO_LEASE_MS: Final = 1
"""Alone on its store a node is heard of once, when it opens it; what an earlier one left is cleared away then."""


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
        scrub_bytes_per_second: int = 0,
        disks: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits
        self.memory = MemoryStore()
        """Where the lanes of ephemeral queues are."""
        self.cluster: Cluster | None = None
        """None where this node is alone on its store, and owns everything."""
        self._is_closing = False
        self._disks = disks
        self._build_ground(cache_bytes)
        self._build_consuming()
        self._build_declaring()
        self._build_publishing(spool)
        self._build_staging()
        self._build_background(enqueue_poll, scrub_bytes_per_second)
        self._build_observation(events)
        self._build_commit_host()
        self._wire()

    # Building ---------------------------------------------------------------------------------------------

    def _build_ground(self, cache_bytes: int) -> None:
        store, memory, clock = self.store, self.memory, self.clock
        self.lifecycle = Lifecycle()
        self.tasks = Tasks()
        self.timers = Timers(clock)
        self.numbers = Numbers()
        self.counters = Counters()
        self.catalog = catalog = Catalog(self.limits.sizes)
        self.damage = Damage(store, catalog)
        self.cache = BatchCache(cache_bytes)
        self.alarms = Alarms(self.limits, self._disks, self.cache.clear)
        self.ownership = ownership = Ownership(asyncio.get_running_loop().time)
        kind: type[CommitLoop] | type[SlotCommits] = CommitLoop if store.capabilities.spans_slots else SlotCommits
        self._committer = kind(Ground(store, memory, clock, ownership.epochs, self.counters))
        self.commits: Commits = self._committer
        commits = self.commits
        self.writer = CatalogWriter(catalog, store, commits, ownership, self.lifecycle)
        self.lanes = LaneSet(catalog, store, memory, ownership, self.lifecycle, self.writer.known, self.damage)
        self.lane_timers = LaneTimers(store, catalog, self.lanes, commits, clock, self.timers, self.tasks)

    def _build_consuming(self) -> None:
        catalog, lanes, commits, clock = self.catalog, self.lanes, self.commits, self.clock
        lifecycle, tasks, limits = self.lifecycle, self.tasks, self.limits
        self.waiters = waiters = Waiters(
            catalog,
            lanes,
            commits,
            clock,
            self.timers,
            self.lane_timers,
            tasks,
            lifecycle,
            self.numbers,
            self.ownership,
        )
        bodies = Bodies(self.cache, lanes, tasks, self.damage)
        self.claims = Claims(catalog, lanes, self.ownership, commits, clock, lifecycle, waiters, bodies)
        self.streams = Streams(lanes, commits, clock, lifecycle, waiters, bodies, self.counters)
        self.dead_letters = DeadLetters(lanes, commits, clock, bodies)
        self.extents = Extents(lanes)
        self.scan_limit = ScanLimit(
            limits.scans, limits.scan_bytes_per_second, lambda: self.counters.commit_seconds.count
        )
        self.scans = Scans(catalog, lanes, self.cache, self.scan_limit, self.damage)

    def _build_declaring(self) -> None:
        catalog, writer, lanes, commits = self.catalog, self.writer, self.lanes, self.commits
        clock, ownership = self.clock, self.ownership
        self.exchanges = Exchanges(catalog, writer, self.tasks, ownership)
        self.declarations = Declarations(
            catalog, writer, self.exchanges, lanes, commits, clock, ownership, self.limits.queues
        )
        self.marks = Marks(catalog, writer, clock)
        self.sessions = Sessions(catalog, ownership, lanes, clock, commits, self.declarations)

    def _build_publishing(self, settings: SpoolSettings | None) -> None:
        store, catalog, lanes, commits, clock = self.store, self.catalog, self.lanes, self.commits, self.clock
        tasks, numbers, lifecycle, ownership = self.tasks, self.numbers, self.lifecycle, self.ownership
        self.remote = remote = RemotePublish(ownership, commits, numbers, tasks)
        remote.row_bytes_max = store.capabilities.row_bytes_max
        self.publisher = publisher = Publisher(lanes, commits, clock, remote, self.limits)
        self.positions = positions = Positions(store, commits, clock, ownership)
        self.dead_copies = copies = DeadCopies(catalog, lanes, publisher, self.cache, clock, numbers)
        self.outbox = outbox = Outbox(
            store,
            catalog,
            lanes,
            commits,
            publisher,
            copies,
            positions,
            clock,
            self.timers,
            numbers,
            lifecycle,
            ownership,
            self.damage,
        )
        if not commits.spans_slots:
            remote.neighbours = OwnSlots(outbox)
        self.spool_state = state = SpoolState()
        replay = Replay(
            state,
            store,
            catalog,
            self.writer,
            commits,
            publisher,
            remote,
            positions,
            outbox,
            clock,
            tasks,
            lifecycle,
            ownership,
        )
        self.spool = Spool(settings, state, replay, catalog, commits, publisher, remote, clock, ownership)
        self.transactions = Transactions(lanes, commits, self.claims, publisher, remote, self.spool.check_free)

    def _build_staging(self) -> None:
        catalog, writer, commits, publisher = self.catalog, self.writer, self.commits, self.publisher
        clock, timers, tasks, ownership = self.clock, self.timers, self.tasks, self.ownership
        check_free, limits = self.spool.check_free, self.limits
        chunks = Chunks(self.store, catalog, self.lanes)
        ledger = Ledger(self.store, catalog, writer, commits, clock, timers, tasks, ownership)
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
            limits.staging_bytes,
            round(limits.staging_ttl * 1000),
        )

    def _build_background(self, enqueue_poll: float, scrub_bytes_per_second: int) -> None:
        catalog, writer, commits, publisher = self.catalog, self.writer, self.commits, self.publisher
        clock, timers, tasks = self.clock, self.timers, self.tasks
        lifecycle, ownership = self.lifecycle, self.ownership
        self.lane_retention = LaneRetention(self.lanes, commits, clock, timers, tasks, self.spool.ids_until_ms)
        self.queue_retention = QueueRetention(
            catalog, clock, timers, tasks, ownership, self.waiters.has_waiters, self.declarations.drop_queue
        )
        self.schedules = Schedules(
            catalog,
            writer,
            publisher,
            clock,
            timers,
            tasks,
            lifecycle,
            ownership,
            self.limits,
            self.counters,
            self.alarms.check,
        )
        self.enqueueing = Enqueueing(
            self.store.enqueueing,
            catalog,
            commits,
            publisher,
            clock,
            self.counters,
            lifecycle,
            ownership,
            self.alarms.check,
            enqueue_poll,
        )
        self.scrub = Scrub(self.store, catalog, ownership, self.damage, clock, tasks, scrub_bytes_per_second)

    def _build_observation(self, events: bool) -> None:
        store, catalog, lanes, commits, clock = self.store, self.catalog, self.lanes, self.commits, self.clock
        lifecycle, ownership = self.lifecycle, self.ownership
        self.events = EventWriter(catalog, self.writer, lanes, self.tasks, ownership, self.remote, self.outbox, events)
        self.feed = EventFeed(self.events, catalog, lanes, self.waiters, self.streams, lifecycle)
        self.histories = Histories(self.events, lanes, store, ownership, self.streams)
        self.traces = Traces(store, lanes, commits, clock, self.timers, self.tasks, self.numbers, self.histories)
        self.readiness = Readiness(commits, self.spool, lifecycle, ownership, self.damage)
        self.survey = Survey(
            catalog,
            lanes,
            self.cache,
            self.counters,
            self.waiters,
            commits,
            self.enqueueing,
            self.spool,
            self.damage,
            self.scrub,
            self.alarms,
            clock,
            lifecycle,
        )

    def _build_commit_host(self) -> None:
        self.slots = Slots(
            self.catalog, self.memory, self.commits, self.outbox, self.events, self.tasks, self.ownership
        )
        self.host = CommitHost(
            self.catalog,
            self.writer,
            self.lanes,
            self.cache,
            self.counters,
            self.waiters,
            self.lane_timers,
            self.lane_retention,
            self.dead_copies,
            self.outbox,
            self.events,
            self.traces,
            self.positions,
            self.spool,
            self.tasks,
            self.lifecycle,
            self.ownership,
        )
        self._committer.attach(self.host)

    def _build_cluster(self, name: str, options: ClusterOptions, is_alone: bool) -> Cluster:
        feed = CatalogFeed(self.store, self.catalog, self.exchanges, self.ownership)
        cluster = Cluster(
            self.store,
            feed,
            self.slots,
            self.sessions,
            self.outbox,
            self.spool,
            self.clock,
            self.tasks,
            self.numbers,
            self.lifecycle,
            self.ownership,
            name,
            options,
            is_alone,
        )
        self.catalog.on_replaced.append(feed.forget)  # what others declared since is not in it
        self.writer.announce = cluster.declared
        self.remote.neighbours = cluster
        self.host.ask_owners = cluster.fenced
        self.spool.replay.check_serving = cluster.check_serving
        return cluster

    def _wire(self) -> None:
        """Who hears of what."""
        catalog, lanes, waiters, counters = self.catalog, self.lanes, self.waiters, self.counters
        copies = self.dead_copies
        catalog.on_put.append(self.enqueueing.declared)
        catalog.on_queue_removed += [lanes.queue_removed, counters.queue_removed, waiters.queue_removed]
        catalog.on_group_removed += [counters.group_removed, waiters.group_removed]
        catalog.on_replaced += [
            lanes.catalog_replaced,
            lambda: counters.keep(catalog.group_ids()),
            self.schedules.reloaded,
            self.staging.reloaded,
            self.enqueueing.catalog_replaced,
        ]
        self.declarations.on_declared.append(self.queue_retention.watch)
        self.declarations.on_reconfigured += [self.lane_retention.changed, waiters.serve]
        lanes.on_loaded += [self.sessions.loaded, self.lane_timers.arm, self.lane_retention.changed, waiters.loaded]
        lanes.broken = self.commits.broken
        lanes.in_use += [self.events.writes_to, self.commits.holds, waiters.is_waited_for]
        self.lane_timers.on_ticked.append(waiters.serve)
        self.lane_timers.missing_body, self.lane_timers.read_body = copies.missing_body, copies.read_body
        self.spool_state.on_back.append(self.readiness.forget)
        self.slots.on_served += [
            self.sessions.slots_served,
            self.events.slots_served,
            self.lane_timers.slots_served,
            self.queue_retention.slots_served,
            self.outbox.slots_served,
            self.schedules.slots_served,
            self.staging.slots_served,
            self.exchanges.slots_served,
        ]
        self.slots.on_shed += [waiters.slots_shed, self.schedules.slots_shed]
        self.slots.on_lost += [
            self.positions.slots_lost,
            self.lane_timers.slots_lost,
            lanes.slots_lost,
            self.cache.slots_lost,
        ]

    # Starting and stopping --------------------------------------------------------------------------------

    async def open(self, owner: str) -> None:
        """Own every slot, know what was declared, and start what goes by itself."""
        joined = await self.store.join(Member(owner, "", VERSION, SOLO_LEASE_MS))
        await self.store.take((), joined.incarnation)  # clears away who ended without a word
        self.ownership.own_all(await self.store.acquire(range(SLOTS), owner))
        await self.memory.acquire(range(SLOTS), "memory")
        self.ownership.joined(joined.incarnation)
        self.numbers.start(joined.incarnation)
        self.catalog.put(await self.store.catalog())
        await self.writer.reserve_ids()
        await self.traces.open()
        await self.exchanges.drop_ephemeral()
        if not self.commits.spans_slots:
            await self.outbox.drain(self.ownership.epochs.keys())
        await self.slots.start(set(self.ownership.epochs))
        self.outbox.start()
        await self.enqueueing.open()
        await self.spool.open(joined.secret)
        self.scrub.start()
        self.alarms.start(self.tasks)

    async def open_among(self, owner: str, options: ClusterOptions, *, is_alone: bool = False) -> Cluster:
        """Be ready to be one of several nodes; `join` of what this returns makes it one."""
        self.cluster = cluster = self._build_cluster(owner, options, is_alone)
        await self.memory.acquire(range(SLOTS), "memory")
        await cluster.catalog_feed.refresh()
        await self.traces.open()
        self.outbox.start()
        await self.enqueueing.open()
        self.scrub.start()
        self.alarms.start(self.tasks)
        return cluster

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
