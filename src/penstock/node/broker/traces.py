"""Timelines by trace id. Next stop: `node/observe/traces.py`."""

from __future__ import annotations

from penstock.api.traces import Trace, Traces
from penstock.model import (
    INTEGER_MAX,
    check_integer,
    check_name,
)
from penstock.model.errors import InvalidArgument
from penstock.node.arguments import lane_of
from penstock.node.broker.names import Names
from penstock.node.catalog import Queue
from penstock.node.observe import traces


class LocalTraces(Names, Traces):
    """Notes and shows events of a trace."""

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
