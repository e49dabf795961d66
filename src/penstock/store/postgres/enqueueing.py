"""Enqueueing on PostgreSQL: reads the rows that applications have committed.

How applications write them is in `migrations/0003.sql`. It may not know commits. Next stop:
`listening.py`, which hears of new rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from penstock.model.rows import EnqueuedRow, EnqueuedTarget, FailedRow
from penstock.store.postgres.listening import Listener
from penstock.store.postgres.pool import StoreAddress
from penstock.store.sql.queries import Queries
from penstock.store.sql.text import restored


class Fetch(Protocol):
    """A read of the store: raises `Closed` after its end."""

    def __call__(self, statement: str, *values: Any) -> Awaitable[list[Any]]: ...


class PostgresEnqueueing:
    """The enqueueing part of the contract."""

    def __init__(self, fetch: Fetch, sql: Queries, address: StoreAddress, seconds: float) -> None:
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
            FailedRow(id, of, queue, exchange, key, size, enqueued_ms, restored(error), failed_ms)
            for id, of, queue, exchange, key, size, enqueued_ms, error, failed_ms in rows
        ]

    async def count_failed(self) -> int:
        count: int = (await self._fetch(self._sql.count_failed_enqueued))[0][0]
        return count

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
