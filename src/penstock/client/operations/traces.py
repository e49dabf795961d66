"""Timelines by trace id, over HTTP."""

from __future__ import annotations

from penstock.api.traces import Trace, Traces
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests
from penstock.wire.http.shapes import TraceEventRequest


class ClientTraces(Requests, Traces):
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
        by = self.consumer_name if consumer is None else consumer
        body = TraceEventRequest(name=name, detail=detail, queue=queue, lane=lane, offset=offset, consumer=by)
        await self._send(b"POST", self._target("traces", trace_id, "events"), body)

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        return await self._get(Trace, with_query(self._target("traces", trace_id), max=max))
