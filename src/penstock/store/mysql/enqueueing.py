"""Enqueueing on MySQL and MariaDB: reads the rows that applications have committed.

Applications write the table `enqueued`, whose checks are in `migrations/0001.sql`. Neither database notifies anybody of
a commit, so `Watcher` polls. It may not know commits. Next stop: `engine.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from penstock.model.errors import PenstockError
from penstock.model.rows import EnqueuedRow, EnqueuedTarget, FailedRow, KeptRow, failure_of
from penstock.store.mysql.statements import SQL, any_of, filled, filled_by_name

POLL_S: Final = 0.2
"""Between two polls for a row that was not there before."""
RETRY_S: Final = 5.0
"""After a poll that failed."""


class MysqlEnqueueing:
    """The enqueueing part of the contract. `fetch` runs one statement, and raises `Closed` after the store's end."""

    def __init__(self, fetch: Callable[[bytes], Awaitable[Any]]) -> None:
        self._fetch = fetch
        self._watcher: Watcher | None = None

    async def watch(self, wake: Callable[[], object]) -> None:
        await self._newest()  # a closed store says so
        self._watcher = Watcher(self._newest, wake)

    async def rows(self, most: int, bytes_most: int, passing: Sequence[EnqueuedTarget] = ()) -> list[EnqueuedRow]:
        passed = [filled(SQL.passing, *(name and name.encode() for name in target)) for target in passing]
        values = {"passing": any_of(passed), "most": max(most, 1), "bytes_most": bytes_most}
        rows = await self._fetch(filled_by_name(SQL.enqueued, values))
        return [EnqueuedRow(*(*row, bool(mandatory), enqueued_ms)) for *row, mandatory, enqueued_ms in rows]

    async def failed(self, namespace: str, after: int, most: int) -> list[FailedRow]:
        rows = await self._fetch(filled(SQL.failed_enqueued, namespace.encode(), after, max(most, 0)))
        return [FailedRow(*row) for row in rows]

    async def count_failed(self) -> int:
        count: int = (await self._fetch(SQL.count_failed_enqueued.encode()))[0][0]
        return count

    async def list_all(self, after: int, bytes_most: int) -> list[KeptRow]:
        rows = await self._fetch(filled(SQL.all_enqueued, after, bytes_most))
        return [
            KeptRow(EnqueuedRow(*(*row, bool(mandatory), enqueued_ms)), failure_of(row[0], error, failed_ms))
            for *row, mandatory, enqueued_ms, error, failed_ms in rows
        ]

    async def put_back(self, kept: KeptRow) -> None:
        row, failure = kept.row, kept.failure
        values = [getattr(row, name) for name in row.__struct_fields__]
        values += [None, None] if failure is None else [failure.error, failure.failed_ms]
        await self._fetch(filled(SQL.put_enqueued, values))

    async def close(self) -> None:
        if self._watcher is not None:
            await self._watcher.close()

    async def _newest(self) -> int:
        found: int = (await self._fetch(SQL.newest_enqueued.encode()))[0][0]
        return found


class Watcher:
    """Calls `wake` when it begins and whenever the newest row is one that was not there before."""

    def __init__(self, newest: Callable[[], Awaitable[int]], wake: Callable[[], object]) -> None:
        self._newest = newest
        self._wake = wake
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        known = -1
        while True:
            try:
                newest = await self._newest()
            except PenstockError:  # the node polls by itself meanwhile
                await asyncio.sleep(RETRY_S)
                continue
            if newest > known:
                known = newest
                self._wake()
            await asyncio.sleep(POLL_S)
