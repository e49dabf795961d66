"""Read without leases: stream groups and the log by offset or time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct
from msgspec.structs import asdict

from penstock.api.results import StreamRead
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.bodies import encoded_slices, read_answer
from penstock.fronts.http.handlers.large_answers import batches_answer, decoded_answer
from penstock.fronts.http.request import Answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import OffsetGone, Overloaded, WrongKind
from penstock.wire.http.endpoints import GROUP
from penstock.wire.http.large_bodies import read_parts
from penstock.wire.http.shapes import BATCHES_TYPE, EncodedRead, ReadAnswer, ReadRequest

ROUTES = Routes(__name__)


async def _answer(call: Call, wait: float, reading: Callable[[], Awaitable[StreamRead]]) -> Answer:
    waits = wait > 0
    if waits:
        call.server.begin_wait(call.request)
    try:
        read = await reading()
    finally:
        if waits:
            call.server.end_wait(call.request)
    if call.request.accepts(BATCHES_TYPE):
        return await batches_answer(call, read.slices, lambda: read_parts(_encoded(read)))
    return await decoded_answer(call, read.slices, lambda: read_answer(read))


def _encoded(read: StreamRead) -> EncodedRead:
    slices = encoded_slices(read.slices)
    return EncodedRead(read.queue, read.lane, read.next_offset, read.primary_committed, slices, read.done, read.damaged)


@ROUTES.add("POST", GROUP + "/read", {200: ReadAnswer}, gives_batches=True, errors=[WrongKind, Overloaded])
async def read(call: Call, body: ReadRequest) -> Answer:
    """The next messages for a stream group, waiting up to `wait` seconds for the first."""
    wait, consumer = call.request.wait(body.wait), body.consumer or call.consumer
    names = call.names["queue"], call.names["group"]

    def reading() -> Awaitable[StreamRead]:
        return call.broker.read(*names, max=body.max, wait=wait, consumer=consumer, turn=body.turn, lost=body.lost)

    return await _answer(call, wait, reading)


class LogQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    lane: int | None = None
    """Needed where the queue has several."""
    offset: int | None = None
    """Begin here,"""
    time_ms: int | None = None
    """or at what was published at this time or later."""
    max: int = 100
    """1 to 100 000 messages."""
    wait: float = 0.0
    """Seconds to wait for the first."""


@ROUTES.add("GET", "/v1/queues/{queue}/log", {200: ReadAnswer}, gives_batches=True, errors=[OffsetGone, Overloaded])
async def read_from(call: Call, query: LogQuery) -> Answer:
    """Messages of the log from an offset or a time on, from the beginning without either; no group needed."""
    wait = call.request.wait(query.wait)
    options = asdict(query) | {"wait": wait}
    return await _answer(call, wait, lambda: call.broker.read_from(call.names["queue"], **options))
