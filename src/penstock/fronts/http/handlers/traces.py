"""Traces: named events on a message, and the timeline of one id across queues."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.wire.http.shapes import TraceAnswer, TraceEntryBody, TraceEventRequest

ROUTES = Routes()


class TraceQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    max: int = 1_000
    """Entries, the oldest first."""


@ROUTES.add("GET", "/v1/traces/{trace}", {200: TraceAnswer})
async def show_trace(call: Call, query: TraceQuery) -> Answer:
    """Where messages of a trace id went, what happened to them and what consumers noted, by time."""
    trace = await call.broker.trace(call.names["trace"], max=query.max)
    entries = [TraceEntryBody(**msgspec.structs.asdict(entry)) for entry in trace.entries]
    return json_answer(TraceAnswer(trace_id=trace.trace_id, entries=entries))


@ROUTES.add("POST", "/v1/traces/{trace}/events", {204: None})
async def add_event(call: Call, body: TraceEventRequest) -> Answer:
    """Note something on a trace's timeline."""
    await call.broker.trace_event(
        call.names["trace"],
        body.name,
        detail=body.detail,
        queue=body.queue,
        lane=body.lane,
        offset=body.offset,
        consumer=body.consumer or call.consumer,
    )
    return NOTHING
