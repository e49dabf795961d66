"""Traces: named events on a message, and the timeline of one id across queues."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from penstock.api.broker import Broker
from penstock.api.traces import Trace
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import NOTHING, Answer
from penstock.fronts.http.routes import Call
from penstock.wire.http.shapes import TraceEventRequest

ROUTES = Routes(__name__)


class TraceQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    max: int = 1_000
    """Entries, the oldest first."""


ROUTES.forward("GET", "/v1/traces/{trace}", Broker.trace, Trace, query=TraceQuery, name="show_trace")


@ROUTES.add("POST", "/v1/traces/{trace}/events", {204: None})
async def add_event(call: Call, body: TraceEventRequest) -> Answer:
    """Note something on a trace's timeline."""
    options = msgspec.structs.asdict(body) | {"consumer": body.consumer or call.consumer}
    await call.broker.trace_event(call.names["trace"], **options)
    return NOTHING
