"""Numbers about queues and groups, counted from what lanes have in memory when asked."""

from __future__ import annotations

from penstock.api.inspect import GroupStats, QueueStats
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.node.catalog import Group, Queue


def queue_stats(queue: Queue, lanes: list[Lane], now_ms: int) -> QueueStats:
    """The numbers of a queue, whose lanes these are."""
    return QueueStats(
        queue=queue.name,
        namespace=queue.namespace,
        lanes=len(lanes),
        messages=sum(lane.visible_end - lane.first for lane in lanes),
        published=sum(lane.visible_end for lane in lanes),
        bytes_published=sum(lane.bytes_end for lane in lanes),
        groups=[group_stats(lanes, group, now_ms) for group in queue.groups.values()],
        consumers=len(queue.consumers),
    )


def group_stats(lanes: list[Lane], group: Group, now_ms: int) -> GroupStats:
    """The numbers of one group over these lanes."""
    ready = leased = scheduled = dead = lag = 0
    oldest: list[int] = []
    for lane in lanes:
        state = lane.groups.get(group.id)
        if isinstance(state, WorkGroup):
            later = sum(entry.count for entry in state.waiting.by_start.values() if entry.due_ms > now_ms)
            ahead = max(0, lane.visible_end - state.next)
            ready += ahead + state.waiting.count - later
            scheduled += later
            leased += state.leases.count
            dead += state.dead.count
            lag += ahead + state.waiting.count + state.leases.count
            oldest.append(state.watermark())
        elif isinstance(state, StreamGroup):
            # What retention took before it was read is not there to be read.
            ready += lane.visible_end - max(state.next, lane.first)
            lag += lane.visible_end - max(state.committed, lane.first)
            oldest.append(max(state.committed, lane.first))
    return GroupStats(
        group=group.name,
        kind=group.config.kind,
        ready=ready,
        leased=leased,
        scheduled=scheduled,
        dead=dead,
        lag=lag,
        oldest_offset=min(oldest, default=0),
        paused=group.settings.paused,
    )
