"""A SQLite store for one scenario, closed behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.store.sqlite.engine import SqliteStore


@asynccontextmanager
async def opened(path: Path, busy_ms: int = 5000) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, busy_ms=busy_ms)
    try:
        yield store
    finally:
        await store.close()


def use(path: Path, work: Callable[[SqliteStore], Awaitable[None]], busy_ms: int = 5000) -> None:
    async def main() -> None:
        async with opened(path, busy_ms) as store:
            await work(store)

    asyncio.run(main())
