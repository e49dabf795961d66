"""Dead letters of a group: list, count by reason, redrive, purge, export."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Stream
from penstock.fronts.http.routes import Call
from penstock.model.errors import WrongKind
from penstock.wire.http.answers import DamagedLine, DeadBody
from penstock.wire.http.endpoints import GROUP
from penstock.wire.http.shapes import encode_json

ROUTES = Routes(__name__)
NDJSON_TYPE = "application/x-ndjson"
EXPORT_AT_ONCE = 500


@ROUTES.add("GET", GROUP + "/dead/export", {200: str}, gives=NDJSON_TYPE, errors=[WrongKind])
async def export_dead(call: Call) -> Stream:
    """All dead letters of a group, one JSON object a line; `{"damaged": {…}}` names those that cannot be read."""
    first = await call.broker.dead_page(call.names["queue"], call.names["group"], max=EXPORT_AT_ONCE)

    async def pieces() -> AsyncGenerator[bytes, None]:
        page = first
        while True:
            lines = [*map(DeadBody.of, page.dead), *map(DamagedLine, page.damaged)]
            yield b"".join(encode_json(line) + b"\n" for line in lines)
            if page.next is None:
                return
            page = await call.broker.dead_page(
                call.names["queue"], call.names["group"], after=page.next, max=EXPORT_AT_ONCE
            )

    return Stream(pieces(), NDJSON_TYPE)
