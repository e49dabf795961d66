"""The SQLite engine: the store contract on one file, for one machine.

One thread writes, a few read, one moves committed pages from the write-ahead log into the file: `sqlite_threads.py`
has them, `sqlite_file.py` the file with its settings and errors, `sqlite_schema.py` the statements. Here is which
rows a commit writes and an answer reads. It may not know what a lease or a due time means. Next stop: back to the
node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.batch import is_intact
from penstock.errors import Closed, Fenced
from penstock.store import sqlite_schema as sql
from penstock.store.checks import check_commit
from penstock.store.contract import (
    BatchHead,
    BatchRow,
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    EnqueuedRow,
    EnqueuedTarget,
    FailedRow,
    GroupRow,
    LaneChange,
    LaneImage,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)
from penstock.store.sqlite_file import Connection, File
from penstock.store.sqlite_threads import Checkpoints, Gate, Threads

BUSY_MS: Final = 5000
"""How long a commit waits for another process's commit before it is `Unavailable`."""
READERS: Final = 2

Result = TypeVar("Result")
Row = tuple[Any, ...]


class SqliteStore:
    """An open SQLite file. Made by `SqliteStore.open`."""

    def __init__(self, file: File, readers: int) -> None:
        self._file = file
        self._writer = Threads("penstock-sqlite-write", 1, file)
        self._readers = Threads("penstock-sqlite-read", readers, file)
        self._gate = Gate()
        self._checkpoints = Checkpoints(self._writer, file, self._gate)
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        readers: int = READERS,
        busy_ms: int = BUSY_MS,
        migrations: Sequence[sql.Migration] = sql.MIGRATIONS,
    ) -> SqliteStore:
        """Open the file, or make it and its folder; bring its schema up to date.

        A second process may open the same file: it takes slots with `acquire`, and the first is `Fenced` from
        then on. More `readers` let more slow reads run at once; each costs a thread and its cache.
        """
        file = File(path, busy_ms)
        store = cls(file, readers)
        try:
            await store._writer.run(lambda connection: file.prepare(connection, migrations))
        except BaseException:
            await store.close()
            raise
        return store

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        def raise_epochs(connection: Connection) -> dict[int, int]:
            self._file.check_in_place()
            # Read to the end: a statement with RETURNING is not done before that.
            return {slot: connection.execute(sql.RAISE_EPOCH, (slot, owner)).fetchall()[0][0] for slot in set(slots)}

        return await self._write(raise_epochs, 0)

    async def apply(self, commit: Commit) -> None:
        def write(connection: Connection) -> None:
            self._file.check_in_place()
            before = connection.total_changes
            _check_epochs(connection, commit.epochs)
            _write_commit(connection, commit)
            if not connection.total_changes - before:
                _write_nothing(connection)

        check_commit(commit)
        await self._write(write, sum(row.size for change in commit.lanes for row in change.batches))

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        return await self._read(lambda connection: _load(connection, lanes, max(dedup_most, 0)))

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        return await self._read(lambda connection: _read_batches(connection, lane, start, end, bytes_most))

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        return await self._read(lambda connection: _read_heads(connection, lane, start, batches_most, bytes_most))

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        return await self._read(lambda connection: _find_time(connection, lane, time_ms))

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        def find(connection: Connection) -> list[DedupRow]:
            rows = (connection.execute(sql.DEDUP, (lane, key)).fetchone() for key in dict.fromkeys(keys))
            return [DedupRow(*row) for row in rows if row]

        return await self._read(find)

    async def catalog(self) -> list[CatalogRow]:
        return await self._read(lambda connection: [CatalogRow(*row) for row in connection.execute(sql.CATALOG)])

    async def outbox(self, after: int, most: int) -> list[OutboxRow]:
        def find(connection: Connection) -> list[OutboxRow]:
            return [OutboxRow(*row) for row in connection.execute(sql.OUTBOX, (after, max(most, 0)))]

        return await self._read(find)

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        def find(connection: Connection) -> list[TraceRow]:
            rows = connection.execute(sql.TRACE, (namespace, trace_id, max(most, 0)))
            return [TraceRow(*row) for row in rows]

        return await self._read(find)

    async def oldest_trace(self) -> int | None:
        def find(connection: Connection) -> int | None:
            found: int | None = connection.execute(sql.OLDEST_TRACE).fetchone()[0]
            return found

        return await self._read(find)

    # The file is the node's own: no application can put a row into it.

    async def watch_enqueued(self, wake: Callable[[], object]) -> bool:  # noqa: ARG002
        self._check_open()
        return False

    async def enqueued(self, most: int, bytes_most: int, passing: Sequence[EnqueuedTarget] = ()) -> list[EnqueuedRow]:  # noqa: ARG002
        self._check_open()
        return []

    async def failed_enqueued(self, namespace: str, after: int, most: int) -> list[FailedRow]:  # noqa: ARG002
        self._check_open()
        return []

    async def count_failed_enqueued(self) -> int:
        self._check_open()
        return 0

    async def lanes_in_use(self) -> list[int]:
        def find(connection: Connection) -> list[int]:
            rows = chain(connection.execute(sql.LEASED_LANES), connection.execute(sql.WAITING_LANES))
            return sorted({lane for (lane,) in rows})

        return await self._read(find)

    async def close(self) -> None:
        """Finish what is under way, empty the log into the file and end every thread. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        # On the writer's own thread, behind its last commit: the event loop does not wait for the disk.
        await asyncio.wrap_future(self._writer.start(self._finish))
        self._writer.end()

    def _finish(self) -> None:
        self._readers.end()
        self._checkpoints.end()

    async def _write(self, work: Callable[[Connection], Result], body_bytes: int) -> Result:
        def commit(connection: Connection) -> Result:
            result = _in_transaction(connection, "BEGIN IMMEDIATE", work)
            self._checkpoints.written(body_bytes)
            return result

        self._check_open()
        return await self._writer.run(commit)

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        def answer(connection: Connection) -> Result:
            # One transaction: all of an answer comes from the same commit.
            with self._gate.reading():
                return _in_transaction(connection, "BEGIN", work)

        self._check_open()
        return await self._readers.run(answer)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._file.path} is closed")


def _in_transaction(connection: Connection, begin: str, work: Callable[[Connection], Result]) -> Result:
    connection.execute(begin)
    result = work(connection)
    connection.execute("COMMIT")
    return result


# Writing -------------------------------------------------------------------------------------------------


def _check_epochs(connection: Connection, epochs: dict[int, int]) -> None:
    for slot, epoch in epochs.items():
        held, owner = connection.execute(sql.SLOT, (slot,)).fetchone() or (None, "nobody")
        if held != epoch:
            raise Fenced(f"slot {slot} is at epoch {held} of {owner}, not at epoch {epoch}")


def _write_nothing(connection: Connection) -> None:
    """Reach the disk all the same: a commit without rows asks whether one can be had."""
    for statement in sql.WRITE_NOTHING:
        connection.execute(statement)


def _write_commit(connection: Connection, commit: Commit) -> None:
    """Every row of the commit. One statement a kind of row, whatever the number of lanes."""
    gone = [(lane,) for lane in commit.lanes_deleted]
    for statement in sql.LANE_DELETES:
        _run_many(connection, statement, gone)
    _delete_rows(connection, commit.lanes)
    _put_rows(connection, commit.lanes)
    _run_many(connection, sql.TRIM, [(lane.lane, lane.trim_to) for lane in commit.lanes if lane.trim_to is not None])
    _run_many(connection, sql.DELETE_CATALOG, commit.catalog_deleted)
    _run_many(connection, sql.PUT_CATALOG, [_catalog_values(row) for row in commit.catalog])
    _run_many(connection, sql.DELETE_OUTBOX, [(number,) for number in commit.outbox_deleted])
    _run_many(connection, sql.PUT_OUTBOX, [(row.id, row.lane, row.offset, row.document) for row in commit.outbox])
    if commit.traces_expired_ms is not None:
        connection.execute(sql.DELETE_TRACES, (commit.traces_expired_ms,))
    _run_many(connection, sql.PUT_TRACE, [_trace_values(row) for row in commit.traces])


def _delete_rows(connection: Connection, lanes: list[LaneChange]) -> None:
    groups = [(lane.lane, group) for lane in lanes for group in lane.groups_deleted]
    for statement in sql.GROUP_DELETES:
        _run_many(connection, statement, groups)
    _run_many(connection, sql.DELETE_LEASE, [(lane.lane, *key) for lane in lanes for key in lane.leases_deleted])
    _run_many(connection, sql.DELETE_WAITING, [(lane.lane, *key) for lane in lanes for key in lane.waiting_deleted])
    _run_many(connection, sql.DELETE_DEAD, [(lane.lane, *key) for lane in lanes for key in lane.dead_deleted])
    expired = [(lane.lane, lane.dedup_expired_ms) for lane in lanes if lane.dedup_expired_ms is not None]
    _run_many(connection, sql.DELETE_DEDUP, expired)


def _put_rows(connection: Connection, lanes: list[LaneChange]) -> None:
    cursors = [(lane.lane, slot_of(lane.lane), lane.first, lane.end, lane.bytes_end) for lane in lanes]
    _run_many(connection, sql.PUT_LANE, cursors)
    _run_many(connection, sql.PUT_GROUP, [_group_values(lane.lane, row) for lane in lanes for row in lane.groups])
    _run_many(connection, sql.PUT_LEASE, [_lease_values(lane.lane, row) for lane in lanes for row in lane.leases])
    _run_many(connection, sql.PUT_WAITING, [_waiting_values(lane.lane, row) for lane in lanes for row in lane.waiting])
    _run_many(connection, sql.PUT_DEAD, [_dead_values(lane.lane, row) for lane in lanes for row in lane.dead])
    _run_many(connection, sql.PUT_DEDUP, [_dedup_values(lane.lane, row) for lane in lanes for row in lane.dedup])
    _run_many(connection, sql.PUT_BATCH, [_batch_values(lane.lane, row) for lane in lanes for row in lane.batches])


def _run_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        connection.executemany(statement, rows)


def _batch_values(lane: int, row: BatchRow) -> Row:
    return (lane, row.base, row.count, row.published_ms, row.bytes_end, row.size, row.meta, row.body)


def _group_values(lane: int, row: GroupRow) -> Row:
    return (lane, row.group, row.next, row.committed)


def _lease_values(lane: int, row: LeaseRow) -> Row:
    return (lane, row.group, row.lease, row.deadline_ms, row.consumer, row.entries)


def _waiting_values(lane: int, row: WaitingRow) -> Row:
    return (lane, row.group, row.chunk, row.entries)


def _dead_values(lane: int, row: DeadRow) -> Row:
    times = (row.attempts, row.reason, row.error, row.consumer, row.dead_ms)
    return (lane, row.group, row.start, row.end, *times)


def _dedup_values(lane: int, row: DedupRow) -> Row:
    return (lane, row.key, row.offset, row.expires_ms)


def _catalog_values(row: CatalogRow) -> Row:
    return (row.kind, row.id, row.parent, row.namespace, row.name, row.document)


def _trace_values(row: TraceRow) -> Row:
    place = (row.queue, row.queue_id, row.lane, row.offset)
    return (row.namespace, row.trace_id, row.at_ms, row.id, row.kind, *place, row.name, row.detail, row.consumer)


# Reading -------------------------------------------------------------------------------------------------


def _load(connection: Connection, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
    images = {lane: LaneImage(lane) for lane in lanes}
    wanted = (json.dumps(list(images)),)
    for lane, first, end, bytes_end, published_ms in connection.execute(sql.LANES, wanted):
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for lane, *values in connection.execute(sql.GROUPS, wanted):
        images[lane].groups.append(GroupRow(*values))
    for lane, *values in connection.execute(sql.LEASES, wanted):
        images[lane].leases.append(LeaseRow(*values))
    for lane, *values in connection.execute(sql.WAITING, wanted):
        images[lane].waiting.append(WaitingRow(*values))
    for lane, *values in connection.execute(sql.DEAD, wanted):
        images[lane].dead.append(DeadRow(*values))
    for (lane,) in connection.execute(sql.DEDUP_LANES, wanted).fetchall():
        _load_dedup(connection, images[lane], dedup_most)
    return [images[lane] for lane in lanes]


def _load_dedup(connection: Connection, image: LaneImage, most: int) -> None:
    # One more than asked for, to know whether there are more.
    rows = connection.execute(sql.DEDUP_NEWEST, (image.lane, most + 1)).fetchall()
    image.dedup_complete = len(rows) <= most
    image.dedup = [DedupRow(*row) for row in reversed(rows[:most])]


def _read_batches(connection: Connection, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
    """Sizes first: no body is read only to find that it does not fit."""
    if start >= end:
        return []
    bases: list[int] = []
    total = 0
    for base, size in connection.execute(sql.SIZES, (lane, _base_at(connection, lane, start), start, end)):
        total += size
        if bases and total > bytes_most:
            break
        bases.append(base)
    if not bases:
        return []
    rows = connection.execute(sql.BATCHES, (lane, bases[0], bases[-1]))
    # Here rather than where bodies are opened: this thread has the time, the loop's has not.
    return [
        BatchRow(base, count, published_ms, bytes_end, meta, body, is_intact(body))
        for base, count, published_ms, bytes_end, meta, body in rows
    ]


def _read_heads(connection: Connection, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
    found: list[BatchHead] = []
    total = 0
    bounds = (lane, _base_at(connection, lane, start), start, max(batches_most, 1))
    for head in _as_heads(connection.execute(sql.HEADS, bounds)):
        total += len(head.meta)
        if found and total > bytes_most:
            break
        found.append(head)
    return found


def _as_heads(rows: Iterable[Row]) -> Iterable[BatchHead]:
    return (BatchHead(*row) for row in rows)


def _base_at(connection: Connection, lane: int, offset: int) -> int:
    """Where the batch that may hold an offset begins; the offset itself where no batch begins at or before it."""
    row = connection.execute(sql.BATCH_AT, (lane, offset)).fetchone()
    return int(row[0]) if row else offset


def _find_time(connection: Connection, lane: int, time_ms: int) -> int | None:
    """Publish times never fall as offsets rise: halve the offsets, with one look at the batch in the middle each."""
    first = connection.execute(sql.FIRST_BATCH, (lane,)).fetchone()
    last = connection.execute(sql.BATCH_AT, (lane, _OFFSET_MOST)).fetchone()
    if first is None or last[1] < time_ms:
        return None
    low, high = first[0], last[0]
    while low < high:
        middle = (low + high) // 2
        base, published_ms = connection.execute(sql.BATCH_AT, (lane, middle)).fetchone()
        if published_ms < time_ms:
            low = middle + 1
        else:
            high = base
    return int(high)


_OFFSET_MOST: Final = (1 << 63) - 1
