"""The PostgreSQL engine: the store contract on a database that several nodes may share.

A commit is one call of a function in the database, so one round trip and one transaction, however many rows it has.
`queries.sql` and `functions.sql` have the SQL, `apply.py` the rows of a commit, `pool.py` the connections and what
their errors mean; here is which query a call of the contract runs. It may not know what a lease or a due time means.
Next stop: the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.api.ticket import in_task
from penstock.model import INTEGER_MAX
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
    NodeRow,
    OutboxRow,
    SlotRow,
    TraceRow,
)
from penstock.store.checking import check_batches
from penstock.store.contract import FAILS_CHECKSUM, Capabilities, Renewing, changes_enqueued, check_commit
from penstock.store.postgres.apply import commit_values, kept, row_of, settle_values
from penstock.store.postgres.enqueueing import PostgresEnqueueing
from penstock.store.postgres.pool import MemberCalls, Pool, StoreAddress
from penstock.store.postgres.renewing import PostgresRenewing
from penstock.store.postgres.schema import MIGRATIONS, check_made, migrate, queries_in
from penstock.store.postgres.vacuum import Vacuum
from penstock.store.sql import tables
from penstock.store.sql.lost_answer import Writer
from penstock.store.sql.queries import Migration, Queries
from penstock.store.sql.sweeping import Sweeper, apply_swept
from penstock.store.sql.tables import Row

if TYPE_CHECKING:
    import asyncpg

READERS: Final = 4
SECONDS: Final = 30.0
"""How long one call of the database may take."""

Result = TypeVar("Result")


class PostgresStore:
    """An open schema of a PostgreSQL database. Made by `PostgresStore.open`."""

    capabilities = Capabilities(is_remote=True)

    def __init__(self, pool: Pool, address: StoreAddress, seconds: float) -> None:
        self._pool = pool
        self._address = address
        self._members = MemberCalls(address, seconds)
        self._schema = address.schema
        self._sql = sql = queries_in(address.schema)
        self.enqueueing = PostgresEnqueueing(self._fetch, sql, address, seconds)
        self._writer = Writer(self._supersede)
        self._sweeper = Sweeper(self._sweep)
        self._vacuum = Vacuum(lambda: self._pool.fetch(sql.vacuum))
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        readers: int = READERS,
        seconds: float = SECONDS,
        migrations: Sequence[Migration] = MIGRATIONS,
        must_exist: bool = False,
    ) -> PostgresStore:
        """Open `postgresql://user@host/database?schema=penstock`; the schema is made where it is missing.

        Any number of processes may open the same one: a slot belongs to the last that acquired it, and the one
        before is `Fenced`. With `prepared=no` in the URL no statement is kept prepared, as a pooler older than
        PgBouncer 1.21 needs it in transaction mode. With `listen=no` no connection waits for notifications. With
        `must_exist`, nothing is made or brought up to date.
        """
        address = StoreAddress.parse(url)
        pool = await Pool.open(address, connections=readers + 1, seconds=seconds)
        store = cls(pool, address, seconds)
        try:
            await store._prepare(migrations, must_exist)
        except BaseException:
            await pool.close()
            raise
        store._sweeper.wake()  # leftovers of an earlier process
        return store

    async def _prepare(self, migrations: Sequence[Migration], must_exist: bool) -> None:
        async def make(connection: asyncpg.Connection[Any]) -> None:
            if must_exist:
                await check_made(connection, self._schema, migrations)
            await migrate(connection, self._schema, migrations)
            await connection.execute(self._sql.put_writer, self._writer.name)
            await connection.execute(self._sql.delete_old_writers)

        await self._pool.in_transaction(make)

    # Writing ----------------------------------------------------------------------------------------------

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        async def raise_epochs(connection: asyncpg.Connection[Any]) -> dict[int, int]:
            wanted = sorted(set(slots))
            await connection.execute(self._sql.lock_slots, wanted)
            return dict(await connection.fetch(self._sql.raise_epochs, wanted, owner))

        self._check_open()
        await self._writer.settle()
        epochs = await self._pool.in_transaction(raise_epochs)
        self._sweeper.wake()  # leftovers of the owner before
        return epochs

    @in_task
    async def apply(self, commit: Commit) -> None:
        check_commit(commit)
        values = commit_values(commit)
        settled = settle_values(commit) if changes_enqueued(commit) else ()
        is_empty = not settled and all(value is None for value in values)
        self._check_open()
        await self._writer.commit(lambda: self._probe(commit) if is_empty else self._apply(commit, (*values, *settled)))

    def _fence(self, commit: Commit) -> Row:
        return (self._writer.name, self._writer.generation, list(commit.epochs), list(commit.epochs.values()))

    async def _probe(self, commit: Commit) -> None:
        await self._pool.fetch_kept(self._sql.commit_nothing, *self._fence(commit))

    async def _apply(self, commit: Commit, values: Row) -> None:
        statement = self._sql.apply_and_settle if changes_enqueued(commit) else self._sql.apply
        fence = self._fence(commit)
        lanes = [change.lane for change in commit.lanes]
        rows = await apply_swept(lambda: self._pool.fetch_kept(statement, *fence, *values), lanes, self._sweep)
        if rows[0][0]:
            self._sweeper.wake()
        self._vacuum.stored(sum(len(row.meta) + len(row.body) for change in commit.lanes for row in change.batches))

    async def _sweep(self, lane: int | None = None) -> bool:
        """Sweep a slice of a lane's leftovers, or of any that no other node sweeps; whether there was anything."""
        found: bool = (await self._pool.fetch(self._sql.sweep, lane))[0][0]
        return found

    async def _supersede(self) -> int:
        writer = self._writer

        async def raise_generation(connection: asyncpg.Connection[Any]) -> int:
            await connection.execute(self._sql.lock_writer, writer.name)
            generation: int = await connection.fetchval(self._sql.raise_generation, writer.name, writer.generation + 1)
            return generation

        return await self._pool.in_transaction(raise_generation)

    # Reading ----------------------------------------------------------------------------------------------

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        async def read(connection: asyncpg.Connection[Any]) -> list[LaneImage]:
            return await _load(connection, self._sql, lanes, max(dedup_most, 0))

        return await self._read(lambda: self._pool.in_transaction(read, is_reading=True))

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        if start >= end:
            self._check_open()
            return []
        rows = await self._fetch(self._sql.read, lane, start, end, bytes_most)
        return [BatchRow(*row) for row in rows]

    async def check(self, lane: int, start: int, bytes_most: int) -> list[CheckedBatch]:
        rows = await self.read(lane, start, INTEGER_MAX, bytes_most)
        return await asyncio.to_thread(check_batches, rows)

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        rows = await self._fetch(self._sql.heads, lane, start, max(batches_most, 1), bytes_most)
        return [BatchHead(*row) for row in rows]

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        rows = await self._fetch(self._sql.find_time, lane, time_ms)
        found: int | None = rows[0][0]
        return found

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        return [DedupRow(*row) for row in await self._fetch(self._sql.find_dedup, lane, list(keys))]

    async def catalog(self) -> list[CatalogRow]:
        return [row_of(tables.CATALOG, row) for row in await self._fetch(self._sql.catalog)]

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        chosen = None if slots is None else list(slots)
        return [OutboxRow(*row) for row in await self._fetch(self._sql.outbox, after, max(most, 0), chosen)]

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        rows = await self._fetch(self._sql.find_trace, kept(namespace), kept(trace_id), max(most, 0))
        return [row_of(tables.TRACES, row) for row in rows]

    async def oldest_trace(self) -> int | None:
        found: int | None = (await self._fetch(self._sql.oldest_trace))[0][0]
        return found

    async def lanes_in_use(self) -> list[int]:
        return [lane for (lane,) in await self._fetch(self._sql.lanes_in_use)]

    # For the tools ----------------------------------------------------------------------------------------

    async def list_lanes(self, after: int, most: int) -> list[int]:
        return [lane for (lane,) in await self._fetch(self._sql.list_lanes, after, max(most, 0))]

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        return [
            DedupRow(*row) for row in await self._fetch(self._sql.list_dedup, lane, after, max(most, 0), from_offset)
        ]

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        rows = await self._fetch(self._sql.list_traces, after_ms, max(most, 1))
        return [row_of(tables.TRACES, row) for row in rows]

    async def skip_incarnations(self, up_to: int) -> None:
        await self._member(self._sql.skip_incarnations, up_to)

    # Several nodes ----------------------------------------------------------------------------------------

    async def join(self, member: Member) -> Joined:
        values = (member.name, member.url, member.version, member.lease_ms)
        return Joined(*(await self._member(self._sql.join, *values))[0])

    async def heartbeat(self, incarnation: int) -> ClusterView:
        [(now_ms, is_member, version, nodes, slots)] = await self._member(self._sql.heartbeat, incarnation)
        decoded = msgspec.json.decode
        found = [NodeRow(*row) for row in decoded(nodes or "[]")]
        return ClusterView(now_ms, is_member, version, found, [SlotRow(*row) for row in decoded(slots or "[]")])

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        await self._writer.settle()
        taken = dict(await self._member(self._sql.take, list(slots), incarnation))
        if taken:
            self._sweeper.wake()  # leftovers of the owner before
        return taken

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        await self._member(self._sql.release, list(slots), incarnation, to)

    async def leave(self, incarnation: int) -> None:
        await self._member(self._sql.leave, incarnation)

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        first: int = (await self._member(self._sql.reserve_ids, count, above))[0][0]
        return first

    async def catalog_since(self, version: int) -> CatalogChanges:
        async def read(connection: asyncpg.Connection[Any]) -> CatalogChanges:
            counters = dict(await connection.fetch(self._sql.catalog_counters))
            if version <= 0 or version < counters["forgotten"]:
                rows = await connection.fetch(self._sql.catalog)
                return CatalogChanges(counters["catalog"], [row_of(tables.CATALOG, row) for row in rows], [], True)
            rows = await connection.fetch(self._sql.catalog_since, version)
            deleted = await connection.fetch(self._sql.catalog_deleted_since, version)
            found, gone = ([row_of(tables.CATALOG, row) for row in part] for part in (rows, deleted))
            return CatalogChanges(counters["catalog"], found, gone, False)

        return await self._read(lambda: self._pool.in_transaction(read, is_reading=True))

    async def _member(self, statement: str, *values: Any) -> list[Any]:
        self._check_open()
        return await self._members.fetch(statement, *values)

    def renewing(self, seconds: float) -> Renewing:
        return PostgresRenewing(self._address, self._sql.heartbeat, seconds)

    # Life -------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return self._pool.label

    def body_place(self, lane: int, base: int) -> str:  # noqa: ARG002 - all is in one place
        return self.place

    def body_problem(self, lane: int, base: int) -> str:  # noqa: ARG002 - it is always the same
        return FAILS_CHECKSUM

    def damage(self) -> list[str]:
        return []

    async def close(self) -> None:
        """End every connection. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        await self._sweeper.close()
        await self._vacuum.close()
        await self.enqueueing.close()
        await self._writer.end(lambda: self._pool.say_goodbye(self._sql.delete_writer, self._writer.name))
        await self._members.close()
        await self._pool.close()

    async def _fetch(self, statement: str, *values: Any) -> list[Any]:
        return await self._read(lambda: self._pool.fetch(statement, *values))

    async def _read(self, work: Callable[[], Awaitable[Result]]) -> Result:
        self._check_open()
        await self._writer.settle()
        return await work()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._pool.label} is closed")


# Lane images ---------------------------------------------------------------------------------------------


async def _load(
    connection: asyncpg.Connection[Any], sql: Queries, lanes: Sequence[int], dedup_most: int
) -> list[LaneImage]:
    images = {lane: LaneImage(lane) for lane in lanes}
    deleted = {lane for (lane,) in await connection.fetch(sql.deleted_lanes, list(images))}
    wanted = [lane for lane in images if lane not in deleted]
    for lane, first, end, bytes_end, published_ms in await connection.fetch(sql.load_lanes, wanted):
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for table in tables.OF_GROUPS:
        for row in await connection.fetch(sql[f"load_{table.name}"], wanted):
            getattr(images[row[0]], table.name).append(row_of(table, row))
    # One more than asked for, to know whether there are more; they come newest first.
    for lane, *values in await connection.fetch(sql.load_dedup, wanted, dedup_most + 1):
        images[lane].dedup.append(DedupRow(*values))
    for image in images.values():
        image.dedup_complete = len(image.dedup) <= dedup_most
        image.dedup = image.dedup[:dedup_most][::-1]
    return [images[lane] for lane in lanes]
