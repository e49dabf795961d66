"""Looking at messages, at what became of them, and at a queue's numbers; timelines by trace id.

Next stop: `node/consume/streams.py`, `node/observe/`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from penstock.api.inspect import HistoryEntry, Inspection, Page, QueueStats, Trace
from penstock.api.measures import NodeNumbers, SpoolNumbers
from penstock.core.filters import parse
from penstock.model import (
    BATCH_MESSAGES_MAX,
    DEFAULT_GROUP,
    DEFAULT_NAMESPACE,
    EVENTS_QUEUE,
    INTEGER_MAX,
    PARTITION_CHARACTERS_MAX,
    check_integer,
    check_name,
    check_text,
)
from penstock.model.errors import InvalidArgument
from penstock.model.events import Delivery
from penstock.node.arguments import lane_of, place_after
from penstock.node.broker.names import Names
from penstock.node.catalog import Queue
from penstock.node.observe import traces
from penstock.node.observe.history import Watch
from penstock.node.observe.survey import queue_stats


class LocalInspection(Names, Inspection):
    """Looks, and notes events of a trace."""

    async def browse(
        self,
        queue: str,
        *,
        group: str | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
        partition: str | None = None,
        state: Literal["ready", "leased", "waiting", "dead", "done"] | None = None,
        filter: str | None = None,
        max: int = 100,
        after: tuple[int, int] | None = None,
    ) -> Page:
        home = self._queue(queue, "browse")
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        check_text(partition, "partition", PARTITION_CHARACTERS_MAX)
        states = ("ready", "leased", "waiting", "dead", "done")
        if state is not None and state not in states:
            raise InvalidArgument(f"state is {state!r}; it must be one of {', '.join(states)}")
        chosen = None
        if group is not None or state is not None:
            chosen = self._group(home, group or DEFAULT_GROUP)
        elif DEFAULT_GROUP in home.groups:
            chosen = home.groups[DEFAULT_GROUP]
        start = after
        if start is None and (lane is not None or offset is not None or time_ms is not None):
            lane_id = lane_of(home, lane)
            start = (lane_id, await self._place(lane_id, offset, time_ms))
        elif start is not None:
            start = place_after(start, home)
        condition = None if filter is None else parse(filter)
        return await self._services.streams.browse(
            home, chosen, start, max, partition=partition, state=state, condition=condition
        )

    def follow_events(
        self, *, queue: str | None = None, group: str | None = None, after: int | None = None, pause: float = 15.0
    ) -> AsyncIterator[list[tuple[int, Delivery]]]:
        if queue is None:
            self._check_listing()
        else:
            self.authorize("browse", "queue", queue)
        if self._services.ownership.is_sole:
            self._services.catalog.queue(DEFAULT_NAMESPACE, EVENTS_QUEUE)  # raises where events are not kept
        return self._services.feed.follow(Watch(self._namespace, queue, group), after, pause)

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        home = self._queue(queue, "browse")
        check_integer(offset, "offset", 0, INTEGER_MAX)
        return await self._services.histories.of_message(home, lane_of(home, lane), offset)

    async def stats(self, queue: str) -> QueueStats:
        home = self._visible_queue(queue, "browse")
        return queue_stats(home, await self._services.lanes.together(home.lanes), self._services.clock.now_ms())

    async def measures(self, *, queues_max: int = 1_000) -> NodeNumbers:
        self.authorize("admin", "node", "")
        check_integer(queues_max, "queues_max", 0, INTEGER_MAX)
        return await self._services.survey.numbers(queues_max)

    def damage(self) -> list[str]:
        return self._services.readiness.damage.notes()

    def spool(self) -> SpoolNumbers | None:
        self.authorize("admin", "node", "")
        return self._services.spool.numbers()

    async def trace_event(
        self,
        trace_id: str,
        name: str,
        *,
        detail: str = "",
        queue: str | None = None,
        lane: int | None = None,
        offset: int | None = None,
        consumer: str | None = None,
    ) -> None:
        self._services.lifecycle.check_open()
        self.authorize("publish", "trace", traces.check_trace_id(trace_id))
        check_name(name, "an event's name")
        traces.check_detail(detail)
        by = self.consumer_name if consumer is None else check_name(consumer, "consumer")
        place: tuple[Queue, int, int] | None = None
        if queue is None or offset is None:
            if any(value is not None for value in (queue, lane, offset)):
                raise InvalidArgument("an event about a message needs queue and offset; name both, or neither")
        else:
            home = self._queue(queue, "browse")
            place = (home, lane_of(home, lane), check_integer(offset, "offset", 0, INTEGER_MAX))
        await self._services.traces.event(self._namespace, trace_id, name, detail, by, place)

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        self._services.lifecycle.check_open()
        self.authorize("browse", "trace", traces.check_trace_id(trace_id))
        check_integer(max, "max", 1, traces.ENTRIES_MAX)
        return await self._services.traces.read(self._namespace, trace_id, max)
