"""Enqueueing on PostgreSQL: reads the rows that applications have committed.

How applications write them is in `migrations/0003.sql`. A connection of its own waits for PostgreSQL to say that they
have; nothing depends on it: behind a pooler in transaction mode no notification arrives, and the node polls anyway. It
may not know commits. Next stop: `engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.model.rows import EnqueuedRow, EnqueuedTarget, FailedRow, KeptRow, failure_of
from penstock.store.postgres.apply import kept as as_kept
from penstock.store.postgres.apply import restored
from penstock.store.postgres.pool import StoreAddress
from penstock.store.postgres.schema import CHANNEL
from penstock.store.sql.queries import Queries

if TYPE_CHECKING:
    import asyncpg

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0

log = logging.getLogger("penstock.store.postgres")


class PostgresEnqueueing:
    """The enqueueing part of the contract. `fetch` is a read of the store: raises `Closed` after its end."""

    def __init__(
        self, fetch: Callable[..., Awaitable[list[Any]]], sql: Queries, address: StoreAddress, seconds: float
    ) -> None:
        self._fetch = fetch
        self._sql = sql
        self._address = address
        self._seconds = seconds
        self._listener: Listener | None = None

    async def watch(self, wake: Callable[[], object]) -> None:
        await self.count_failed()  # a closed store says so
        if self._address.is_listening:
            self._listener = Listener(self._address, self._seconds, wake)

    async def rows(self, most: int, bytes_most: int, passing: Sequence[EnqueuedTarget] = ()) -> list[EnqueuedRow]:
        columns = [[getattr(target, name) for target in passing] for name in EnqueuedTarget._fields]
        rows = await self._fetch(self._sql.enqueued, max(most, 1), bytes_most, *columns)
        return [EnqueuedRow(*row) for row in rows]

    async def failed(self, namespace: str, after: int, most: int) -> list[FailedRow]:
        rows = await self._fetch(self._sql.failed_enqueued, namespace, after, max(most, 0))
        return [
            FailedRow(id, of, size, enqueued_ms, restored(error), *rest)
            for id, of, size, enqueued_ms, error, *rest in rows
        ]

    async def count_failed(self) -> int:
        count: int = (await self._fetch(self._sql.count_failed_enqueued))[0][0]
        return count

    async def list_all(self, after: int, bytes_most: int) -> list[KeptRow]:
        return [
            KeptRow(EnqueuedRow(*row), failure_of(row[0], error and restored(error), failed_ms))
            for *row, error, failed_ms in await self._fetch(self._sql.all_enqueued, after, bytes_most)
        ]

    async def put_back(self, kept: KeptRow) -> None:
        row, failure = kept.row, kept.failure
        values = [getattr(row, name) for name in row.__struct_fields__[:-1]]
        await self._fetch(self._sql.put_enqueued, *values)
        error, failed_ms = (None, None) if failure is None else (as_kept(failure.error), failure.failed_ms)
        await self._fetch(self._sql.date_enqueued, row.id, row.enqueued_ms, error, failed_ms)
        await self._fetch(self._sql.raise_enqueued)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()


class Listener:
    """Calls `wake` for each notification of a schema, and whenever the connection, which may be lost, is made again."""

    def __init__(self, address: StoreAddress, seconds: float, wake: Callable[[], object]) -> None:
        self._address = address
        self._seconds = seconds
        self._wake = wake
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            try:
                await self._listen()
                pause_s = PAUSE_S
            except Exception as error:  # of whatever kind: the node polls meanwhile
                log.info("no notifications of %s for now: %s", self._address.label, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _listen(self) -> None:
        """Until the connection is lost."""
        import asyncpg

        lost = asyncio.Event()
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._address.url, timeout=self._seconds, command_timeout=self._seconds, statement_cache_size=0
        )
        try:
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(CHANNEL, self._notified)
            self._wake()  # for what came before
            await lost.wait()
        finally:
            with contextlib.suppress(Exception):
                connection.terminate()

    def _notified(self, _connection: object, _pid: int, _channel: str, schema: object) -> None:
        if schema == self._address.schema:
            self._wake()
