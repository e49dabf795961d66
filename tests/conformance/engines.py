"""The engines that the conformance suite runs through. A new engine is one more entry in `ENGINES`.

`open` is given a folder that is the test's own. Opening the same folder again must find what was committed there,
unless the engine is not durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from penstock.model.rows import EnqueuedRow
from penstock.store.contract import FullStore, Store
from penstock.store.mysql.engine import MysqlStore
from penstock.store.postgres.engine import PostgresStore
from penstock.store.sqlite.engine import SqliteStore
from tests.databases import mariadb, postgres
from tests.memory_disk import MemoryDisk
from tests.one_slot import OneSlotStore
from tests.scenarios.overlapping import OverlappingStore

Scenario = Callable[[FullStore], Awaitable[None]]


@dataclass(frozen=True)
class Engine:
    name: str
    durable: bool
    open: Callable[[Path], Awaitable[FullStore]]
    prepare: Callable[[], object] = lambda: None
    """Whatever must run before a child process opens it too."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be tried here."""
    enqueue: Callable[[Store, Path, Sequence[EnqueuedRow]], Awaitable[None]] | None = None
    """Does what the commit of an application's transaction does; None where applications cannot enqueue."""

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[FullStore]:
        store = await self.open(folder)
        try:
            yield store
        finally:
            await store.close()

    def run(self, folder: Path, *scenarios: Scenario) -> None:
        """Run each scenario on a store that was opened for it alone."""

        async def main() -> None:
            for scenario in scenarios:
                async with self.opened(folder) as store:
                    await scenario(store)

        asyncio.run(main())


async def _open_memory(_folder: Path) -> FullStore:
    return MemoryDisk(enqueues=True)


async def _open_overlapping(_folder: Path) -> FullStore:
    return OverlappingStore(enqueues=True)


async def _open_one_slot(_folder: Path) -> FullStore:
    return OneSlotStore(enqueues=True, reads_documents=False)


async def _enqueue_memory(store: Store, _folder: Path, rows: Sequence[EnqueuedRow]) -> None:
    assert isinstance(store, MemoryDisk)
    store.enqueue(*rows)


async def _open_sqlite(folder: Path) -> FullStore:
    return await SqliteStore.open(folder / "penstock.db")


async def _open_postgres(folder: Path) -> FullStore:
    return await PostgresStore.open(postgres.schema_url(folder))


_INSERT = """
INSERT INTO {s}.enqueued (
    id, namespace, queue, exchange, payload, key, partition, headers, priority, delay_ms, not_before, ttl_ms, dedup_id,
    content_type, correlation_id, trace_id, mandatory
) OVERRIDING SYSTEM VALUE
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp(nullif($11::bigint, 0) / 1000.0), $12, $13, $14, $15, $16,
    $17)"""


async def _enqueue_postgres(_store: Store, folder: Path, rows: Sequence[EnqueuedRow]) -> None:
    url, _, schema = postgres.schema_url(folder).partition("?schema=")
    connection = await asyncpg.connect(url)
    try:
        values = [[getattr(row, name) for name in EnqueuedRow.__struct_fields__[:-1]] for row in rows]
        async with connection.transaction():
            await connection.executemany(_INSERT.replace("{s}", schema), values)
    finally:
        await connection.close()


async def _open_mysql(folder: Path) -> FullStore:
    return await MysqlStore.open(mariadb.database_url(folder))


async def _enqueue_mysql(_store: Store, folder: Path, rows: Sequence[EnqueuedRow]) -> None:
    def put() -> None:
        names = EnqueuedRow.__struct_fields__[:-1]
        columns = ", ".join(f"`{name}`" for name in names)
        values = [[getattr(row, name) for name in names] for row in rows]
        with mariadb.connected(mariadb.database_url(folder)) as session, session.cursor() as cursor:
            places = ", ".join(["%s"] * len(names))
            cursor.executemany(f"INSERT INTO enqueued ({columns}) VALUES ({places})", values)
            session.commit()

    await asyncio.to_thread(put)


ENGINES = (
    Engine("memory", durable=False, open=_open_memory, enqueue=_enqueue_memory),
    Engine("memory, four commits under way", durable=False, open=_open_overlapping, enqueue=_enqueue_memory),
    Engine("memory, one slot at a time", durable=False, open=_open_one_slot, enqueue=_enqueue_memory),
    Engine("sqlite", durable=True, open=_open_sqlite),
    Engine("postgres", durable=True, open=_open_postgres, prepare=postgres.shared_url, enqueue=_enqueue_postgres),
    Engine(
        "mysql",
        durable=True,
        open=_open_mysql,
        prepare=mariadb.shared_url,
        missing=lambda: None if mariadb.is_there() else mariadb.MISSING,
        enqueue=_enqueue_mysql,
    ),
)
