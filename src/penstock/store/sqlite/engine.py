"""The SQLite engine: the store contract on one file and a log beside it, for one machine.

A commit is one record of the log (`store/sqlite/log/log.py`); the file's tables are the log's index, written behind
the answers (`index.py`). One thread appends where the event loop does not do it itself, one writes the tables, a few
read them, one moves pages from SQLite's own log into the file: `threads.py` has them. Here is which of them does
what, and what a read must wait for. It may not know what a lease or a due time means. Next stop: back to the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, TypeVar

from penstock.api.ticket import Ticket, ticketed
from penstock.model.errors import Closed
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    CatalogChanges,
    CatalogRow,
    CheckedBatch,
    ClusterView,
    Commit,
    DedupRow,
    Joined,
    LaneImage,
    Member,
    OutboxRow,
    TraceRow,
)
from penstock.store.contract import FAILS_CHECKSUM, Capabilities, Enqueueing, check_commit
from penstock.store.sql.queries import Migration
from penstock.store.sqlite import coordination as cluster
from penstock.store.sqlite import reads
from penstock.store.sqlite.file import MIGRATIONS, Connection, File, durably, in_transaction
from penstock.store.sqlite.index import IndexedLog
from penstock.store.sqlite.log.bodies import Located, Problems, Scratch, SegmentGone, check_bodies, read_bodies
from penstock.store.sqlite.log.records import Draft, draft
from penstock.store.sqlite.overlay import Overlay
from penstock.store.sqlite.statements import SQL
from penstock.store.sqlite.threads import Checkpoints, Gate, Threads

BUSY_MS: Final = 5000
"""How long a write of the tables waits for another process's before it fails."""
READERS: Final = 2
"""More let more slow reads run at once; each costs a thread and its cache."""
DAMAGED_MOST: Final = 10_000
"""Damaged batches whose segments are remembered."""

Result = TypeVar("Result")


class SqliteStore:
    """An open store. Made by `SqliteStore.open`."""

    capabilities = Capabilities()
    enqueueing: Enqueueing | None = None
    """The file is the node's own: no application can put a row into it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._writer = Threads("penstock-sqlite-write", 1, file)
        self._readers = Threads("penstock-sqlite-read", READERS, file)
        self._gate = Gate()
        self._checkpoints = Checkpoints(self._writer, file, self._gate)
        self._log = IndexedLog(file, self._writer, self._checkpoints)
        self._scratch = Scratch()
        self._damaged: dict[tuple[int, int], tuple[int, str]] = {}
        """Segments of batches that were read and are damaged, and what is wrong with them, by lane and base."""
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        busy_ms: int = BUSY_MS,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> SqliteStore:
        """Open the file, or make it, its folder and its log; bring its schema up to date.

        A second process may open the same file: it takes slots with `acquire`, and the first is `Fenced` from
        then on.
        """
        file = File(path, busy_ms)
        store = cls(file)
        try:
            await store._writer.run(lambda connection: file.prepare(connection, migrations))
        except BaseException:
            await store.close()
            raise
        return store

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        return await self._change_slots(lambda connection: cluster.acquire(connection, slots, owner))

    @ticketed
    def apply(self, commit: Commit) -> Ticket[None]:
        self._check_open()
        check_commit(commit)
        made = draft(commit, cluster.now_ms())
        return self._log.append(made) if isinstance(made, Draft) else self._log.append_later(made.read_back)

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        await self._indexed(lambda overlay: overlay.changes(lanes))
        return await self._read(lambda connection: reads.load(connection, lanes, max(dedup_most, 0)))

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        def find(pending: reads.Pending, connection: Connection) -> list[Located]:
            return reads.find_batches(connection, pending, lane, start, end, bytes_most)

        return await self._found(lane, start, end, find, self._bodies)

    async def check(self, lane: int, start: int, bytes_most: int) -> list[CheckedBatch]:
        def find(pending: reads.Pending, connection: Connection) -> list[Located]:
            return reads.find_batches(connection, pending, lane, start, reads.OFFSET_MOST, bytes_most)

        async def check(found: list[Located], missing: set[int]) -> list[CheckedBatch]:
            checked, problems = await self._readers.run(lambda _: check_bodies(self._log.segments, found, missing))
            self._note_damaged(found, checked, problems)
            return checked

        return await self._found(lane, start, reads.OFFSET_MOST, find, check)

    async def _found(
        self,
        lane: int,
        start: int,
        end: int,
        find: Callable[[reads.Pending, Connection], list[Located]],
        use: Callable[[list[Located], set[int]], Awaitable[Result]],
    ) -> Result:
        """Find batches and do something with their bodies, which may move in between.

        No row points to a segment that was given back. So one that is found again in a segment that was gone before
        is damaged: somebody else deleted the file.
        """
        missing: set[int] = set()
        while True:
            found = await self._read_log(lane, start, end, find)
            try:
                return await use(found, missing)
            except SegmentGone as gone:
                missing.add(gone.segment)

    async def _bodies(self, found: list[Located], missing: set[int]) -> list[BatchRow]:
        rows = None if missing else self._scratch.read_bodies(self._log.segments, found)
        if rows is not None:
            self._note_damaged(found, rows, {})
            return rows
        self._check_open()
        read, problems = await self._readers.run(lambda _: read_bodies(self._log.segments, found, missing))
        self._note_damaged(found, read, problems)
        return read

    def _note_damaged(self, found: list[Located], rows: Sequence[BatchRow | CheckedBatch], problems: Problems) -> None:
        for one, row in zip(found, rows, strict=True):
            if not row.is_intact and one.inline is None and len(self._damaged) < DAMAGED_MOST:
                problem = problems.get(row.base, FAILS_CHECKSUM)
                self._damaged[one.place.lane, row.base] = one.place.segment, problem

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        def find(pending: reads.Pending, connection: Connection) -> list[BatchHead]:
            return reads.read_heads(connection, pending, lane, start, batches_most, bytes_most)

        return await self._read_log(lane, start, reads.OFFSET_MOST, find)

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        await self._indexed(lambda overlay: lane in overlay.lanes)
        return await self._read(lambda connection: reads.find_time(connection, lane, time_ms))

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        def find(connection: Connection) -> list[DedupRow]:
            rows = (connection.execute(SQL.find_dedup, (lane, key)).fetchone() for key in dict.fromkeys(keys))
            return [reads.understood(DedupRow, row) for row in rows if row]

        self._check_open()
        pending = self._log.pending_ids(lane, keys)
        if pending is None:
            await self._write(self._log.bring_up_to_date)
        older = await self._read(find)
        return list(({row.key: row for row in older} | (pending or {})).values())

    async def catalog(self) -> list[CatalogRow]:
        await self._indexed(lambda overlay: overlay.catalog)
        return await self._read(
            lambda connection: [reads.understood(CatalogRow, row) for row in connection.execute(SQL.catalog)]
        )

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        def find(connection: Connection) -> list[OutboxRow]:
            if slots is None:
                return [
                    reads.understood(OutboxRow, row) for row in connection.execute(SQL.outbox, (after, max(most, 0)))
                ]
            rows = (reads.understood(OutboxRow, row) for row in connection.execute(SQL.outbox, (after, -1)))
            return list(islice((row for row in rows if row.slot in slots), max(most, 0)))

        await self._indexed(lambda overlay: overlay.outbox or any(row.deleted for row in overlay.lanes.values()))
        return await self._read(find)

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        values = (namespace, trace_id, max(most, 0))
        await self._indexed(_changes_traces)
        return await self._read(
            lambda connection: [reads.understood(TraceRow, row) for row in connection.execute(SQL.find_trace, values)]
        )

    async def oldest_trace(self) -> int | None:
        await self._indexed(_changes_traces)
        found: tuple[int | None] = await self._read(lambda connection: connection.execute(SQL.oldest_trace).fetchone())
        return found[0]

    async def lanes_in_use(self) -> list[int]:
        def find(connection: Connection) -> list[int]:
            rows = chain(connection.execute(SQL.leases_in_use), connection.execute(SQL.waiting_in_use))
            return sorted({lane for (lane,) in rows})

        await self._indexed(lambda overlay: overlay.lanes)
        return await self._read(find)

    # For the tools ----------------------------------------------------------------------------------------

    async def list_lanes(self, after: int, most: int) -> list[int]:
        await self._indexed(lambda overlay: overlay.lanes)
        return await self._read(lambda connection: reads.list_lanes(connection, after, most))

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        await self._indexed(lambda overlay: lane in overlay.lanes)
        return await self._read(lambda connection: reads.list_dedup(connection, lane, after, most, from_offset))

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        await self._indexed(_changes_traces)
        return await self._read(lambda connection: reads.list_traces(connection, after_ms, most))

    async def skip_incarnations(self, up_to: int) -> None:
        await self._write_durably(lambda connection: cluster.skip_incarnations(connection, up_to))

    # Several nodes ----------------------------------------------------------------------------------------

    async def join(self, member: Member) -> Joined:
        return await self._write_durably(lambda connection: cluster.join(connection, member))

    async def heartbeat(self, incarnation: int) -> ClusterView:
        def beat(connection: Connection) -> ClusterView:
            # Nothing of it must outlive a loss of power, after which nobody is there.
            return in_transaction(connection, "BEGIN IMMEDIATE", partial(cluster.heartbeat, incarnation=incarnation))

        await self._indexed(lambda overlay: overlay.catalog)
        return await self._write(beat)

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        return await self._change_slots(lambda connection: cluster.take(connection, slots, incarnation))

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        await self._change_slots(lambda connection: cluster.release(connection, slots, incarnation, to))

    async def leave(self, incarnation: int) -> None:
        await self._change_slots(lambda connection: cluster.leave(connection, incarnation))

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        return await self._write_durably(lambda connection: cluster.reserve_ids(connection, count, above))

    async def catalog_since(self, version: int) -> CatalogChanges:
        await self._indexed(lambda overlay: overlay.catalog)
        return await self._read(lambda connection: cluster.catalog_since(connection, version))

    # Life -------------------------------------------------------------------------------------------------

    def renewing(self, _seconds: float) -> None:
        return None

    @property
    def place(self) -> str:
        return str(self._file.path)

    def body_place(self, lane: int, base: int) -> str:
        known = self._damaged.get((lane, base))
        return self.place if known is None else str(self._log.segments.path(known[0]))

    def body_problem(self, lane: int, base: int) -> str:
        known = self._damaged.get((lane, base))
        return FAILS_CHECKSUM if known is None else known[1]

    def damage(self) -> list[str]:
        return self._log.cuts.notes()

    async def close(self) -> None:
        """Finish what is under way, bring all of the log into the file and end every thread. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        # First the commit under way, which may need the writer; then, on the writer's own thread, the rest: the event
        # loop does not wait for the disk.
        await self._log.end_appends()
        self._log.hurry()
        await asyncio.wrap_future(self._writer.start(self._finish))
        self._writer.end()

    def _finish(self) -> None:
        self._readers.end()
        self._log.finish()
        self._checkpoints.end()
        self._log.close()

    async def _indexed(self, concerns: Callable[[Overlay], object]) -> None:
        """Wait until the tables know all that was answered, where something of it concerns the reader."""
        self._check_open()
        if self._log.is_behind(concerns):
            await self._write(self._log.bring_up_to_date)

    async def _read_log(
        self, lane: int, start: int, end: int, find: Callable[[reads.Pending, Connection], Result]
    ) -> Result:
        """Read of batches from the tables, with those that these lack."""
        self._check_open()
        pending = self._log.pending(lane, start, end)
        if pending is None:
            await self._write(self._log.bring_up_to_date)
            pending = self._log.pending(lane, start, end) or reads.Pending([], 0)
        return await self._read(partial(find, pending))

    async def _change_slots(self, work: Callable[[Connection], Result]) -> Result:
        self._check_open()
        return await self._write(lambda connection: self._log.change_slots(connection, work))

    async def _write_durably(self, work: Callable[[Connection], Result]) -> Result:
        def write(connection: Connection) -> Result:
            self._file.check_in_place()
            return durably(connection, work)

        self._check_open()
        return await self._write(write)

    async def _write(self, work: Callable[[Connection], Result]) -> Result:
        self._log.hurry()
        return await self._writer.run(work)

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        def answer(connection: Connection) -> Result:
            # One transaction: all of an answer comes from the same commit.
            with self._gate.reading():
                return in_transaction(connection, "BEGIN", work)

        self._check_open()
        return await self._readers.run(answer)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._file.path} is closed")


def _changes_traces(overlay: Overlay) -> bool:
    return bool(overlay.traces) or overlay.traces_expired_ms is not None
