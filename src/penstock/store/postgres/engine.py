"""The PostgreSQL engine: the store contract on a database that several nodes may share.

A commit is one call of a function in the database, so one round trip and one transaction, however many rows it has.
`schema.py` has the tables and statements, `pool.py` the connections and what their errors mean; here
is which rows a commit writes and an answer reads. It may not know what a lease or a due time means. Next stop: the
node.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.model.errors import Closed, Fenced, InvalidArgument, PenstockError, StoreCorrupt
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    CatalogChanges,
    CatalogRow,
    ClusterView,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    Joined,
    LaneImage,
    LeaseRow,
    Member,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)
from penstock.store.checks import changes_enqueued, check_commit
from penstock.store.contract import CallbackLog, Capabilities
from penstock.store.postgres import coordination as cluster
from penstock.store.postgres import schema as sql
from penstock.store.postgres.enqueueing import PostgresEnqueueing, settle_values
from penstock.store.postgres.pool import Pool, StoreAddress
from penstock.store.postgres.vacuum import Vacuum
from penstock.store.sql.sweeping import Sweeper, apply_swept
from penstock.store.sql.text import kept, restored

if TYPE_CHECKING:
    import asyncpg

READERS: Final = 4
SECONDS: Final = 30.0
"""How long one call of the database may take."""

Result = TypeVar("Result")
Row = tuple[Any, ...]


class PostgresStore:
    """An open schema of a PostgreSQL database. Made by `PostgresStore.open`."""

    capabilities = Capabilities(is_remote=True)
    callback_log: CallbackLog | None = None

    def __init__(self, pool: Pool, address: StoreAddress, url: str, seconds: float) -> None:
        self._pool = pool
        self._members = MemberCalls(url, seconds)
        self._schema = address.schema
        self.enqueueing = PostgresEnqueueing(self._fetch, address, seconds)
        self._writer = secrets.token_hex(16)
        self._generation = 1
        self._is_unsure = False
        """The answer of a commit was lost: it may come into force as long as it was not given up."""
        self._deciding = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._sweeper = Sweeper(self._sweep)
        self._vacuum = Vacuum(lambda: self._pool.execute(self._sql(sql.VACUUM)))
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        readers: int = READERS,
        seconds: float = SECONDS,
        migrations: Sequence[sql.Migration] = sql.MIGRATIONS,
    ) -> PostgresStore:
        """Open `postgresql://user@host/database?schema=penstock`; the schema is made where it is missing.

        Any number of processes may open the same one: a slot belongs to who acquired it last, and whoever had it
        before is `Fenced`. With `prepared=no` in the URL no statement is kept prepared, as a pooler older than
        PgBouncer 1.21 needs it in transaction mode. With `listen=no` no connection waits for notifications.
        """
        address = StoreAddress.parse(url)
        pool = await Pool.open(address, connections=readers + 1, seconds=seconds)
        store = cls(pool, address, url, seconds)
        try:
            await store._prepare(migrations)
        except BaseException:
            await pool.close()
            raise
        store._sweeper.wake()  # what an earlier process did not come to
        return store

    async def _prepare(self, migrations: Sequence[sql.Migration]) -> None:
        async def make(connection: asyncpg.Connection[Any]) -> None:
            await migrate(connection, self._schema, migrations)
            await connection.execute(self._sql(sql.NEW_WRITER), self._writer)
            await connection.execute(self._sql(sql.OLD_WRITERS))

        await self._pool.in_transaction(make)

    # Writing ----------------------------------------------------------------------------------------------

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        async def raise_epochs(connection: asyncpg.Connection[Any]) -> dict[int, int]:
            wanted = sorted(set(slots))
            await connection.execute(self._sql(sql.LOCK_SLOTS), wanted)
            return dict(await connection.fetch(self._sql(sql.RAISE_EPOCHS), wanted, owner))

        self._check_open()
        await self._decide()
        epochs = await self._pool.in_transaction(raise_epochs)
        self._sweeper.wake()  # what the owner before did not come to
        return epochs

    async def apply(self, commit: Commit) -> None:
        check_commit(commit)
        values = commit_values(commit)
        settled = settle_values(commit) if changes_enqueued(commit) else ()
        self._check_open()
        async with self._writing:
            await self._decide()
            fence = (self._writer, self._generation, *_fence(commit))
            try:
                if settled or any(value is not None for value in values):
                    await self._apply(commit, (*fence, *values, *settled))
                else:
                    await self._pool.fetch_kept(self._sql(cluster.COMMIT_NOTHING), *fence)
            except (Fenced, InvalidArgument, StoreCorrupt):
                raise  # the database said no
            except BaseException as error:
                self._is_unsure = not (isinstance(error, PenstockError) and error.is_refused)
                raise

    async def _apply(self, commit: Commit, values: Row) -> None:
        statement = self._sql(sql.APPLY_AND_SETTLE if changes_enqueued(commit) else sql.APPLY)
        lanes = [change.lane for change in commit.lanes]
        rows = await apply_swept(lambda: self._pool.fetch_kept(statement, *values), lanes, self._sweep)
        if rows[0][0]:
            self._sweeper.wake()
        self._vacuum.stored(sum(len(row.meta) + len(row.body) for change in commit.lanes for row in change.batches))

    async def _sweep(self, lane: int | None = None) -> bool:
        """Remove a slice of what is left of a lane, or of any that nobody else sweeps; whether there was anything."""
        found: bool = (await self._pool.fetch(self._sql(sql.SWEEP), lane))[0][0]
        return found

    async def _decide(self) -> None:
        """If the answer of a commit was lost, make sure that it is in force by now or never will be."""

        async def give_up(connection: asyncpg.Connection[Any]) -> int:
            await connection.execute(self._sql(sql.GIVE_UP), self._writer)
            generation: int = await connection.fetchval(
                self._sql(sql.NEXT_GENERATION), self._writer, self._generation + 1
            )
            return generation

        if not self._is_unsure:
            return
        async with self._deciding:
            if self._is_unsure:
                self._generation = await self._pool.in_transaction(give_up)
                self._is_unsure = False

    # Reading ----------------------------------------------------------------------------------------------

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        async def read(connection: asyncpg.Connection[Any]) -> list[LaneImage]:
            return await _load(connection, self._sql, lanes, max(dedup_most, 0))

        return await self._read(lambda: self._pool.in_transaction(read, is_reading=True))

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        if start >= end:
            self._check_open()
            return []
        rows = await self._fetch(sql.BATCHES, lane, start, end, bytes_most)
        return [BatchRow(*row) for row in rows]

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        rows = await self._fetch(sql.HEADS, lane, start, max(batches_most, 1), bytes_most)
        return [BatchHead(*row) for row in rows]

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        rows = await self._fetch(sql.FIND_TIME, lane, time_ms)
        found: int | None = rows[0][0]
        return found

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        return [DedupRow(*row) for row in await self._fetch(sql.DEDUP, lane, list(keys))]

    async def catalog(self) -> list[CatalogRow]:
        return [cluster.catalog_row(row) for row in await self._fetch(sql.CATALOG)]

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        chosen = None if slots is None else list(slots)
        return [OutboxRow(*row) for row in await self._fetch(sql.OUTBOX, after, max(most, 0), chosen)]

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        rows = await self._fetch(sql.TRACE, kept(namespace), kept(trace_id), max(most, 0))
        return [
            TraceRow(
                restored(of), restored(under), at_ms, id, restored(kind), None if queue is None else restored(queue),
                queue_id, lane, offset, restored(name), restored(detail), restored(consumer),
            )
            for of, under, at_ms, id, kind, queue, queue_id, lane, offset, name, detail, consumer in rows
        ]  # fmt: skip

    async def oldest_trace(self) -> int | None:
        found: int | None = (await self._fetch(sql.OLDEST_TRACE))[0][0]
        return found

    async def lanes_in_use(self) -> list[int]:
        return [lane for (lane,) in await self._fetch(sql.LANES_IN_USE)]

    # Several nodes ----------------------------------------------------------------------------------------

    async def join(self, member: Member) -> Joined:
        values = (member.name, member.url, member.version, member.lease_ms)
        return Joined(*(await self._member(cluster.JOIN, *values))[0])

    async def heartbeat(self, incarnation: int) -> ClusterView:
        return cluster.view_of((await self._member(cluster.HEARTBEAT, incarnation))[0])

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        await self._decide()
        taken = dict(await self._member(cluster.TAKE, list(slots), incarnation))
        if taken:
            self._sweeper.wake()  # what the owner before did not come to
        return taken

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        await self._member(cluster.RELEASE, list(slots), incarnation, to)

    async def leave(self, incarnation: int) -> None:
        await self._member(cluster.LEAVE, incarnation)

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        first: int = (await self._member(cluster.RESERVE_IDS, count, above))[0][0]
        return first

    async def catalog_since(self, version: int) -> CatalogChanges:
        async def read(connection: asyncpg.Connection[Any]) -> CatalogChanges:
            counters = dict(await connection.fetch(self._sql(cluster.COUNTERS)))
            if version <= 0 or version < counters["forgotten"]:
                rows = await connection.fetch(self._sql(sql.CATALOG))
                return CatalogChanges(counters["catalog"], [cluster.catalog_row(row) for row in rows], [], True)
            rows = await connection.fetch(self._sql(cluster.CATALOG_SINCE), version)
            deleted = await connection.fetch(self._sql(cluster.DELETED_SINCE), version)
            found, gone = ([cluster.catalog_row(row) for row in part] for part in (rows, deleted))
            return CatalogChanges(counters["catalog"], found, gone, False)

        return await self._read(lambda: self._pool.in_transaction(read, is_reading=True))

    async def _member(self, statement: str, *values: Any) -> list[Any]:
        self._check_open()
        return await self._members.fetch(self._sql(statement), *values)

    # Life -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End every connection. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        await self._sweeper.close()
        await self._vacuum.close()
        await self.enqueueing.close()
        async with self._writing:  # behind the last commit
            await self._pool.say_goodbye(self._sql(sql.END_WRITER), self._writer)
        await self._members.close()
        await self._pool.close()

    async def _fetch(self, statement: str, *values: Any) -> list[Any]:
        return await self._read(lambda: self._pool.fetch(self._sql(statement), *values))

    async def _read(self, work: Callable[[], Awaitable[Result]]) -> Result:
        self._check_open()
        await self._decide()
        return await work()

    def _sql(self, statement: str) -> str:
        return sql.in_schema(statement, self._schema)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._pool.label} is closed")


class MemberCalls:
    """A connection of its own for membership, opened when first wanted: a heartbeat never waits behind reads."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        async with self._opening:
            if self._pool is None:
                self._pool = await Pool.open(StoreAddress.parse(self._url), connections=1, seconds=self._seconds)
        return await self._pool.fetch(statement, *values)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()


async def migrate(connection: asyncpg.Connection[Any], schema: str, migrations: Sequence[sql.Migration]) -> None:
    """Bring the schema to the newest version, under a lock; refuse what Penstock cannot have made."""

    def named(statement: str) -> str:
        return sql.in_schema(statement, schema)

    await connection.execute(named(sql.MIGRATION_LOCK))
    if not await connection.fetchval(named(sql.HAS_SCHEMA)):
        await connection.execute(named(sql.MAKE_SCHEMA))
    if not await connection.fetchval(named(sql.HAS_VERSION)):
        if await connection.fetchval(named(sql.TABLES)):
            raise InvalidArgument(
                f"the schema {schema!r} has tables that Penstock did not make; name another with ?schema=…"
            )
        await connection.execute(named(sql.MAKE_VERSION))
        await connection.execute(named(sql.FIRST_VERSION))
    version: int = await connection.fetchval(named(sql.VERSION))
    if version > len(migrations):
        raise InvalidArgument(
            f"the schema {schema!r} is of version {version} and this Penstock knows versions up to {len(migrations)}; "
            "run the newer Penstock that wrote it"
        )
    for statements in migrations[version:]:
        for statement in statements:
            await connection.execute(named(statement))
    if version < len(migrations):
        for statement in sql.FUNCTIONS:
            await connection.execute(named(statement))
        await connection.execute(named(sql.SET_VERSION), len(migrations))


# A commit as values --------------------------------------------------------------------------------------


def _fence(commit: Commit) -> tuple[list[int], list[int]]:
    return list(commit.epochs), list(commit.epochs.values())


def commit_values(commit: Commit) -> Row:
    """The arguments of `apply_commit` behind the fence, in its order; each is None where there is nothing to do.

    An array without rows would be looked at all the same, by the driver and by the database.
    """
    lanes = commit.lanes
    values = (
        commit.lanes_deleted,
        # Lists in lists are arrays of two dimensions, tuples in lists are rows.
        [[lane.lane, group] for lane in lanes for group in lane.groups_deleted],
        [[lane.lane, *key] for lane in lanes for key in lane.leases_deleted],
        [[lane.lane, *key] for lane in lanes for key in lane.waiting_deleted],
        [[lane.lane, *key] for lane in lanes for key in lane.dead_deleted],
        [[lane.lane, lane.dedup_expired_ms] for lane in lanes if lane.dedup_expired_ms is not None],
        [(lane.lane, slot_of(lane.lane), lane.first, lane.end, lane.bytes_end) for lane in lanes],
        _latest([(lane.lane, row.group, row.next, row.committed) for lane in lanes for row in lane.groups], 2),
        _latest([
            (lane.lane, row.group, row.lease, row.deadline_ms, kept(row.consumer), row.entries, kept(row.session))
            for lane in lanes for row in lane.leases
        ], 3),
        _latest([(lane.lane, row.group, row.chunk, row.entries) for lane in lanes for row in lane.waiting], 3),
        _latest([
            (lane.lane, row.group, row.start, row.end, row.attempts, kept(row.reason), kept(row.error),
             kept(row.consumer), row.dead_ms)
            for lane in lanes for row in lane.dead
        ], 3),
        _latest([(lane.lane, row.key, row.offset, row.expires_ms) for lane in lanes for row in lane.dedup], 2),
        _latest([
            (lane.lane, row.base, row.count, row.published_ms, row.bytes_end, row.size, row.meta, row.body)
            for lane in lanes for row in lane.batches
        ], 2),
        [[lane.lane, lane.trim_to] for lane in lanes if lane.trim_to is not None],
        [kind for kind, _ in commit.catalog_deleted],
        [id for _, id in commit.catalog_deleted],
        _latest([
            (row.kind, row.id, row.parent, kept(row.namespace), kept(row.name), row.document, 0)
            for row in commit.catalog
        ], 2),
        commit.outbox_deleted,
        _latest([(row.id, row.lane, row.offset, row.document, row.slot) for row in commit.outbox], 1),
        commit.traces_expired_ms,
        _latest([
            (kept(row.namespace), kept(row.trace_id), row.at_ms, row.id, kept(row.kind),
             None if row.queue is None else kept(row.queue), row.queue_id, row.lane, row.offset, kept(row.name),
             kept(row.detail), kept(row.consumer))
            for row in commit.traces
        ], 4),
    )  # fmt: skip
    return tuple(None if value == [] else value for value in values)


def _latest(rows: list[Row], key: int) -> list[Row]:
    """Rows with each key once, the last put: a statement may not touch a row twice."""
    if len(rows) < 2:
        return rows
    latest = {row[:key]: row for row in rows}
    return rows if len(latest) == len(rows) else list(latest.values())


# Lane images ---------------------------------------------------------------------------------------------


async def _load(
    connection: asyncpg.Connection[Any], named: Callable[[str], str], lanes: Sequence[int], dedup_most: int
) -> list[LaneImage]:
    images = {lane: LaneImage(lane) for lane in lanes}
    gone = {lane for (lane,) in await connection.fetch(named(sql.GONE_LANES), list(images))}
    wanted = [lane for lane in images if lane not in gone]
    for lane, first, end, bytes_end, published_ms in await connection.fetch(named(sql.LANES), wanted):
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for lane, *values in await connection.fetch(named(sql.GROUPS), wanted):
        images[lane].groups.append(GroupRow(*values))
    for row in await connection.fetch(named(sql.LEASES), wanted):
        lane, group, lease, deadline_ms, consumer, entries, session = row
        held = LeaseRow(group, lease, deadline_ms, restored(consumer), entries, restored(session))
        images[lane].leases.append(held)
    for lane, *values in await connection.fetch(named(sql.WAITING), wanted):
        images[lane].waiting.append(WaitingRow(*values))
    for row in await connection.fetch(named(sql.DEAD), wanted):
        lane, group, start, end, attempts, reason, error, consumer, dead_ms = row
        dead = DeadRow(group, start, end, attempts, restored(reason), restored(error), restored(consumer), dead_ms)
        images[lane].dead.append(dead)
    # One more than asked for, to know whether there are more; they come newest first.
    for lane, *values in await connection.fetch(named(sql.DEDUP_NEWEST), wanted, dedup_most + 1):
        images[lane].dedup.append(DedupRow(*values))
    for image in images.values():
        image.dedup_complete = len(image.dedup) <= dedup_most
        image.dedup = image.dedup[:dedup_most][::-1]
    return [images[lane] for lane in lanes]
