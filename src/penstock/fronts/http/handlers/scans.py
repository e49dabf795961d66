"""Read whole logs: where lanes begin and end, and their batches by offset, as they are stored or as Arrow.

Nothing here is JSON but the small answers: a bulk reader does not want it message by message. Arrow is made on
a thread, where pyarrow is installed.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec
from msgspec import Struct

from penstock.api.results import Scan
from penstock.api.scan import check_columns
from penstock.api.slices import others_first
from penstock.fronts.http.errors import NOT_ACCEPTABLE, HttpError
from penstock.fronts.http.handlers import Routes, path_number
from penstock.fronts.http.handlers.large_answers import counted
from penstock.fronts.http.request import Answer, Stream
from penstock.fronts.http.routes import Call
from penstock.model.errors import OffsetGone
from penstock.wire.http.endpoints import LANE
from penstock.wire.http.shapes import ARROW_TYPE, BATCHES_TYPE, NEXT_OFFSET_HEADER, encode_msgpack

ROUTES = Routes(__name__)
PIECE_BYTES: Final = 256 * 1024
"""What is encoded and sent between two turns of the loop."""
SLICE_BYTES: Final = 100
"""What a slice costs beside its bytes; keeps thousands of tiny ones from passing as nothing."""

ToArrow = Callable[[Scan, list[str], list[bytes]], None]
"""Appends the parts of an Arrow stream to a list."""


class ScanQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    start: int
    """The first offset."""
    end: int
    """One past the last; what is not there yet is not waited for."""
    payload: bool = True
    """Whether payloads are given: 0 leaves them where they are."""
    columns: str | None = None
    """Which columns are wanted, with commas in between: metadata that none of them needs is left out."""
    where: str | None = None
    """A [condition](filters.md) on metadata: which messages are wanted."""
    group: str | None = None
    """A group of the queue: also say what it is not done with."""
    max_bytes: int | None = None
    """Bytes of encoded batches in one answer, 1 to 67 108 864; 8 MiB without it. One batch is always given, and no more
    than 64 MiB, decompressed."""


@ROUTES.add("GET", LANE + "/scan", {200: str}, gives=BATCHES_TYPE, or_gives=ARROW_TYPE, errors=[OffsetGone])
async def scan(call: Call, query: ScanQuery) -> Answer | Stream:
    """A part of a lane's log: batches as they are stored, or an Arrow stream. Go on from the next offset it names."""
    named = None if query.columns is None else query.columns.split(",") if query.columns else []
    columns = check_columns(named, query.payload, query.group)
    to_arrow = _arrow() if _wants_arrow(call) else None
    options = msgspec.structs.asdict(query) | {"columns": columns}
    found = await call.broker.scan(call.names["queue"], path_number(call, "lane"), **options)
    if to_arrow is None:
        size = sum([part.size for part in found.slices])
        return await counted(call, size, lambda: _stream(found))
    size = sum([part.unfolded for part in found.slices])
    return await counted(call, size, lambda: _arrow_answer(found, columns, to_arrow))


async def _stream(found: Scan) -> Stream:
    return Stream(_pieces(found), BATCHES_TYPE)


async def _arrow_answer(found: Scan, columns: list[str], to_arrow: ToArrow) -> Answer:
    parts: list[bytes] = []
    await asyncio.to_thread(to_arrow, found, columns, parts)
    return Answer(200, tuple(parts), ARROW_TYPE, ((NEXT_OFFSET_HEADER, str(found.next_offset)),))


async def _pieces(found: Scan) -> AsyncGenerator[bytes, None]:
    """The scan in MessagePack, a few slices at a time: encoding and sending all at once would hold up others."""
    head = [found.queue, found.queue_id, found.lane, found.first, found.end, found.next_offset]
    pieces = [_ARRAY_OF_8, *map(encode_msgpack, head), _ARRAY_LONG.pack(0xDD, len(found.slices))]
    size = 0
    for part in found.slices:
        pieces.append(encode_msgpack(part))
        size += part.size + SLICE_BYTES
        if size >= PIECE_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
            await others_first()
    yield b"".join([*pieces, encode_msgpack(found.damaged)])


_ARRAY_OF_8: Final = b"\x98"
_ARRAY_LONG: Final = struct.Struct(">BI")


def _wants_arrow(call: Call) -> bool:
    accept = call.request.header(b"accept").lower()
    if ARROW_TYPE in accept:
        return True
    if not accept or BATCHES_TYPE in accept or "*/*" in accept or "application/*" in accept:
        return False
    raise HttpError(NOT_ACCEPTABLE, f"Accept is {accept[:100]!r}; a scan is given as {BATCHES_TYPE} or {ARROW_TYPE}")


def _arrow() -> ToArrow:
    try:
        from penstock.arrow.reading import write_stream
    except ImportError as error:
        raise HttpError(
            NOT_ACCEPTABLE,
            f"this server cannot make Arrow: {error}; install it with pip install 'penstock[spark]', or ask for "
            f"{BATCHES_TYPE}",
        ) from None
    return write_stream
