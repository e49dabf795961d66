"""A commit as the statements that apply it, in MySQL's and MariaDB's dialect.

They go to the server in one packet where they fit into one, from START TRANSACTION to COMMIT: one round trip, and no
moment in which a transaction waits for a node that is paused. The server stops at the first statement that fails, so a
fence is a statement that fails. Their order is the same in every commit, lanes of one writer are never another's, and
rows are found by whole keys of an index that is named: commits of several writers never wait for each other in a
circle. It may not know connections. Next stop: `engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from penstock.model.rows import BatchRow, Commit
from penstock.store.mysql.statements import (
    PART_COLUMNS,
    SQL,
    Expression,
    Put,
    any_of,
    delete,
    filled,
    filled_by_name,
    ids,
    literals,
    numbers,
    put,
)
from penstock.store.sql import tables
from penstock.store.sql.queries import statements
from penstock.store.sql.tables import Row, is_empty

ALL: Final = 2**63 - 1
"""The bound of leftovers of a lane of which everything is gone."""
BODY_PART_BYTES: Final = 4 << 20
"""A longer body lies in several rows: neither a statement nor an answer may be longer than max_allowed_packet."""
STATEMENT_BYTES: Final = 1 << 20
"""A statement takes more rows until it is so long."""

BEGIN: Final = SQL.begin.encode()
END: Final = SQL.commit.encode()
NOTE_LEFTOVERS: Final = b"INSERT INTO leftovers"
"""How statements begin that note what has to be swept: if one changed a row, there is something."""
_VERSION: Final = Expression(b"@version")
_RAISE_CATALOG: Final = [statement.encode() for statement in statements(f"{SQL.raise_catalog};")]
_DELETE_CATALOG: Final = list(statements(f"{SQL.delete_catalog};"))

_PUT_LANES: Final = put("lanes", tables.LANE_COLUMNS, 1)
_PUT_BATCHES: Final = put("batches", PART_COLUMNS, 3)
_PUT_CATALOG: Final = put("catalog", (*tables.CATALOG.columns, "version"), len(tables.CATALOG.key))
_PUTS: Final = {
    table: put(table.name, table.columns, len(table.key)) for table in (*tables.OF_LANES, tables.OUTBOX, tables.TRACES)
}
_DELETES: Final = {table: delete(table.name, table.key) for table in (*tables.DELETED_BY_KEY, tables.OUTBOX)}
_DELETE_GROUPS: Final = [delete(table.name, ("lane", "group_id")) for table in tables.OF_GROUPS]
_DELETE_LANES: Final = [
    *(delete(name, ("lane",)) for name in ("lanes", "groups", "leases", "waiting")),
    delete("outbox", ("lane",), "outbox_by_lane"),
]
_RESTART_LANES: Final = [delete(name, ("lane",)) for name in ("batches", "dead", "dedup", "leftovers")]


def fence(commit: Commit, writer: str, generation: int) -> Iterator[bytes]:
    """Commits lock their writer and, together with others, their slots; a takeover locks slots for itself.

    It, or giving a commit up, waits for commits that have begun; later ones see the epoch or generation that it raised.
    """
    yield filled(SQL.check_writer, writer.encode(), generation)
    if commit.epochs:
        slots = numbers(sorted(commit.epochs.items()), 2)
        yield filled_by_name(SQL.check_epochs, {"count": len(commit.epochs), "slots": slots})
    if commit.catalog or commit.catalog_deleted or commit.traces_expired_ms is not None:
        yield SQL.lock_shared_rows.encode()
    lowest = [
        (lane.lane, min((row.base for row in lane.batches), default=ALL - 1))
        for lane in commit.lanes
        if lane.lane not in commit.lanes_deleted
    ]
    touched = sorted(lowest + [(lane, ALL) for lane in commit.lanes_deleted])
    if touched:
        yield filled_by_name(SQL.check_leftovers, {"lanes": numbers(touched, 2)})


def changes(commit: Commit, writer: str) -> Iterator[bytes]:
    """What the commit changes, deletes before puts. One without rows writes something all the same."""
    if is_empty(commit):
        yield filled(SQL.touch_writer, writer.encode())
        return
    yield from _deleted_lanes(commit)
    for statement in _DELETE_GROUPS:
        yield from _delete(statement, tables.groups_deleted(commit))
    for table in tables.DELETED_BY_KEY:
        yield from _delete(_DELETES[table], table.deletes(commit))
    expired = tables.bounds(commit, "dedup_expired_ms")
    if expired:
        ranges = any_of(filled(SQL.expired_dedup, *pair) for pair in sorted(expired))
        yield filled_by_name(SQL.delete_expired_dedup, {"ranges": ranges})
    yield from _put(_PUT_LANES, tables.lane_values(commit))
    for table in tables.OF_LANES:
        yield from _put(_PUTS[table], table.puts(commit))
    yield from _put(
        _PUT_BATCHES, (part for lane in commit.lanes for row in lane.batches for part in batch_parts(lane.lane, row))
    )
    yield from _trimmed(tables.bounds(commit, "trim_to"))
    yield from _of_no_lane(commit)


def packets(statements: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The statements, joined to packets that the server takes."""
    packet: list[bytes] = []
    size = 0
    for statement in statements:
        if packet and size + len(statement) + 1 > most:
            yield b";".join(packet)
            packet, size = [], 0
        packet.append(statement)
        size += len(statement) + 1
    if packet:
        yield b";".join(packet)


def batch_parts(lane: int, row: BatchRow) -> Iterator[Row]:
    """The rows of one batch. A body beside a long meta has rows of its own: no row is longer than a packet."""
    beside = BODY_PART_BYTES if len(row.meta) <= BODY_PART_BYTES // 4 else 0
    later = range(beside, len(row.body), BODY_PART_BYTES)
    bodies = [row.body[:beside], *(row.body[start : start + BODY_PART_BYTES] for start in later)]
    for part, body in enumerate(bodies):
        meta = b"" if part else row.meta
        yield lane, row.base, part, len(bodies), row.count, row.published_ms, row.bytes_end, row.size, meta, body


# Rows that go --------------------------------------------------------------------------------------------


def _delete(statement: str, keys: Sequence[Row]) -> Iterator[bytes]:
    if keys:
        yield filled_by_name(statement, {"keys": numbers(sorted(set(keys)), len(keys[0]))})


def _deleted_lanes(commit: Commit) -> Iterator[bytes]:
    """Lanes that go leave their many rows to be swept, unless they start again in the same commit."""
    changed = {lane.lane for lane in commit.lanes}
    gone = [(lane,) for lane in commit.lanes_deleted]
    for statement in _DELETE_LANES:
        yield from _delete(statement, gone)
    for statement in _RESTART_LANES:
        yield from _delete(statement, [row for row in gone if row[0] in changed])
    left = [row for row in gone if row[0] not in changed]
    if left:
        yield filled_by_name(SQL.note_deleted_lanes, {"lanes": numbers(sorted(left), 1)})


def _trimmed(trims: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Batches that end at or below an offset: some at once, and a note of the others, which reads skip from now on."""
    if trims:
        trims = sorted(trims)
        yield from _remove([(lane, 0, below) for lane, below in trims])
        yield filled_by_name(SQL.note_leftovers, {"trims": numbers(trims, 2)})


def _remove(ranges: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
    """A slice of the batches of each (lane, above, below)."""
    values = [
        {"number": number, "lane": lane, "above": above, "below": below}
        for number, (lane, above, below) in enumerate(ranges)
    ]
    ends = Expression(b", ".join(filled_by_name(SQL.trim_end, each) for each in values))
    yield filled_by_name(SQL.trim_ends, {"ends": ends})
    yield filled_by_name(SQL.trim, {"ranges": any_of(filled_by_name(SQL.trim_range, each) for each in values)})


def sweep_slice(lane: int, above: int, below: int) -> Iterator[bytes]:
    """Statements that remove some of what is left of a lane; each says how many rows it removed, but for the first."""
    yield from _remove([(lane, above, below)])
    if below == ALL:
        yield filled(SQL.sweep_dead, lane)
        yield filled(SQL.sweep_dedup, lane)


# Rows that come ------------------------------------------------------------------------------------------


def _put(statement: Put, rows: Iterable[Row]) -> Iterator[bytes]:
    """Put rows, in the order of their keys, in as many statements as their bytes need."""
    values: list[bytes] = []
    size = 0
    latest = {row[: statement.key]: row for row in rows}
    for place in sorted(latest):
        value = b"(" + literals(latest[place]) + b")"
        if values and size + len(value) > STATEMENT_BYTES:
            yield statement.head + b",".join(values) + statement.tail
            values, size = [], 0
        values.append(value)
        size += len(value)
    if values:
        yield statement.head + b",".join(values) + statement.tail


def _of_no_lane(commit: Commit) -> Iterator[bytes]:
    yield from _catalog_deletions(commit)
    catalog = tables.CATALOG.puts(commit)
    yield from _put(_PUT_CATALOG, [(kind.encode(), *values, _VERSION) for kind, *values in catalog])
    yield from _delete(_DELETES[tables.OUTBOX], [(id,) for id in commit.outbox_deleted])
    yield from _put(_PUTS[tables.OUTBOX], tables.OUTBOX.puts(commit))
    if commit.traces_expired_ms is not None:
        yield filled(SQL.delete_expired_traces, commit.traces_expired_ms)
    traces = tables.TRACES.puts(commit)
    yield from _put(_PUTS[tables.TRACES], [(of.encode(), under.encode(), *values) for of, under, *values in traces])
    yield from _settled(commit)


def _catalog_deletions(commit: Commit) -> Iterator[bytes]:
    """A new version of the catalog, and what goes from it."""
    if not (commit.catalog or commit.catalog_deleted):
        return
    yield from _RAISE_CATALOG
    if commit.catalog_deleted:
        keys = _catalog_keys(commit.catalog_deleted)
        yield from (filled_by_name(statement, keys) for statement in _DELETE_CATALOG)
    if commit.catalog:
        yield filled_by_name(SQL.undelete, _catalog_keys([(row.kind, row.id) for row in commit.catalog]))


def _catalog_keys(keys: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {"keys": any_of(filled(SQL.catalog_key, id, kind.encode()) for kind, id in keys)}


def _settled(commit: Commit) -> Iterator[bytes]:
    """What a commit says of enqueued rows."""
    if commit.enqueued_deleted:
        yield filled_by_name(SQL.delete_enqueued, {"ids": ids(commit.enqueued_deleted)})
    why: dict[tuple[str, int], list[int]] = {}
    for failure in {failure.id: failure for failure in commit.enqueued_failed}.values():
        why.setdefault((failure.error, failure.failed_ms), []).append(failure.id)
    for (error, failed_ms), failed in why.items():
        yield filled_by_name(SQL.fail_enqueued, {"ids": ids(failed), "error": error, "failed_ms": failed_ms})
    if commit.enqueued_retried:
        yield filled_by_name(SQL.retry_enqueued, {"ids": ids(commit.enqueued_retried)})
