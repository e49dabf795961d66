"""What happens around a commit: the commit loop says when, the services concerned do it.

Before it is sealed, dead letters are copied, and consumers that wait are given what is about to be published. When it
is sealed, deaths that could not be copied go to the outbox, publishes to traces, deliveries to `$events`. When it is
durable, batches are cached, deliveries counted, timers armed and waiting consumers served.

When it failed, nothing in memory of what it changed can be trusted, so it is read again from the store: lanes are
dropped and loaded again, the catalog too where it was to be changed. A node that was refused because another owns its
slots asks who owns what; one that had the store for itself never recovers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.lane import Lane, Sealed
from penstock.model.errors import Fenced, PenstockError
from penstock.model.rows import BatchRow, Commit, OutboxRow, TraceRow, slot_of
from penstock.node.background.retention import LaneRetention
from penstock.node.cache import BatchCache
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.cluster.dead_copies import DeadCopies
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.consume.waiters import Waiters
from penstock.node.lane_timers import LaneTimers
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.counters import Counters
from penstock.node.observe.events import EventWriter
from penstock.node.observe.traces import Traces
from penstock.node.spool.positions import Positions
from penstock.node.spool.spool import Spool
from penstock.node.timers import Tasks

log = logging.getLogger("penstock.node")


@dataclass(eq=False, repr=False)
class CommitHost:
    """Tells the services of each commit, and brings back what a failed one left in doubt."""

    _catalog: Catalog
    _writer: CatalogWriter
    _lanes: LaneSet
    _cache: BatchCache
    _counters: Counters
    _waiters: Waiters
    _lane_timers: LaneTimers
    _retention: LaneRetention
    _dead_copies: DeadCopies
    _outbox: Outbox
    _events: EventWriter
    _traces: Traces
    _positions: Positions
    _spool: Spool
    _tasks: Tasks
    _lifecycle: Lifecycle
    _ownership: Ownership

    def __post_init__(self) -> None:
        self.before_seal = self._waiters.serve_unsealed
        """The lane is about to be sealed, with new messages."""
        self.copy_dead = self._dead_copies.copy
        """Messages of the lane died: what can be is copied in the commit that says so."""
        self.stamp = self._spool.stamp
        """Put into a commit what tells later whether it happened; None where that cannot be."""
        self.rescue = self._spool.rescue
        """Let the spool keep and answer publishes of a failed commit; with a doubt, it may have happened."""
        self.ask_owners: Callable[[], None] | None = None
        """Asks the store which slots are still this node's; None where it has the store for itself."""

    # Sealing ----------------------------------------------------------------------------------------------

    def is_sealed_last(self, lane: Lane) -> bool:
        """Whether the lane takes in what the others' changes say, and is sealed by `sealed`."""
        return lane.id == self._events.lane

    def last_slot(self) -> int | None:
        """The slot of the lane that is sealed last; None where there is none."""
        return None if self._events.lane is None else slot_of(self._events.lane)

    def is_current(self, lane: Lane) -> bool:
        """Whether this is the lane as it is loaded now: not one of a queue that was deleted meanwhile."""
        return self._lanes.get(lane.id) is lane

    def is_deleted(self, lane: Lane) -> bool:
        return lane.id not in self._catalog.by_lane

    def sealed(
        self, sealed: list[tuple[Lane, Sealed]], now_ms: int, slot: int | None
    ) -> tuple[list[OutboxRow], list[TraceRow]]:
        """Lanes were sealed: seal the last one and add it to the list; what goes to the outbox and into traces.

        Where the round is one of a slot alone, the last lane is sealed only if it is of that slot.
        """
        outbox: list[OutboxRow] = []
        traces: list[TraceRow] = []
        for lane, part in sealed:
            queue = self._catalog.by_lane.get(lane.id)
            if queue is None:
                continue
            if part.died:
                outbox += self._dead_copies.rows(queue, lane.id, part.died)
            if part.change.batches and lane.id < EPHEMERAL_FROM:
                traces += self._traces.published(queue, lane.id, part.change.batches)
            self._events.happened(queue, lane.id, part)
        outbox += self._events.seal(sealed, now_ms, slot)
        return outbox, traces

    # Durable ----------------------------------------------------------------------------------------------

    def committed(self, sealed: list[tuple[Lane, Sealed]], durable: Commit | None) -> None:
        """A round is durable: `durable` is what the store got of it."""
        if durable is not None and durable.outbox:
            self._outbox.promised(durable.outbox)
        for lane, part in sealed:
            if part.change.batches and self._is_wanted_soon(lane, part.change.batches[0]):
                for row in part.change.batches:
                    self._cache.put(lane.id, row, is_checked=True)
            if part.change.trim_to is not None:
                self._cache.trimmed(lane.id, part.trimmed_from, part.change.trim_to)
            self._count(lane, part)
            self._lane_timers.arm(lane)
            self._retention.changed(lane)
            self._waiters.serve(lane)

    def _is_wanted_soon(self, lane: Lane, first: BatchRow) -> bool:
        """Whether what is published now may be read from memory: behind a long backlog it is pushed out unread.

        `first` is its first batch; the others are taken to be like it.
        """
        if self._cache.keeps(first, lane.lag_bytes()):
            return True
        queue = self._catalog.by_lane.get(lane.id)
        return queue is not None and self._waiters.has_waiters(queue)

    def _count(self, lane: Lane, part: Sealed) -> None:
        counters = self._counters
        if part.change.batches and lane.id != self._events.lane:
            counters.published += sum([row.count for row in part.change.batches])
        for group, events in part.events:
            exists = group in counters.groups or self._has_group(lane.id, group)
            counters.happened(group, events, exists=exists)

    def _has_group(self, lane: int, group: int) -> bool:
        queue = self._catalog.by_lane.get(lane)
        return queue is not None and queue.group_by_id(group) is not None

    # Failed -----------------------------------------------------------------------------------------------

    def lost(self, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        """A commit failed: these lanes (and the catalog) must be loaded again."""
        log.warning("a commit failed, %d lanes are loaded again: %s", len(lanes), error)
        if isinstance(error, Fenced):
            self._fenced(error)
        self._lanes.give_up(lanes)
        self._cache.forget_lanes(lanes)  # another node may store else than this one did
        for id in lanes:
            self._lane_timers.disarm(id)
        self._positions.forget()
        self._spool.lost(error)
        if catalog:
            self._writer.reload()  # also at a close: until it is read, no lane may be loaded
        if self._lifecycle.closed:
            return
        self._outbox.wake_later()  # the commit may have happened all the same, with new rows in the outbox
        # All of them: they may have leases to end, delays that pass and consumers that wait.
        for id in lanes:
            self._tasks.spawn(self._reload(id))

    def _fenced(self, error: PenstockError) -> None:
        if self.ask_owners is not None:
            self.ask_owners()
        else:
            self._lifecycle.fenced = error
            self._waiters.close(error)

    async def _reload(self, id: int) -> None:
        """Bring a lane back that has waiting consumers, as soon as the store answers."""
        pause_s = 0.05
        while not self._lifecycle.is_over and self._lanes.get(id) is None and id in self._catalog.by_lane:
            if not self._ownership.owns(slot_of(id)):
                return
            try:
                await self._lanes.load(id)
            except PenstockError as error:
                log.warning("lane %d cannot be loaded yet: %s", id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)
