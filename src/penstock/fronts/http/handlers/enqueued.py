"""Messages that applications enqueued in the database and that cannot be published: list, try again, let go."""

from __future__ import annotations

from msgspec import Struct, convert

from penstock.api.broker import Broker
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.wire.http.shapes import CountAnswer, EnqueuedChoice, FailedAnswer

ROUTES = Routes(__name__)
FAILED = "/v1/enqueued/failed"


class FailedQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to go on, and how far."""

    after: int = 0
    """A page's `next`."""
    max: int = 100
    """1 to 10 000 messages."""


@ROUTES.add("GET", FAILED, {200: FailedAnswer})
async def list_failed(call: Call, query: FailedQuery) -> Answer:
    """Enqueued messages that cannot be published, by rising id, with the reason."""
    page = await call.broker.enqueued_failed(after=query.after, max=query.max)
    return json_answer(convert(page, FailedAnswer, from_attributes=True))


ROUTES.forward("POST", FAILED + "/retry", Broker.retry_enqueued, CountAnswer, body=EnqueuedChoice, name="retry_failed")
ROUTES.forward("POST", FAILED + "/purge", Broker.purge_enqueued, CountAnswer, body=EnqueuedChoice, name="purge_failed")
