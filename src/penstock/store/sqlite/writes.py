"""The SQLite engine's writing: what commits added up to goes into the tables, inside a transaction of the caller's.

One statement a kind of row, whatever the number of lanes. It may not know the log's files, threads or when to write.
Next stop: `engine.py`, which says when.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from penstock.model.rows import (
    CatalogRow,
    DeadRow,
    DedupRow,
    GroupRow,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)
from penstock.store.sqlite import schema as sql
from penstock.store.sqlite.file import Connection
from penstock.store.sqlite.overlay import Place, Recent, RecentLane

ROWS_A_STATEMENT: Final = 64
_PUT_MANY_IDS: Final = sql.PUT_DEDUP + ", (?, ?, ?, ?)" * (ROWS_A_STATEMENT - 1)
_PUT_MANY_BATCHES: Final = sql.PUT_BATCH + ", (?, ?, ?, ?, ?, ?, ?, ?, ?, x'')" * (ROWS_A_STATEMENT - 1)

Row = tuple[Any, ...]
Freed = dict[int, int]
"""By segment: how many bytes of bodies in it came to be needed, or with a minus are needed no more."""


def write_recent(connection: Connection, recent: Recent) -> Freed:
    """Every row. Deletes come first: all that the tables hold is older than what is put."""
    changed: Freed = defaultdict(int)
    lanes = recent.lanes
    _delete_lanes(connection, [lane for lane, row in lanes.items() if row.deleted], changed)
    _delete_rows(connection, lanes)
    trims = [(lane, row.trim_to) for lane, row in lanes.items() if row.trim_to is not None and not row.deleted]
    if trims:
        _count(connection.execute(sql.TRIM, (json.dumps(trims),)), changed)
    _put_rows(connection, lanes)
    _put_batches(connection, {lane: row.batches for lane, row in lanes.items() if row.batches}, changed)
    _write_rest(connection, recent)
    return changed


def _delete_lanes(connection: Connection, lanes: list[int], changed: Freed) -> None:
    for lane in lanes:
        _count(connection.execute(sql.DELETE_LOG, (lane,)), changed)
    for statement in sql.LANE_DELETES:
        _run_many(connection, statement, [(lane,) for lane in lanes])


def _delete_rows(connection: Connection, lanes: dict[int, RecentLane]) -> None:
    groups = [(lane, group) for lane, row in lanes.items() for group in row.groups_deleted]
    for statement in sql.GROUP_DELETES:
        _run_many(connection, statement, groups)
    _run_many(connection, sql.DELETE_LEASE, _gone((lane, row.leases) for lane, row in lanes.items()))
    _run_many(connection, sql.DELETE_WAITING, _gone((lane, row.waiting) for lane, row in lanes.items()))
    _run_many(connection, sql.DELETE_DEAD, _gone((lane, row.dead) for lane, row in lanes.items()))
    expired = [(lane, row.dedup_expired_ms) for lane, row in lanes.items() if row.dedup_expired_ms is not None]
    _run_many(connection, sql.DELETE_DEDUP, expired)


def _put_rows(connection: Connection, lanes: dict[int, RecentLane]) -> None:
    cursors = [(lane, slot_of(lane), *row.cursor) for lane, row in lanes.items() if row.cursor is not None]
    _run_many(connection, sql.PUT_LANE, cursors)
    every = lanes.items()
    _run_many(connection, sql.PUT_GROUP, [_group_values(n, put) for n, row in every for put in row.groups.values()])
    _run_many(
        connection, sql.PUT_LEASE, [_lease_values(n, put) for n, row in every for put in row.leases.values() if put]
    )
    _run_many(
        connection,
        sql.PUT_WAITING,
        [_waiting_values(n, put) for n, row in every for put in row.waiting.values() if put],
    )
    _run_many(connection, sql.PUT_DEAD, [_dead_values(n, put) for n, row in every for put in row.dead.values() if put])
    ids = [_dedup_values(n, put) for n, row in every for put in row.dedup.values()]
    _put_many(connection, sql.PUT_DEDUP, _PUT_MANY_IDS, ids)


def _put_many(connection: Connection, one: str, many: str, rows: Sequence[Row]) -> None:
    """Many to a statement: each single publish has some, and with each step Python's lock goes back and forth."""
    whole = len(rows) - len(rows) % ROWS_A_STATEMENT
    for start in range(0, whole, ROWS_A_STATEMENT):
        connection.execute(many, tuple(chain.from_iterable(rows[start : start + ROWS_A_STATEMENT])))
    _run_many(connection, one, rows[whole:])


def _put_batches(connection: Connection, lanes: dict[int, dict[int, Place]], changed: Freed) -> None:
    if not lanes:
        return
    ranges = json.dumps([(lane, min(rows), max(rows)) for lane, rows in lanes.items()])
    for lane, base in connection.execute(sql.BASES, (ranges,)).fetchall():
        if base in lanes[lane]:
            _count(connection.execute(sql.DELETE_BATCH, (lane, base)), changed)
    puts = [put for rows in lanes.values() for put in rows.values()]
    _put_many(connection, sql.PUT_BATCH, _PUT_MANY_BATCHES, puts)
    for put in puts:
        changed[put.segment] += put.size - len(put.meta)


def _write_rest(connection: Connection, recent: Recent) -> None:
    if recent.catalog:
        connection.execute(sql.RAISE_CATALOG)
    _run_many(connection, sql.DELETE_CATALOG, [key for key, row in recent.catalog.items() if row is None])
    _run_many(connection, sql.PUT_CATALOG, [_catalog_values(row) for row in recent.catalog.values() if row])
    _run_many(connection, sql.DELETE_OUTBOX, [(id,) for id, row in recent.outbox.items() if row is None])
    _run_many(connection, sql.PUT_OUTBOX, [_outbox_values(row) for row in recent.outbox.values() if row])
    if recent.traces_expired_ms is not None:
        connection.execute(sql.DELETE_TRACES, (recent.traces_expired_ms,))
    _run_many(connection, sql.PUT_TRACE, [_trace_values(row) for row in recent.traces.values()])
    _run_many(connection, sql.PUT_EPOCH, list(recent.epochs.items()))


def _count(rows: Iterable[Row], changed: Freed) -> None:
    """Take bodies that were deleted from what their segments are needed for."""
    for segment, size in rows:
        if segment is not None:
            changed[segment] -= size


def _gone(tables: Iterable[tuple[int, dict[tuple[int, int], Any]]]) -> list[Row]:
    return [(lane, *key) for lane, rows in tables for key, row in rows.items() if row is None]


def _run_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        connection.executemany(statement, rows)


def _group_values(lane: int, row: GroupRow) -> Row:
    return (lane, row.group, row.next, row.committed)


def _lease_values(lane: int, row: LeaseRow) -> Row:
    return (lane, row.group, row.lease, row.deadline_ms, row.consumer, row.entries, row.session)


def _waiting_values(lane: int, row: WaitingRow) -> Row:
    return (lane, row.group, row.chunk, row.entries)


def _dead_values(lane: int, row: DeadRow) -> Row:
    times = (row.attempts, row.reason, row.error, row.consumer, row.dead_ms)
    return (lane, row.group, row.start, row.end, *times)


def _dedup_values(lane: int, row: DedupRow) -> Row:
    return (lane, row.key, row.offset, row.expires_ms)


def _outbox_values(row: OutboxRow) -> Row:
    return (row.id, row.lane, row.offset, row.document, row.slot)


def _catalog_values(row: CatalogRow) -> Row:
    return (row.kind, row.id, row.parent, row.namespace, row.name, row.document)


def _trace_values(row: TraceRow) -> Row:
    place = (row.queue, row.queue_id, row.lane, row.offset)
    return (row.namespace, row.trace_id, row.at_ms, row.id, row.kind, *place, row.name, row.detail, row.consumer)
