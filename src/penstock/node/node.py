"""The node: one broker process's moving parts put together, and what happens around a commit.

It owns the lanes (through their slots' epochs), the commit loop, timers, cache and polls. The operations that
users call are in the modules beside it, one concern each; `node/broker.py` is their face.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.core.events import Delivery, encode_delivery
from penstock.core.lane import Lane, Sealed
from penstock.core.log import Missing
from penstock.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.model import DEFAULT_NAMESPACE, EVENTS_QUEUE, Message, QueueConfig
from penstock.node.cache import BatchCache
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue, queue_row
from penstock.node.clock import Clock
from penstock.node.commits import CommitLoop
from penstock.node.lanes import LaneSet
from penstock.node.limits import Limits
from penstock.node.measures import Measures
from penstock.node.polls import Polls
from penstock.node.readiness import Readiness
from penstock.node.relay import Relay
from penstock.node.retention import Retention
from penstock.node.scan_limit import ScanLimit
from penstock.node.schedules import Schedules
from penstock.node.spooling import Spooling, SpoolSettings
from penstock.node.staging import Staging
from penstock.node.survey import Survey
from penstock.node.timers import Timers
from penstock.node.traces import Traces
from penstock.rows import SLOTS, CatalogRow, Commit, OutboxRow, TraceRow
from penstock.store.contract import Store
from penstock.store.memory import MemoryStore

if TYPE_CHECKING:
    from penstock.node.commits import Waiting
    from penstock.node.spool import Doubt

CACHE_BYTES = 64 * 1024 * 1024
EVENTS_RETAIN_MS = 7 * 24 * 3600 * 1000
EVENTS_RETAIN_BYTES = 256 * 1024 * 1024
LEASES_PER_EPOCH = 1 << 40
NAME_LOCKS_MAX = 2_000
READ_AGAIN_MS = 1_000

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
        spool: SpoolSettings | None = None,
    ) -> None:
        self.store = store
        self.limits = limits
        self.memory = MemoryStore()
        self.clock = clock
        self.catalog = Catalog()
        self.cache = BatchCache(cache_bytes)
        self.measures = Measures()
        self.scan_limit = ScanLimit(
            limits.scans, limits.scan_bytes_per_second, lambda: self.measures.commit_seconds.count
        )
        self.bytes_before: dict[int, tuple[int, int]] = {}
        """lane → (its first offset, bytes appended before it): see `node/lane_places.py`"""
        self.timers = Timers(clock)
        self.lanes = LaneSet(self.catalog, store, self.memory, self._lane_loaded, self._is_idle, self._declared)
        self.polls = Polls(self)
        self.retention = Retention(self)
        self.relay = Relay(self)
        self.traces = Traces(self)
        self.schedules = Schedules(self)
        self.staging = Staging(self)
        self.readiness = Readiness(self)
        self.survey = Survey(self)
        self.spooling = Spooling(self, spool)
        self.commits: CommitLoop
        self.names: dict[tuple[str, str, str], asyncio.Lock] = {}
        self._events = events
        self._events_lane: int | None = None
        self._events_waiting: list[Message] = []
        self._next_lease = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._catalog_reload: asyncio.Task[None] | None = None
        self.fenced: PenstockError | None = None
        self.reading_ahead: set[int] = set()
        self.closed = False
        self.draining = False
        """Nobody waits for messages any more: about to stop."""

    # Opening and closing ----------------------------------------------------------------------------------

    async def open(self, owner: str) -> None:
        """Own every slot, know what was declared, and mind the timers of lanes that have something under way."""
        epochs = await self.store.acquire(range(SLOTS), owner)
        await self.memory.acquire(range(SLOTS), owner)
        self._next_lease = max(epochs.values()) * LEASES_PER_EPOCH
        self.commits = CommitLoop(self, self.store, self.memory, self.clock, epochs, self.measures)
        self.catalog.put(await self.store.catalog())
        await self.relay.load()  # before anything can die: its row must not replace one that is there
        await self.traces.open(self._next_lease)  # numbered like leases, and for the same reason
        await self._drop_exclusive()
        if self._events:
            await self._declare_events()
        timed = [queue for queue in self.catalog.by_id.values() if queue.config.retain_ms or queue.config.ttl_ms]
        for lane in {*await self.store.lanes_in_use(), *(lane for queue in timed for lane in queue.lanes)}:
            if lane in self.catalog.by_lane:
                self.spawn(self.lanes.load(lane))
        for queue in list(self.catalog.by_id.values()):
            self.retention.watch(queue)
        self.relay.start()
        self.schedules.open()
        await self.staging.open()
        await self.spooling.open()

    async def _drop_exclusive(self) -> None:
        """The sessions that these queues belonged to ended with the process that had them."""
        for queue in [queue for queue in self.catalog.by_id.values() if queue.session is not None]:
            await self.delete_queue(queue)

    async def _declare_events(self) -> None:
        queue = self.catalog.queues.get((DEFAULT_NAMESPACE, EVENTS_QUEUE))
        if queue is None:
            config = QueueConfig(
                retain_ms=EVENTS_RETAIN_MS, retain_bytes=EVENTS_RETAIN_BYTES, description="delivery events"
            )
            queue = Queue(self.catalog.new_id(), DEFAULT_NAMESPACE, EVENTS_QUEUE, config, (self.catalog.new_id(),))
            await self.commit_catalog([queue_row(queue, config)])
        await self.lanes.load(queue.lanes[0])
        self._events_lane = queue.lanes[0]

    async def close(self) -> None:
        """Commit what is pending, end what waits, release everything. Leases stay as they are."""
        if self.closed:
            return
        self.closed = True
        self.polls.close(Closed("the broker is closing"))
        self.timers.close()
        await self.relay.close()
        await self.spooling.replaying.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.lanes.close()
        await self.commits.close()
        await self.spooling.close()
        await self.store.close()
        await self.memory.close()

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the broker is closed")
        if self.fenced is not None:
            raise self.fenced

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
        """An id that no lease of this store ever had: epochs never repeat."""
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
            yield

    async def _declared(self) -> None:
        """Until it is known what is declared."""
        while self._catalog_reload is not None:
            await asyncio.wait([self._catalog_reload])

    def check_declarations(self) -> None:
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
    ) -> None:
        """Make declarations durable, then known."""
        self.check_declarations()
        pending = self.commits.pending
        pending.catalog += rows
        pending.catalog_deleted += deleted or []
        pending.after.append(lambda: self.catalog.put(rows))
        if after is not None:
            pending.after.append(after)
        await _through(self.commits.wait())

    async def delete_queue(self, queue: Queue) -> None:
        """Delete a queue with its lanes, groups and bindings."""
        queue.deleting = True
        try:
            await self.commits.wait()  # groups and bindings on their way are known after it, none comes later
            self.check_declarations()
        except PenstockError:
            queue.deleting = False
            raise
        router = self.catalog.router(queue.namespace)
        bindings = router.queue_deleted(queue.name)
        deleted = [("queue", queue.id), *(("group", group.id) for group in queue.groups.values())]
        for binding in bindings:
            id = self.catalog.binding_id(queue.namespace, binding)
            if id is not None:
                deleted.append(("binding", id))
        self.commits.pending.lanes_deleted += queue.lanes

        def forget() -> None:
            self.catalog.remove_queue(queue)
            self.catalog.remove_bindings(queue.namespace, bindings)
            self.lanes.drop(set(queue.lanes))
            self.measures.forget(group.id for group in queue.groups.values())
            self.polls.queue_deleted(queue)

        await self.commit_catalog([], deleted, forget)

    # Around a commit (the commit loop's host) -------------------------------------------------------------

    def is_sealed_last(self, lane: Lane) -> bool:
        return lane.id == self._events_lane

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
                outbox += self.relay.rows(queue, lane.id, part.died)
            if part.change.batches and lane.id < EPHEMERAL_FROM:
                traces += self.traces.published(queue, lane.id, part.change.batches)
            if part.events and self._events and lane.id < EPHEMERAL_FROM:
                self._events_waiting += _deliveries(queue, lane.id, part)
        self._seal_events(sealed, now_ms)
        for lane, part in sealed:
            for row in part.change.batches:
                self.cache.put(lane.id, row, is_checked=True)
        return outbox, traces

    def _seal_events(self, sealed: list[tuple[Lane, Sealed]], now_ms: int) -> None:
        """`$events` goes into the very commit that it tells of, or a later one while its lane is loaded anew."""
        lane = None if self._events_lane is None else self.lanes.get(self._events_lane)
        if lane is None:
            return
        if self._events_waiting:
            lane.append(now_ms, self._events_waiting)
            self._events_waiting = []
        part = lane.seal(now_ms)
        if part is not None:
            part.events = []  # what happens to events is no event
            sealed.append((lane, part))

    def committed(self, sealed: list[tuple[Lane, Sealed]]) -> None:
        now_ms = self.clock.now_ms()
        for lane, part in sealed:
            if part.change.trim_to is not None:
                self.cache.trimmed(lane.id, part.trimmed_from, part.change.trim_to)
            self._count(lane, part)
            self.schedule(lane)
            self.retention.committed(lane, now_ms)
            self.polls.serve(lane)
            if part.died:
                self.relay.wake()

    def _count(self, lane: Lane, part: Sealed) -> None:
        measures = self.measures
        if part.change.batches and lane.id != self._events_lane:
            measures.published += sum([row.count for row in part.change.batches])
        for group, events in part.events:
            exists = group in measures.groups or self._has_group(lane.id, group)
            measures.happened(group, events, exists=exists)

    def _has_group(self, lane: int, group: int) -> bool:
        queue = self.catalog.by_lane.get(lane)
        return queue is not None and queue.group_by_id(group) is not None

    def ids_row(self) -> CatalogRow:
        return self.catalog.ids_row()

    def mark(self, commit: Commit) -> Doubt:
        return self.spooling.mark(commit)

    def rescue(self, publishes: list[Waiting], doubt: Doubt | None, error: PenstockError) -> None:
        self.spooling.rescue(publishes, doubt, error)

    def lost(self, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        log.warning("a commit failed, %d lanes are loaded anew: %s", len(lanes), error)
        if isinstance(error, Fenced):
            self.fenced = error
            self.polls.close(error)
        self.lanes.drop(lanes)
        for id in lanes:
            self.timers.cancel(("lane", id))
        self.spooling.lost(error)
        if self.closed:
            return
        self.relay.wake_later()  # it may have happened all the same, with new rows in the outbox
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
        self.measures.keep({group.id for queue in kept.by_id.values() for group in queue.groups.values()})
        for lane in self.lanes.loaded():
            queue = kept.by_lane[lane.id]
            lane.configure(queue.config, queue.settings())
        self.schedules.reloaded()
        self.staging.reloaded()

    # Time -------------------------------------------------------------------------------------------------

    def _lane_loaded(self, lane: Lane) -> None:
        self.schedule(lane)
        self.retention.committed(lane, self.clock.now_ms())
        if self.polls.has_waiters(self.catalog.by_lane[lane.id]):
            asyncio.get_running_loop().call_soon(self.polls.serve, lane)

    def _is_idle(self, lane: Lane) -> bool:
        """Whether a lane can be forgotten and loaded again without anybody noticing."""
        queue = self.catalog.by_lane.get(lane.id)
        return (
            lane.is_idle()
            and lane.id != self._events_lane
            and not self.commits.concerns(lane.id)
            and (queue is None or not self.polls.has_waiters(queue))
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
        self.polls.serve(lane)
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


def _deliveries(queue: Queue, lane: int, part: Sealed) -> list[Message]:
    """One message per group: what happened to it in this commit."""
    messages: list[Message] = []
    index = queue.index_of(lane)
    for group_id, events in part.events:
        group = queue.group_by_id(group_id)
        if group is not None:
            delivery = Delivery(queue.namespace, queue.name, index, group.name, events, queue.id)
            messages.append(Message(encode_delivery(delivery), content_type="application/json"))
    return messages
