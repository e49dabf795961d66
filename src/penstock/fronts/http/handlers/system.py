"""The server itself: is it alive, can it commit, what does it measure, what happens, what can it be asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from msgspec import Meta, Struct

from penstock.fronts import metrics
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Answer, Stream, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import INTEGER_MAX
from penstock.model.errors import Unavailable
from penstock.model.events import encode_delivery
from penstock.wire.http.shapes import ReadyStatus, Status

ROUTES = Routes(__name__)
EVENTS_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15.0


class EventsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    queue: str | None = None
    """Only events of this queue."""
    group: str | None = None
    """Only events of groups of this name."""
    after: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] | None = None
    """Go on after the event with this id; without it, what happens from now on."""


@ROUTES.add("GET", "/v1/events", {200: str}, gives=EVENTS_TYPE)
async def events(call: Call, query: EventsQuery) -> Stream:
    """What happens to messages, live, as server-sent events: claimed, acked, nacked, expired, dead, redriven…"""
    after = query.after
    last = call.request.header(b"last-event-id")
    if after is None and last.isascii() and last.isdigit() and len(last) < 19:
        after = int(last)
    call.request.is_waiting = True
    batches = call.broker.follow_events(queue=query.queue, group=query.group, after=after, pause=HEARTBEAT_SECONDS)

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b": events follow\n\n"
        async for batch in batches:
            # A comment now and then shows both ends that the other is there.
            yield (
                b"".join(b"id: %d\ndata: %s\n\n" % (offset, encode_delivery(delivery)) for offset, delivery in batch)
                or b": nothing new\n\n"
            )

    return Stream(chunks(), EVENTS_TYPE)


@ROUTES.add("GET", "/healthz", {200: Status}, is_open=True)
async def alive(_call: Call) -> Answer:
    """The process answers: restart it if this does not."""
    return json_answer(Status("alive"))


@ROUTES.add("GET", "/readyz", {200: ReadyStatus}, errors=[Unavailable], is_open=True)
async def ready(call: Call) -> Answer:
    """The store takes commits: send traffic elsewhere while it does not.

    `buffering`: the store is away and publishes go to the server's spool; consumers are answered 503. `damage`: what
    was found damaged in the store, until somebody has looked at it; the server works all the same. `alarms`: memory or
    disk is low; publishes are held back and then refused, and consumers are served, so that they can make room.
    """
    if call.server.stopping:
        raise Unavailable("the server is stopping")
    broker = call.server.broker
    return json_answer(ReadyStatus(await broker.check_ready(), broker.damage(), list(broker.alarms())))


@ROUTES.add("GET", "/metrics", {200: str}, gives="text/plain; version=0.0.4; charset=utf-8")
async def measurements(call: Call) -> Answer:
    """Measurements in Prometheus' text form."""
    return Answer(200, await call.server.render_metrics(call.broker), metrics.CONTENT_TYPE)


@ROUTES.add("GET", "/openapi.json", {200: dict}, is_open=True)
async def description(call: Call) -> Answer:
    """This API as an OpenAPI 3.1 document."""
    return Answer(200, call.server.openapi())


@ROUTES.add("GET", "/docs", {200: str}, gives="text/html; charset=utf-8", is_open=True)
async def documentation(call: Call) -> Answer:
    """This API for people to read."""
    return Answer(200, call.server.page(), "text/html; charset=utf-8")
