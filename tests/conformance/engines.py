"""The engines that the conformance suite runs through. A new engine is one more entry in `ENGINES`.

`open` is given a folder that is the test's own. Opening the same folder again must find what was committed there,
unless the engine is not durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.store.contract import Store
from penstock.store.memory import MemoryStore
from penstock.store.mysql import MysqlStore
from penstock.store.postgres import PostgresStore
from penstock.store.sqlite import SqliteStore
from tests.databases import mariadb, postgres

Scenario = Callable[[Store], Awaitable[None]]


@dataclass(frozen=True)
class Engine:
    name: str
    durable: bool
    open: Callable[[Path], Awaitable[Store]]
    prepare: Callable[[], object] = lambda: None
    """Whatever must run before a child process opens it too."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be tried here."""

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[Store]:
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


async def _open_memory(_folder: Path) -> Store:
    return MemoryStore()


async def _open_sqlite(folder: Path) -> Store:
    return await SqliteStore.open(folder / "penstock.db")


async def _open_postgres(folder: Path) -> Store:
    return await PostgresStore.open(postgres.schema_url(folder))


async def _open_mysql(folder: Path) -> Store:
    return await MysqlStore.open(mariadb.database_url(folder))


ENGINES = (
    Engine("memory", durable=False, open=_open_memory),
    Engine("sqlite", durable=True, open=_open_sqlite),
    Engine("postgres", durable=True, open=_open_postgres, prepare=postgres.shared_url),
    Engine(
        "mysql",
        durable=True,
        open=_open_mysql,
        prepare=mariadb.shared_url,
        missing=lambda: None if mariadb.is_there() else mariadb.MISSING,
    ),
)
