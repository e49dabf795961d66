"""Long logs that are trimmed or deleted on an SQL server: invisible at once, removed in slices, after a restart too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.model.rows import BatchRow, DeadRow, DedupRow, LaneImage
from penstock.store.mysql.engine import MysqlStore
from penstock.store.mysql.statements import filled
from penstock.store.postgres.engine import PostgresStore
from penstock.store.sql.sweeping import SLICE
from tests.conformance.conftest import prepared
from tests.conformance.engines import ENGINES
from tests.conformance.samples import (
    LANE,
    all_batches,
    batches,
    change,
    commit,
    full_change,
    image_of,
    load_one,
    own_all,
)

LONG = 3 * SLICE + 500
"""Batches: more than a commit and two slices remove."""
Store = PostgresStore | MysqlStore


@dataclass(frozen=True)
class Database:
    open: Callable[[], Awaitable[Any]]

    async def count(self, store: Store, table: str) -> int:
        """Rows of a table that are there, whoever sees them."""
        if isinstance(store, PostgresStore):
            return int((await store._fetch(f"SELECT count(*) FROM {store._schema}.{table}"))[0][0])
        return int((await store._fetch(f"SELECT count(*) FROM {table}"))[0][0])

    async def swept(self, store: Store) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while await self.count(store, "leftovers"):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)


@pytest.fixture(params=["postgres", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    engine = prepared(next(engine for engine in ENGINES if engine.name == request.param))
    return Database(lambda: engine.open(tmp_path))


@pytest.fixture
def nobody_sweeps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As if the process were killed before it comes to sweep; the result ends that."""
    monkeypatch.setattr("penstock.store.sql.sweeping.Sweeper.wake", lambda _sweeper: None)
    return monkeypatch.undo


def log(count: int = LONG) -> list[BatchRow]:
    return batches(*[1] * count)


async def check_trimmed(store: Store, rows: list[BatchRow], first: int) -> None:
    """Nothing below `first` is seen by any read."""
    assert await store.heads(LANE, 0, LONG, 1 << 30) == [row.head() for row in rows[first:]]
    assert await store.heads(LANE, first - 5, 2, 1 << 30) == [row.head() for row in rows[first : first + 2]]
    assert (await store.read(LANE, 0, LONG, 1 << 30))[:1000] == rows[first : first + 1000]
    assert await store.read(LANE, first - 2, first, 1 << 30) == []
    assert await store.find_time(LANE, 0) == (first if first < len(rows) else None)
    assert (await load_one(store)).published_ms == (rows[-1].published_ms if first < len(rows) else 0)


@pytest.mark.parametrize("kept", [0, 7])
def test_a_long_trim(database: Database, nobody_sweeps: Callable[[], None], kept: int) -> None:
    rows = log()
    first = LONG - kept

    async def trim() -> None:
        store = await database.open()
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, change(batches=rows)))
            await store.apply(commit(epochs, change(first=first, end=LONG, trim_to=first)))
            assert await database.count(store, "batches") == LONG - SLICE, "one commit removes no more than a slice"
            await check_trimmed(store, rows, first)
            # What comes behind is not touched, and a further trim goes with the first.
            await store.apply(commit(epochs, change(batches=batches(1, base=LONG), first=first, end=LONG + 1)))
            await store.apply(commit(epochs, change(first=LONG, end=LONG + 1, trim_to=LONG)))
            assert [row.base for row in await all_batches(store)] == [LONG]
        finally:
            await store.close()

    async def go_on() -> None:
        store = await database.open()
        try:
            await database.swept(store)
            assert await database.count(store, "batches") == 1
            assert [row.base for row in await all_batches(store)] == [LONG]
        finally:
            await store.close()

    asyncio.run(trim())
    nobody_sweeps()
    asyncio.run(go_on())


def long_lane() -> list[Any]:
    """Changes that fill a lane, in parts that a statement takes."""
    whole = full_change()
    whole.batches, whole.end = log(), LONG
    whole.dead = [DeadRow(1, number, number + 1, 1, "ttl", "", "", 9) for number in range(LONG)]
    whole.dedup = [DedupRow(b"%d" % number, number, 9) for number in range(LONG)]
    return [whole]


def test_a_long_lane_that_is_deleted(database: Database, nobody_sweeps: Callable[[], None]) -> None:
    async def delete() -> None:
        store = await database.open()
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, *long_lane()))
            await store.apply(commit(epochs, full_change(LANE + 64)))
            await store.apply(commit(epochs, lanes_deleted=[LANE]))
            assert await database.count(store, "dedup") == LONG + 2, "its rows are left to be swept"
            assert await load_one(store) == LaneImage(LANE)
            assert await all_batches(store) == []
            assert await store.heads(LANE, 0, 10, 100) == []
            assert await store.find_time(LANE, 0) is None
            assert await store.find_dedup(LANE, [b"5"]) == []
            assert await store.lanes_in_use() == [LANE + 64]
        finally:
            await store.close()

    async def go_on() -> None:
        store = await database.open()
        try:
            await database.swept(store)
            for table, left in (("batches", 2), ("dead", 2), ("dedup", 2)):
                assert await database.count(store, table) == left
            assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))
        finally:
            await store.close()

    asyncio.run(delete())
    nobody_sweeps()
    asyncio.run(go_on())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_lane_that_is_deleted_starts_anew(
    database: Database, nobody_sweeps: Callable[[], None], at_once: bool
) -> None:
    """Also while rows of its past are there, which no later commit may be mixed up with."""

    async def scenario() -> None:
        store = await database.open()
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, *long_lane()))
            if at_once:
                await store.apply(commit(epochs, full_change(), lanes_deleted=[LANE]))
            else:
                await store.apply(commit(epochs, lanes_deleted=[LANE]))
                await store.apply(commit(epochs, full_change()))
            assert await load_one(store) == image_of(full_change())
            assert await all_batches(store) == full_change().batches
            assert await database.count(store, "leftovers") == 0
            assert await database.count(store, "batches") == 2
        finally:
            await store.close()

    asyncio.run(scenario())


def test_batches_that_are_put_below_what_was_trimmed_are_there(
    database: Database, nobody_sweeps: Callable[[], None]
) -> None:
    async def scenario() -> None:
        store = await database.open()
        try:
            epochs = await own_all(store)
            rows = log()
            await store.apply(commit(epochs, change(batches=rows)))
            await store.apply(commit(epochs, change(first=LONG, end=LONG, trim_to=LONG)))
            await store.apply(commit(epochs, change(batches=rows[3:5], first=3, end=LONG)))
            assert await all_batches(store) == rows[3:5]
        finally:
            await store.close()

    asyncio.run(scenario())


def test_sweeping_goes_on_beside_commits(database: Database) -> None:
    """Nobody waits in a circle, and what is published meanwhile stays."""

    async def scenario() -> None:
        store = await database.open()
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, change(batches=log())))
            await store.apply(commit(epochs, change(first=LONG, end=LONG, trim_to=LONG)))
            end = LONG
            while await database.count(store, "leftovers"):
                rows = batches(1, base=end)
                await store.apply(commit(epochs, change(batches=rows, first=end, end=end + 1, trim_to=end)))
                end += 1
            assert [row.base for row in await all_batches(store)] == [end - 1]
            assert await database.count(store, "batches") == 1
        finally:
            await store.close()

    asyncio.run(scenario())


def test_text_in_statements_cannot_end_them() -> None:
    assert filled("SELECT %s, %s", "a'; DROP TABLE x; -- \\", b"\\'") == (
        b"SELECT 'a\\'; DROP TABLE x; -- \\\\', _binary'\\\\\\''"
    )
