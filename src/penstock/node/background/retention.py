"""What goes by itself: batches past a queue's limits, dedup ids past their window, queues nobody uses.

What every group is done with goes with the commits themselves (`core/lane/retention.py`); this is the rest, each on a
timer of its own lane or queue. Nothing here looks at a queue that did not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.lane import Lane
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

LIMITS_EVERY_MS = 1_000
DEDUP_EVERY_MS = 60_000
HEADS_AT_ONCE = 256
HEADS_BYTES = 1024 * 1024


class Retention:
    """Timers that let go of what is no longer wanted."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def committed(self, lane: Lane, now_ms: int) -> None:
        """A lane changed: look at its limits and ids after a while."""
        timers = self._node.timers
        if lane.has_limits() and lane.first < lane.visible_end:
            timers.at(now_ms + LIMITS_EVERY_MS, ("limits", lane.id), lambda: self._start(lane))
        if lane.trim_wants is not None:
            timers.at(now_ms + LIMITS_EVERY_MS, ("trim", lane.id), lambda: self._feed_trim(lane))
        if lane.dedup.by_key or not lane.dedup.complete:
            timers.at(now_ms + DEDUP_EVERY_MS, ("dedup", lane.id), lambda: self._expire_ids(lane))

    def _feed_trim(self, lane: Lane) -> None:
        """The slowest group stands where no head is in memory: read it, so that what lies below can go."""
        if self._node.lanes.get(lane.id) is lane and lane.trim_wants is not None:
            self._node.spawn(self._feed_and_trim(lane, lane.trim_wants))

    async def _feed_and_trim(self, lane: Lane, offset: int) -> None:
        await self._node.lanes.feed(lane.id, offset)
        if self._node.lanes.get(lane.id) is lane:
            lane.trim_again()
            self._node.commits.touch(lane)

    def _start(self, lane: Lane) -> None:
        if self._node.lanes.get(lane.id) is lane:
            self._node.spawn(self._apply_limits(lane))

    async def _apply_limits(self, lane: Lane) -> None:
        """Trim page by page until what is left is within the limits, or needed."""
        node = self._node
        trimmed = True
        while trimmed and node.lanes.get(lane.id) is lane and lane.first < lane.visible_end:
            first = lane.first
            heads = await node.lanes.store_of(lane.id).heads(lane.id, first, HEADS_AT_ONCE, HEADS_BYTES)
            if node.lanes.get(lane.id) is not lane or lane.first != first:
                return
            trimmed = lane.trim_by_limits(node.clock.now_ms(), heads)
            if trimmed:
                await node.commits.changed(lane)
        self._again(lane)

    def _again(self, lane: Lane) -> None:
        """Age goes on without commits: come back when the oldest batch is due, or its readers may have gone."""
        if lane.pins and lane.first < lane.visible_end:
            due_ms = self._node.clock.now_ms() + LIMITS_EVERY_MS
            self._node.timers.at(due_ms, ("limits", lane.id), lambda: self._start(lane))
        if lane.config.retain_ms is not None and lane.first < lane.visible_end:
            span_ms = max(LIMITS_EVERY_MS, min(lane.config.retain_ms // 10, 3_600_000))
            due_ms = self._node.clock.now_ms() + span_ms
            self._node.timers.at(due_ms, ("limits", lane.id), lambda: self._start(lane))

    def _expire_ids(self, lane: Lane) -> None:
        if self._node.lanes.get(lane.id) is lane:
            lane.expire_dedup(self._node.spool.ids_until_ms(self._node.clock.now_ms()))
            if lane.dirty:
                self._node.commits.touch(lane)
            self.committed(lane, self._node.clock.now_ms())

    # Queues that nobody uses ------------------------------------------------------------------------------

    def watch(self, queue: Queue) -> None:
        """Delete the queue when it was not used for `unused_ms`."""
        span_ms = queue.config.unused_ms
        if span_ms is not None:
            queue.used_ms = queue.used_ms or self._node.clock.now_ms()
            self._node.timers.at(queue.used_ms + span_ms, ("unused", queue.id), lambda: self._check_use(queue))

    def _check_use(self, queue: Queue) -> None:
        span_ms = queue.config.unused_ms
        if span_ms is None or queue.deleting or self._node.catalog.by_id.get(queue.id) is not queue:
            return
        if not self._node.ownership.owns(queue.slot):
            return  # its owner looks
        is_held = any(group.config.holds for group in queue.groups.values())
        if queue.consumers or is_held or self._node.waiters.has_waiters(queue):
            queue.used_ms = self._node.clock.now_ms()
        if queue.used_ms + span_ms <= self._node.clock.now_ms():
            self._node.spawn(self._delete(queue))
        else:
            self.watch(queue)

    async def _delete(self, queue: Queue) -> None:
        try:
            await self._node.delete_queue(queue)
        except PenstockError:
            queue.deleting = False
            queue.used_ms = self._node.clock.now_ms()
            self.watch(queue)
            raise
