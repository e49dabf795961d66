"""Look at messages without touching them: browse, search, one message and its history."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from penstock.fronts.http.handlers import Routes, number, path_number
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import InvalidArgument, NotFound, OffsetGone
from penstock.wire.http.shapes import HistoryAnswer, PageAnswer, ReceivedBody, received_body

ROUTES = Routes(__name__)
MESSAGE = "/v1/queues/{queue}/messages/{lane}/{offset}"


class BrowseQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    group: str | None = None
    """The group whose view `state` is; `default` without it."""
    lane: int | None = None
    """Begin at this lane; 0 is the first."""
    offset: int | None = None
    """Begin at this offset of the lane."""
    time_ms: int | None = None
    """Begin at what was published at this time or later."""
    partition: str | None = None
    """Only of this partition."""
    state: Literal["ready", "leased", "waiting", "dead", "done"] | None = None
    """Only what the group makes this of."""
    filter: str | None = None
    """A condition on metadata, as for groups."""
    max: int = 100
    """Messages of a page, 1 to 100 000."""
    after: str | None = None
    """A page's `next`."""


@ROUTES.add("GET", "/v1/queues/{queue}/messages", {200: PageAnswer}, errors=[OffsetGone])
async def browse(call: Call, query: BrowseQuery) -> Answer:
    """Messages of a queue with the state that a group gives each, lane after lane."""
    options = msgspec.structs.asdict(query) | {"after": None if query.after is None else _place(query.after)}
    page = await call.broker.browse(call.names["queue"], **options)
    following = None if page.next is None else f"{page.next[0]}:{page.next[1]}"
    return json_answer(PageAnswer(messages=[received_body(received) for received in page.messages], next=following))


def _place(text: str) -> tuple[int, int]:
    lane, colon, offset = text.partition(":")
    if not colon:
        raise InvalidArgument(f"after is {text[:40]!r}; it must be a page's next")
    return number(lane, "after's lane"), number(offset, "after's offset")


@ROUTES.add("GET", MESSAGE, {200: ReceivedBody}, errors=[OffsetGone])
async def show_message(call: Call) -> Answer:
    """One message by its place."""
    queue, lane, offset = _message(call)
    page = await call.broker.browse(queue, lane=lane, offset=offset, max=1)
    if not page.messages or (page.messages[0].lane, page.messages[0].offset) != (lane, offset):
        raise NotFound(f"queue {queue!r} has no message at offset {offset} of lane {lane}, or has it no more")
    return json_answer(received_body(page.messages[0]))


@ROUTES.add("GET", MESSAGE + "/history", {200: HistoryAnswer})
async def history(call: Call) -> Answer:
    """What happened to one message: each hand-out and how it ended."""
    queue, lane, offset = _message(call)
    return json_answer(HistoryAnswer(await call.broker.history(queue, offset, lane=lane)))


def _message(call: Call) -> tuple[str, int, int]:
    return call.names["queue"], path_number(call, "lane"), path_number(call, "offset")
