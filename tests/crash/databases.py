"""Real databases that tests kill, cut off and hold up, under one name: what each of them needs for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import asyncpg

from penstock.store.contract import Store
from penstock.store.mysql.engine import MysqlStore
from penstock.store.postgres.engine import PostgresStore
from tests.databases import mariadb, postgres
from tests.databases.mariadb import MariadbServer
from tests.databases.postgres import PostgresServer

PATIENCE_S: Final = 30.0


class Server(Protocol):
    """What both servers of the tests can do."""

    port: int

    def start(self) -> None: ...

    def stop(self, number: int = ...) -> None: ...

    def close(self) -> None: ...


class Database(Protocol):
    """One server, and what a test does beside the store."""

    server: Server

    def url(self, name: str, port: int | None = None) -> str:
        """Of a store of this name, also through a proxy on another port."""

    async def open(self, url: str, seconds: float) -> Store: ...

    async def batches(self, name: str) -> int:
        """How many batches are stored, as somebody else sees them."""

    def held_up(self, name: str) -> Any:
        """A block in which commits wait inside of the database; gives what waits until one does."""


class Postgres:
    def __init__(self) -> None:
        self.server: Server = PostgresServer()

    def url(self, name: str, port: int | None = None) -> str:
        return f"postgresql://penstock@127.0.0.1:{port or self.server.port}/postgres?schema={name}"

    async def open(self, url: str, seconds: float) -> Store:
        return await PostgresStore.open(url, seconds=seconds)

    async def batches(self, name: str) -> int:
        return await self._value(f"SELECT count(*) FROM {name}.batches")

    @asynccontextmanager
    async def held_up(self, name: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async def one_waits() -> None:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await until(lambda: self._value(waiting))

        blocker = await self._connect()
        try:
            await blocker.execute(f"BEGIN; LOCK TABLE {name}.batches IN SHARE MODE")
            yield one_waits
        finally:
            blocker.terminate()

    async def _connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(f"postgresql://penstock@127.0.0.1:{self.server.port}/postgres")

    async def _value(self, question: str) -> int:
        connection = await self._connect()
        try:
            found: int = await connection.fetchval(question)
            return found
        finally:
            await connection.close()


class Mariadb:
    def __init__(self) -> None:
        self._server = MariadbServer()
        self.server: Server = self._server

    def url(self, name: str, port: int | None = None) -> str:
        return f"{self._server.url.replace(f':{self._server.port}', f':{port or self._server.port}')}/{name}"

    async def open(self, url: str, seconds: float) -> Store:
        return await MysqlStore.open(url, seconds=seconds)

    async def batches(self, name: str) -> int:
        return await asyncio.to_thread(self._value, name, "SELECT count(*) FROM batches")

    @asynccontextmanager
    async def held_up(self, name: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async def one_waits() -> None:
            waiting = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'"
            await until(lambda: asyncio.to_thread(self._value, name, waiting))

        with mariadb.connected(self.url(name)) as blocker:
            blocker.query("LOCK TABLES batches READ")
            yield one_waits

    def _value(self, name: str, question: str) -> int:
        with mariadb.connected(self.url(name), autocommit=True) as session, session.cursor() as cursor:
            cursor.execute(question)
            return int(cursor.fetchone()[0])


async def until(asked: Callable[[], Awaitable[int]]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not await asked():
        assert asyncio.get_running_loop().time() < deadline, "nothing waits"
        await asyncio.sleep(0.01)


KINDS: Final[dict[str, Callable[[], Database]]] = {"postgres": Postgres, "mariadb": Mariadb}


def reason_to_skip(kind: str) -> str | None:
    """Why there is no such database here, where that is so."""
    if kind == "postgres":
        return None if postgres.is_there() else "there is no PostgreSQL"
    return None if mariadb.is_there() else mariadb.MISSING
