"""Look at messages without touching them: browse, search, one message and its history."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes, path_number
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import NotFound, OffsetGone, StoreCorrupt
from penstock.wire.http.answers import HistoryAnswer
from penstock.wire.http.endpoints import QUEUE
from penstock.wire.http.shapes import ReceivedBody, received_body

ROUTES = Routes(__name__)
MESSAGE = QUEUE + "/messages/{lane}/{offset}"


@ROUTES.add("GET", MESSAGE, {200: ReceivedBody}, errors=[OffsetGone])
async def show_message(call: Call) -> Answer:
    """One message by its place."""
    queue, lane, offset = _message(call)
    page = await call.broker.browse(queue, lane=lane, offset=offset, max=1)
    if any(gap.lane == lane and gap.start <= offset < gap.end for gap in page.damaged):
        raise StoreCorrupt(f"queue {queue!r}, lane {lane}, offset {offset}: it is damaged in the store")
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
