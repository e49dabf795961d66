"""Messages that applications enqueued in the database and that cannot be published: list, try again, let go."""

from __future__ import annotations

from msgspec import Struct, convert

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.wire.http.enqueued import EnqueuedChoice, FailedAnswer
from penstock.wire.http.shapes import CountAnswer

ROUTES = Routes()


class FailedQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to go on, and how far."""

    after: int = 0
    """A page's `next`."""
    max: int = 100
    """1 to 10 000 messages."""


@ROUTES.add("GET", "/v1/enqueued/failed", {200: FailedAnswer})
async def list_failed(call: Call, query: FailedQuery) -> Answer:
    """Enqueued messages that cannot be published, by rising id, with the reason."""
    page = await call.broker.enqueued_failed(after=query.after, max=query.max)
    return json_answer(convert(page, FailedAnswer, from_attributes=True))


@ROUTES.add("POST", "/v1/enqueued/failed/retry", {200: CountAnswer})
async def retry_failed(call: Call, body: EnqueuedChoice) -> Answer:
    """Try enqueued messages again that could not be published; how many."""
    return json_answer(CountAnswer(await call.broker.retry_enqueued(body.ids)))


@ROUTES.add("POST", "/v1/enqueued/failed/purge", {200: CountAnswer})
async def purge_failed(call: Call, body: EnqueuedChoice) -> Answer:
    """Let enqueued messages go that could not be published; how many."""
    return json_answer(CountAnswer(await call.broker.purge_enqueued(body.ids)))
