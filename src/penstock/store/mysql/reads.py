"""Reads of a MySQL or MariaDB database that take more than one query: lane images, batches, the catalog's changes.

Each runs with a connection of the caller's. Next stop: `engine.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.model.errors import StoreCorrupt
from penstock.model.rows import BatchRow, CatalogChanges, CatalogRow, DedupRow, LaneImage
from penstock.store.mysql.commit import ALL
from penstock.store.mysql.pool import Connection
from penstock.store.mysql.statements import SQL, filled, filled_by_name
from penstock.store.sql import tables


def load(connection: Connection, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
    """The images of these lanes as they were at one moment."""
    if not lanes:
        return []
    connection.run(SQL.begin_snapshot.encode())
    images = {lane: LaneImage(lane) for lane in lanes}
    deleted = {lane for (lane,) in connection.fetch(filled(SQL.deleted_lanes, list(images)))}
    wanted = [lane for lane in images if lane not in deleted]
    if wanted:
        _fill(connection, images, wanted, dedup_most)
    connection.run(SQL.commit.encode())
    return [images[lane] for lane in lanes]


def _fill(connection: Connection, images: dict[int, LaneImage], wanted: list[int], dedup_most: int) -> None:
    for lane, first, end, bytes_end, published_ms in connection.fetch(filled(SQL.load_lanes, wanted)):
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for table in tables.OF_GROUPS:
        for lane, *values in connection.fetch(filled(SQL[f"load_{table.name}"], wanted)):
            getattr(images[lane], table.name).append(table.row(*values))
    having = [lane for (lane,) in connection.fetch(filled(SQL.lanes_with_dedup, wanted))]
    # One more than asked for, to know whether there are more; they come newest first.
    for lane in having:
        rows = connection.fetch(filled(SQL.load_dedup, lane, dedup_most + 1))
        found = [DedupRow(*values) for values in rows]
        images[lane].dedup_complete = len(found) <= dedup_most
        images[lane].dedup = found[:dedup_most][::-1]


def find_time(connection: Connection, lane: int, time_ms: int) -> int | None:
    """The base of the first batch published at or after a time: halves the offsets, with a look in the middle."""

    def before(base: int) -> tuple[int, int] | None:
        found = connection.fetch(filled_by_name(SQL.batch_before, {"lane": lane, "base": base}))
        return found[0] if found else None

    first = connection.fetch(filled_by_name(SQL.first_batch, {"lane": lane, "start": 0}))
    last = before(ALL)
    if not first or last is None or last[1] < time_ms:
        return None
    low, high = first[0][0], last[0]
    while low < high:
        middle = low + (high - low) // 2
        base, published_ms = before(middle) or (low, time_ms)
        if published_ms < time_ms:
            low = middle + 1
        else:
            high = base
    found: int = high
    return found


def joined(rows: Sequence[Any]) -> Iterator[BatchRow]:
    """Batches from the rows of their parts."""
    for _, parts in itertools.groupby(rows, key=lambda row: row[0]):
        first, *others = parts
        base, count, published_ms, bytes_end, _part, wanted, meta, body = first
        # A batch that was put again in fewer parts leaves rows behind that count no more.
        pieces = [body, *(row[7] for row in others if row[4] < wanted)]
        if len(pieces) != wanted:
            raise StoreCorrupt(f"the batch at {base} has {len(pieces)} of its {wanted} parts")
        yield BatchRow(base, count, published_ms, bytes_end, meta, body if wanted == 1 else b"".join(pieces))


def catalog_since(connection: Connection, version: int) -> CatalogChanges:
    connection.run(SQL.begin_snapshot.encode())
    counters = {name.decode(): value for name, value in connection.fetch(SQL.counters.encode())}
    is_complete = version <= 0 or version < counters["forgotten"]
    found = connection.fetch(filled(SQL.catalog_since, 0 if is_complete else version))
    gone = () if is_complete else connection.fetch(filled(SQL.catalog_deleted_since, version))
    connection.run(SQL.commit.encode())
    rows, deleted = ([catalog_row(row) for row in part] for part in (found, gone))
    return CatalogChanges(counters["catalog"], rows, deleted, is_complete)


def catalog_row(row: Any) -> CatalogRow:
    kind, *values = row
    return CatalogRow(kind.decode(), *values)
