"""The SQLite engine's writing: what commits added up to goes into the tables, inside a transaction of the caller's.

One statement a kind of row, whatever the number of lanes. It may not know the log's files, threads or when to write.
Next stop: `engine.py`, which says when.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import astuple

from penstock.model.rows import slot_of
from penstock.store.sql import tables
from penstock.store.sql.tables import Row
from penstock.store.sqlite.file import Connection
from penstock.store.sqlite.overlay import BatchPointer, LaneOverlay, Overlay
from penstock.store.sqlite.statements import (
    GROUP_DELETES,
    LANE_DELETES,
    PUT_MANY_BATCHES,
    PUT_MANY_DEDUP,
    ROWS_A_STATEMENT,
    SQL,
)

Freed = dict[int, int]
"""By segment: how many bytes of bodies in it came to be needed, or with a minus are needed no more."""


def write_overlay(connection: Connection, overlay: Overlay) -> Freed:
    """Every row. Deletes come first: all that the tables hold is older than what is put."""
    changed: Freed = defaultdict(int)
    lanes = overlay.lanes
    _delete_lanes(connection, [lane for lane, row in lanes.items() if row.deleted], changed)
    _delete_rows(connection, lanes)
    trims = [(lane, row.trim_to) for lane, row in lanes.items() if row.trim_to is not None and not row.deleted]
    if trims:
        _count(connection.execute(SQL.trim, (json.dumps(trims),)), changed)
    _put_rows(connection, lanes)
    _put_batches(connection, {lane: row.batches for lane, row in lanes.items() if row.batches}, changed)
    _write_rest(connection, overlay)
    return changed


def _delete_lanes(connection: Connection, lanes: list[int], changed: Freed) -> None:
    for lane in lanes:
        _count(connection.execute(SQL.delete_log, (lane,)), changed)
    for statement in LANE_DELETES:
        _run_many(connection, statement, [(lane,) for lane in lanes])


def _delete_rows(connection: Connection, lanes: dict[int, LaneOverlay]) -> None:
    groups = [(lane, group) for lane, row in lanes.items() for group in row.groups_deleted]
    for statement in GROUP_DELETES:
        _run_many(connection, statement, groups)
    for table in tables.DELETED_BY_KEY:
        gone = [
            (lane, *key) for lane, row in lanes.items() for key, put in getattr(row, table.name).items() if put is None
        ]
        _run_many(connection, SQL[f"delete_{table.name}"], gone)
    expired = [(lane, row.dedup_expired_ms) for lane, row in lanes.items() if row.dedup_expired_ms is not None]
    _run_many(connection, SQL.delete_expired_dedup, expired)


def _put_rows(connection: Connection, lanes: dict[int, LaneOverlay]) -> None:
    cursors = [(lane, slot_of(lane), *row.cursor) for lane, row in lanes.items() if row.cursor is not None]
    _run_many(connection, SQL.put_lanes, cursors)
    for table in tables.OF_GROUPS:
        puts = [
            (lane, *astuple(put)) for lane, row in lanes.items() for put in getattr(row, table.name).values() if put
        ]
        _run_many(connection, SQL[f"put_{table.name}"], puts)
    ids = [(lane, *astuple(put)) for lane, row in lanes.items() for put in row.dedup.values()]
    _put_many(connection, SQL.put_dedup, PUT_MANY_DEDUP, ids)


def _put_many(connection: Connection, one: str, many: str, rows: Sequence[Row]) -> None:
    """Many to a statement: each single publish has some, and with each step Python's lock goes back and forth."""
    whole = len(rows) - len(rows) % ROWS_A_STATEMENT
    for start in range(0, whole, ROWS_A_STATEMENT):
        connection.execute(many, tuple(chain.from_iterable(rows[start : start + ROWS_A_STATEMENT])))
    _run_many(connection, one, rows[whole:])


def _put_batches(connection: Connection, lanes: dict[int, dict[int, BatchPointer]], changed: Freed) -> None:
    if not lanes:
        return
    ranges = json.dumps([(lane, min(rows), max(rows)) for lane, rows in lanes.items()])
    for lane, base in connection.execute(SQL.bases, (ranges,)).fetchall():
        if base in lanes[lane]:
            _count(connection.execute(SQL.delete_batch, (lane, base)), changed)
    puts = [put for rows in lanes.values() for put in rows.values()]
    _put_many(connection, SQL.put_batch, PUT_MANY_BATCHES, puts)
    for put in puts:
        changed[put.segment] += put.size - len(put.meta)


def _write_rest(connection: Connection, overlay: Overlay) -> None:
    if overlay.catalog:
        connection.execute(SQL.raise_catalog)
    _run_many(connection, SQL.delete_catalog, [key for key, row in overlay.catalog.items() if row is None])
    _run_many(connection, SQL.put_catalog, [astuple(row) for row in overlay.catalog.values() if row])
    _run_many(connection, SQL.delete_outbox, [(id,) for id, row in overlay.outbox.items() if row is None])
    _run_many(connection, SQL.put_outbox, [astuple(row) for row in overlay.outbox.values() if row])
    if overlay.traces_expired_ms is not None:
        connection.execute(SQL.delete_expired_traces, (overlay.traces_expired_ms,))
    _run_many(connection, SQL.put_traces, [astuple(row) for row in overlay.traces.values()])
    _run_many(connection, SQL.put_epoch, list(overlay.epochs.items()))


def _count(rows: Iterable[Row], changed: Freed) -> None:
    """Take bodies that were deleted from what their segments are needed for."""
    for segment, size in rows:
        if segment is not None:
            changed[segment] -= size


def _run_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        connection.executemany(statement, rows)
