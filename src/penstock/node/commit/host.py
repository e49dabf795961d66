"""What happens around a commit: the commit loop says when, the services concerned do it.

Before it is sealed, consumers that wait are given what is about to be published. When it is sealed, deaths go to the
outbox, publishes to traces, deliveries to `$events`. When it is durable, batches are cached, deliveries counted, timers
armed and waiting consumers served. When it failed, `recovery.py` takes over.
"""

from __future__ import annotations

from typing import Any

from penstock.api.ticket import Ticket
from penstock.core.lane import Lane, Sealed
from penstock.model.errors import PenstockError
from penstock.model.rows import BatchRow, Commit, OutboxRow, TraceRow, slot_of
from penstock.node.background.retention import LaneRetention
from penstock.node.cache import BatchCache
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.cluster.outbox import Outbox
from penstock.node.commit.pending import Publish
from penstock.node.commit.recovery import Recovery
from penstock.node.consume.waiters import Waiters
from penstock.node.lane_timers import LaneTimers
from penstock.node.lanes import LaneSet
from penstock.node.observe.counters import Counters
from penstock.node.observe.events import EventWriter
from penstock.node.observe.traces import Traces
from penstock.node.spool.records import Doubt
from penstock.node.spool.spool import Spool


class CommitHost:
    """Tells the services of each commit."""

    def __init__(
        self,
        catalog: Catalog,
        lanes: LaneSet,
        cache: BatchCache,
        counters: Counters,
        waiters: Waiters,
        lane_timers: LaneTimers,
        retention: LaneRetention,
        outbox: Outbox,
        events: EventWriter,
        traces: Traces,
        spool: Spool,
        recovery: Recovery,
    ) -> None:
        self._catalog = catalog
        self._lanes = lanes
        self._cache = cache
        self._counters = counters
        self._waiters = waiters
        self._lane_timers = lane_timers
        self._retention = retention
        self._outbox = outbox
        self._events = events
        self._traces = traces
        self._recovery = recovery
        self.before_seal = waiters.serve_unsealed
        self.stamp = spool.stamp
        self._rescue = spool.rescue

    # Sealing ----------------------------------------------------------------------------------------------

    def is_sealed_last(self, lane: Lane) -> bool:
        return lane.id == self._events.lane

    def last_slot(self) -> int | None:
        return None if self._events.lane is None else slot_of(self._events.lane)

    def is_current(self, lane: Lane) -> bool:
        return self._lanes.get(lane.id) is lane

    def sealed(
        self, sealed: list[tuple[Lane, Sealed]], now_ms: int, slot: int | None
    ) -> tuple[list[OutboxRow], list[TraceRow]]:
        outbox: list[OutboxRow] = []
        traces: list[TraceRow] = []
        for lane, part in sealed:
            queue = self._catalog.by_lane.get(lane.id)
            if queue is None:
                continue
            if part.died:
                outbox += self._outbox.rows(queue, lane.id, part.died)
            if part.change.batches and lane.id < EPHEMERAL_FROM:
                traces += self._traces.published(queue, lane.id, part.change.batches)
            self._events.happened(queue, lane.id, part)
        outbox += self._events.seal(sealed, now_ms, slot)
        return outbox, traces

    # Durable ----------------------------------------------------------------------------------------------

    def committed(self, sealed: list[tuple[Lane, Sealed]], durable: Commit | None) -> None:
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
        self._recovery.lost(lanes, catalog, error)

    def rescue(self, publishes: list[Publish], doubt: Doubt | None, error: PenstockError) -> set[Ticket[Any]]:
        return self._rescue(publishes, doubt, error)
