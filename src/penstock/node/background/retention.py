"""What goes by itself: batches past a queue's limits, dedup ids past their window, queues nobody uses.

What every group is done with goes with the commits themselves (`core/lane/retention.py`); this is the rest, each on a
timer of its own lane or queue. Nothing here looks at a queue that did not change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from typing import Final

from penstock.core.lane import Lane
from penstock.model.errors import PenstockError
from penstock.node.catalog import Catalog, Queue
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.lanes import LaneSet
from penstock.node.timers import Tasks, Timers

LIMITS_EVERY_MS: Final = 1_000
DEDUP_EVERY_MS: Final = 60_000
HEADS_AT_ONCE: Final = 256
HEADS_BYTES: Final = 1024 * 1024


@dataclass(eq=False, repr=False)
class LaneRetention:
    """Timers that trim lanes and forget dedup ids."""

    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _timers: Timers
    _tasks: Tasks
    _ids_until_ms: Callable[[int], int]
    """Says, of a time, up to when dedup ids may be forgotten then."""

    def changed(self, lane: Lane) -> None:
        """A lane was loaded, changed or configured: look at its limits and ids after a while."""
        if lane.has_limits and lane.first < lane.visible_end:
            self._after(LIMITS_EVERY_MS, "limits", lane, self._start)
        if lane.trim_wants is not None:
            self._after(LIMITS_EVERY_MS, "trim", lane, self._feed_trim)
        if lane.dedup.by_key or not lane.dedup.complete:
            self._after(DEDUP_EVERY_MS, "dedup", lane, self._expire_ids)

    def _after(self, span_ms: int, what: str, lane: Lane, action: Callable[[Lane], None]) -> None:
        self._timers.at(self._clock.now_ms() + span_ms, (what, lane.id), lambda: action(lane))

    def _feed_trim(self, lane: Lane) -> None:
        """The slowest group stands where no head is in memory: read it, so that what lies below can go."""
        if self._lanes.get(lane.id) is lane and lane.trim_wants is not None:
            self._tasks.spawn(self._feed_and_trim(lane, lane.trim_wants))

    async def _feed_and_trim(self, lane: Lane, offset: int) -> None:
        await self._lanes.feed(lane.id, offset)
        if self._lanes.get(lane.id) is lane:
            lane.trim_again()
            self._commits.touch(lane)

    def _start(self, lane: Lane) -> None:
        if self._lanes.get(lane.id) is lane:
            self._tasks.spawn(self._apply_limits(lane))

    async def _apply_limits(self, lane: Lane) -> None:
        """Trim page by page until what is left is within the limits, or needed."""
        lanes, trimmed = self._lanes, True
        while trimmed and lanes.get(lane.id) is lane and lane.first < lane.visible_end:
            first = lane.first
            heads = await lanes.store_of(lane.id).heads(lane.id, first, HEADS_AT_ONCE, HEADS_BYTES)
            if lanes.get(lane.id) is not lane or lane.first != first:
                return
            trimmed = lane.trim_by_limits(self._clock.now_ms(), heads)
            if trimmed:
                await self._commits.commit(lane)
        self._again(lane)

    def _again(self, lane: Lane) -> None:
        """Age goes on without commits: come back when the oldest batch is due, or its readers may have gone."""
        if lane.first >= lane.visible_end:
            return
        if lane.pins:
            self._after(LIMITS_EVERY_MS, "limits", lane, self._start)
        if lane.config.retain_ms is not None:
            span_ms = max(LIMITS_EVERY_MS, min(lane.config.retain_ms // 10, 3_600_000))
            self._after(span_ms, "limits", lane, self._start)

    def _expire_ids(self, lane: Lane) -> None:
        if self._lanes.get(lane.id) is lane:
            lane.expire_dedup(self._ids_until_ms(self._clock.now_ms()))
            if lane.dirty:
                self._commits.touch(lane)
            self.changed(lane)


@dataclass(eq=False, repr=False)
class QueueRetention:
    """Timers that delete queues which nobody used for their `unused_ms`."""

    _catalog: Catalog
    _clock: Clock
    _timers: Timers
    _tasks: Tasks
    _ownership: Ownership
    _has_waiters: Callable[[Queue], bool]
    _drop_queue: Callable[[Queue], Awaitable[None]]

    async def slots_served(self, slots: Set[int]) -> None:
        for queue in self._catalog.in_slots(slots):
            self.watch(queue)

    def watch(self, queue: Queue) -> None:
        """Delete the queue when it was not used for `unused_ms`."""
        span_ms = queue.config.unused_ms
        if span_ms is not None:
            queue.used_ms = queue.used_ms or self._clock.now_ms()
            self._timers.at(queue.used_ms + span_ms, ("unused", queue.id), lambda: self._check_use(queue))

    def _check_use(self, queue: Queue) -> None:
        span_ms = queue.config.unused_ms
        if span_ms is None or queue.deleting or self._catalog.by_id.get(queue.id) is not queue:
            return
        if not self._ownership.owns(queue.slot):
            return  # its owner looks
        is_held = any(group.config.holds for group in queue.groups.values())
        if queue.consumers or is_held or self._has_waiters(queue):
            queue.used_ms = self._clock.now_ms()
        if queue.used_ms + span_ms <= self._clock.now_ms():
            self._tasks.spawn(self._delete(queue))
        else:
            self.watch(queue)

    async def _delete(self, queue: Queue) -> None:
        try:
            await self._drop_queue(queue)
        except PenstockError:
            queue.deleting = False
            queue.used_ms = self._clock.now_ms()
            self.watch(queue)
            raise
