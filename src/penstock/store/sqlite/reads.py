"""The SQLite engine's reading: rows of the tables as the contract names them, inside a transaction of the caller's.

Of a batch it says where its body is, in a file of the log or in the row itself. What is not in the tables yet comes in
as `Pending`: batches that are newer than every row, and how far a lane is trimmed. It may not know threads, or when the
tables are brought up to date. Next stop: `store/sqlite/log/bodies.py`, which reads the bodies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.model.rows import BatchHead, DedupRow, LaneImage, TraceRow
from penstock.store.sql import tables
from penstock.store.sqlite.file import Connection
from penstock.store.sqlite.log.bodies import Located
from penstock.store.sqlite.overlay import BatchPointer
from penstock.store.sqlite.statements import SQL

OFFSET_MOST: Final = (1 << 63) - 1
_LANE: Final = tuple[int, int, int, int, int]
_POINTER: Final = tuple[int, int, int, int, int, int, bytes, int, int]
_HEAD: Final = tuple[int, int, int, int, int, bytes]

Row = TypeVar("Row")


def understood(kind: type[Row], values: Sequence[object]) -> Row:
    """A row of these values. SQLite gives what a damaged page says: text where a number was, or nothing."""
    return msgspec.convert(values, kind, builtin_types=(bytes,))


class Pending(NamedTuple):
    """What of a lane's batches the tables may not know yet."""

    rows: list[BatchPointer]
    trim_to: int


def load(connection: Connection, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
    images = {lane: LaneImage(lane) for lane in lanes}
    wanted = (json.dumps(list(images)),)
    for row in connection.execute(SQL.load_lanes, wanted):
        lane, first, end, bytes_end, published_ms = understood(_LANE, row)
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for table in tables.OF_GROUPS:
        for lane, *values in connection.execute(SQL[f"load_{table.name}"], wanted):
            getattr(images[lane], table.name).append(understood(table.row, values))
    for (lane,) in connection.execute(SQL.lanes_with_dedup, wanted).fetchall():
        _load_dedup(connection, images[lane], dedup_most)
    return [images[lane] for lane in lanes]


def _load_dedup(connection: Connection, image: LaneImage, most: int) -> None:
    # One more than asked for, to know whether there are more.
    rows = connection.execute(SQL.load_dedup, (image.lane, most + 1)).fetchall()
    image.dedup_complete = len(rows) <= most
    image.dedup = [understood(DedupRow, row) for row in reversed(rows[:most])]


def find_batches(
    connection: Connection, pending: Pending, lane: int, start: int, end: int, bytes_most: int
) -> list[Located]:
    """Sizes first: no row is read only to find that its body does not fit."""
    start = max(start, pending.trim_to)
    if start >= end:
        return []
    newer = {row.base: row for row in pending.rows}
    sizes = {base: row.size for base, row in newer.items()}
    total, behind = 0, end
    for base, size in connection.execute(SQL.sizes, (lane, _base_at(connection, lane, start), start, end)):
        total += size
        if total > bytes_most and total > size:
            behind = base
            break
        sizes.setdefault(base, size)
    bases = _up_to([(base, sizes[base]) for base in sorted(sizes) if base < behind], bytes_most)
    older = [base for base in bases if base not in newer]
    rows = {base: newer[base] for base in bases if base in newer}
    inline: dict[int, bytes] = {}
    if older:
        for *values, body in connection.execute(SQL.batches, (lane, older[0], older[-1])):
            row = BatchPointer._make(understood(_POINTER, (lane, *values)))
            rows.setdefault(row.base, row)
            if not row.segment:
                inline[row.base] = understood(bytes, body)
    return [Located(rows[base], inline.get(base)) for base in bases]


def read_heads(
    connection: Connection, pending: Pending, lane: int, start: int, batches_most: int, bytes_most: int
) -> list[BatchHead]:
    start, most = max(start, pending.trim_to), max(batches_most, 1)
    heads = {row.base: BatchHead(*row[1:7]) for row in pending.rows}
    total, count, behind = 0, 0, OFFSET_MOST
    for row in connection.execute(SQL.heads, (lane, _base_at(connection, lane, start), start, most)):
        head = BatchHead(*understood(_HEAD, row))
        total, count = total + len(head.meta), count + 1
        if (total > bytes_most and count > 1) or count == most:
            behind = head.end
        heads.setdefault(head.base, head)
        if behind != OFFSET_MOST:
            break
    found = [heads[base] for base in sorted(heads) if base < behind][:most]
    bases = set(_up_to([(head.base, len(head.meta)) for head in found], bytes_most))
    return [head for head in found if head.base in bases]


def _up_to(sizes: list[tuple[int, int]], bytes_most: int) -> list[int]:
    """The bases of the first, and of those behind it as long as all together are not larger than that."""
    total = 0
    for index, (_, size) in enumerate(sizes):
        total += size
        if index and total > bytes_most:
            return [base for base, _ in sizes[:index]]
    return [base for base, _ in sizes]


def _base_at(connection: Connection, lane: int, offset: int) -> int:
    """Where the batch that may hold an offset begins; the offset itself where no batch begins at or before it."""
    row = connection.execute(SQL.batch_at, (lane, offset)).fetchone()
    return int(row[0]) if row else offset


def find_time(connection: Connection, lane: int, time_ms: int) -> int | None:
    """Publish times never fall as offsets rise: halve the offsets, with one look at the batch in the middle each."""
    first = connection.execute(SQL.first_batch, (lane,)).fetchone()
    last = connection.execute(SQL.batch_at, (lane, OFFSET_MOST)).fetchone()
    if first is None or last[1] < time_ms:
        return None
    low, high = first[0], last[0]
    while low < high:
        middle = (low + high) // 2
        base, published_ms = connection.execute(SQL.batch_at, (lane, middle)).fetchone()
        if published_ms < time_ms:
            low = middle + 1
        else:
            high = base
    return int(high)


# For the tools -------------------------------------------------------------------------------------------


def list_lanes(connection: Connection, after: int, most: int) -> list[int]:
    return [lane for (lane,) in connection.execute(SQL.list_lanes, (after, max(most, 0)))]


def list_dedup(connection: Connection, lane: int, after: bytes | None, most: int, from_offset: int) -> list[DedupRow]:
    rows = connection.execute(SQL.list_dedup, (lane, after, max(most, 0), from_offset))
    return [understood(DedupRow, row) for row in rows]


def list_traces(connection: Connection, after_ms: int, most: int) -> list[TraceRow]:
    return [understood(TraceRow, row) for row in connection.execute(SQL.list_traces, (after_ms, max(most, 1)))]
