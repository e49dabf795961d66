"""Dead letters of a group: list, count by reason, redrive, purge, export."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import Struct

from penstock.api.broker import Broker
from penstock.api.dead_letters import DeadRanges
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.bodies import dead_body
from penstock.fronts.http.handlers.groups import GROUP
from penstock.fronts.http.request import Answer, Stream, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import InvalidArgument, WrongKind
from penstock.wire.http.shapes import (
    CountAnswer,
    DeadAnswer,
    DeadChoice,
    DeadConditions,
    ReasonsAnswer,
    encode_json,
)

ROUTES = Routes(__name__)
NDJSON_TYPE = "application/x-ndjson"
EXPORT_AT_ONCE = 500


class DeadQuery(DeadConditions, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters: all conditions that are given hold."""

    max: int = 100
    """1 to 100 000 dead letters."""
    start: int | None = None
    """With end: offsets [start, end)."""
    end: int | None = None
    """With start: offsets [start, end)."""

    def offsets(self) -> tuple[int, int] | None:
        return _both(self.start, self.end, "start and end")


@ROUTES.add("GET", GROUP + "/dead", {200: DeadAnswer}, errors=[WrongKind])
async def list_dead(call: Call, query: DeadQuery) -> Answer:
    """Dead letters of a group with why they died."""
    conditions = {name: getattr(query, name) for name in DeadConditions.__struct_fields__}
    queue, group = call.names["queue"], call.names["group"]
    found = await call.broker.dead(queue, group, max=query.max, offsets=query.offsets(), **conditions)
    return json_answer(DeadAnswer([dead_body(dead) for dead in found]))


class RangesQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to go on, and how far."""

    lane: int | None = None
    """With offset: what a page's `next` said."""
    offset: int | None = None
    """With lane: what a page's `next` said."""
    max: int = 10_000
    """1 to 100 000 ranges."""

    def after(self) -> tuple[int, int] | None:
        return _both(self.lane, self.offset, "lane and offset")


def _both(first: int | None, second: int | None, what: str) -> tuple[int, int] | None:
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise InvalidArgument(f"{what} go together")
    return first, second


@ROUTES.add("GET", GROUP + "/dead/ranges", {200: DeadRanges}, errors=[WrongKind])
async def ranges(call: Call, query: RangesQuery) -> Answer:
    """Where dead letters are and why they died, page by page, without the messages themselves."""
    queue, group = call.names["queue"], call.names["group"]
    return json_answer(await call.broker.dead_ranges(queue, group, after=query.after(), max=query.max))


ROUTES.forward("GET", GROUP + "/dead/reasons", Broker.dead_reasons, ReasonsAnswer, name="reasons", errors=[WrongKind])
ROUTES.forward("POST", GROUP + "/dead/redrive", Broker.redrive, CountAnswer, body=DeadChoice, errors=[WrongKind])
ROUTES.forward("POST", GROUP + "/dead/purge", Broker.purge_dead, CountAnswer, body=DeadChoice, errors=[WrongKind])


@ROUTES.add("GET", GROUP + "/dead/export", {200: str}, gives=NDJSON_TYPE, errors=[WrongKind])
async def export_dead(call: Call) -> Stream:
    """All dead letters of a group, one JSON object a line."""
    first = await call.broker.dead_page(call.names["queue"], call.names["group"], max=EXPORT_AT_ONCE)

    async def lines() -> AsyncGenerator[bytes, None]:
        page = first
        while True:
            yield b"".join(encode_json(dead_body(dead)) + b"\n" for dead in page.dead)
            if page.next is None:
                return
            page = await call.broker.dead_page(
                call.names["queue"], call.names["group"], after=page.next, max=EXPORT_AT_ONCE
            )

    return Stream(lines(), NDJSON_TYPE)
