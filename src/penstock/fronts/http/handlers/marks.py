"""Marks: small durable documents by name, with versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from penstock.api.broker import Broker
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.queues import ListQuery
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import LimitReached, MarkMoved, MessageTooLarge
from penstock.wire.http.endpoints import MARK
from penstock.wire.http.shapes import MarkBody, MarksAnswer, PutMarkRequest

ROUTES = Routes(__name__)


class MarksQuery(ListQuery, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    """Marks on a page at most; it also ends at 8 MiB of values."""


@ROUTES.add("GET", "/v1/marks", {200: MarksAnswer})
async def list_marks(call: Call, query: MarksQuery) -> Answer:
    """The marks of a namespace by name, with their values."""
    return json_answer(await call.broker.marks_page(query.prefix, after=query.after, max=query.limit))


@ROUTES.answer(Broker.mark, {200: MarkBody})
async def show_mark(call: Call) -> Answer:
    """A mark: its value and version."""
    mark = await call.broker.mark(call.names["mark"])
    [written] = (await call.broker.marks_page(mark.name, max=1)).marks  # no name with this prefix comes before itself
    return json_answer(written)


@ROUTES.add("PUT", MARK, {200: MarkBody}, errors=[MarkMoved, LimitReached, MessageTooLarge])
async def put_mark(call: Call, body: PutMarkRequest) -> Answer:
    """Put a mark, whatever is there or only at the version that is expected; answered when it is durable."""
    name = call.names["mark"]
    mark = await call.broker.put_mark(name, body.value, expected_version=body.expected_version)
    return json_answer(replace(mark, value=body.value))  # as it was written: no number is rounded on the way
