"""A SQLite store and the files of its log, for tests of what is in them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.model.rows import Commit
from penstock.store.sqlite.engine import SqliteStore
from tests.conformance.samples import (
    LANE,
    all_batches,
    batches,
    change,
    load_one,
    own_all,
)

Work = Callable[[SqliteStore], Awaitable[None]]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    try:
        yield store
    finally:
        await store.close()


def use(path: Path, *works: Work) -> None:
    async def main() -> None:
        for work in works:
            async with opened(path) as store:
                await work(store)

    asyncio.run(main())


def segment_path(path: Path, number: int = 1) -> Path:
    return Path(f"{path}-log", f"{number:010d}.log")


def segments_of(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in Path(f"{path}-log").glob("*.log"))


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in Path(f"{path}-log").glob("*.log"))


def copy(source: Path, target: Path) -> None:
    """Copy a store as it is on the disk now, as after a crash."""
    for name in ("", "-wal"):
        if Path(f"{source}{name}").exists():
            shutil.copy(f"{source}{name}", f"{target}{name}")
    shutil.copytree(f"{source}-log", f"{target}-log")


def one(number: int, body: bytes = b"body", lane: int = LANE) -> Commit:
    """The commit that appends message `number` to a lane."""
    return Commit(lanes=[change(lane, batches=batches(1, base=number, body=body), first=0)])


async def append(store: SqliteStore, epochs: dict[int, int], *commits: Commit) -> None:
    for made in commits:
        made.epochs = {change.lane % 64: epochs[change.lane % 64] for change in made.lanes}
        await store.apply(made)


async def bases(store: SqliteStore, lane: int = LANE) -> list[int]:
    found = await all_batches(store, lane)
    assert (await load_one(store, lane)).end == (found[-1].end if found else 0)
    return [row.base for row in found]


async def expect_first_and_go_on(store: SqliteStore) -> None:
    assert await bases(store) == [0]
    await append(store, await own_all(store), one(1, body=b"another"), one(2))
    assert [row.body for row in await all_batches(store)] == [b"body", b"another", b"body"]


async def load_any(store: SqliteStore) -> None:
    await load_one(store)
