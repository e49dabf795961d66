"""Enqueued rows, for every engine: what applications put is found, and goes in the commit that publishes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from penstock.model.errors import Fenced, InvalidArgument
from penstock.model.rows import REGISTRAR_SLOT, SLOTS, EnqueuedFailure, EnqueuedRow, EnqueuedTarget, FailedRow, KeptRow
from penstock.store.contract import Enqueueing, Store
from tests.conformance.conftest import prepared
from tests.conformance.engines import ENGINES, Engine
from tests.conformance.samples import EVERYTHING, LANE, all_batches, batches, change, commit, load_one, own_all

ENQUEUING = [engine for engine in ENGINES if engine.enqueue is not None]
REGISTRAR_LANE = REGISTRAR_SLOT + SLOTS
REFUSING = [engine for engine in ENGINES if engine.enqueue is None]


@pytest.fixture(params=ENQUEUING, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    return prepared(request.param)


def row(id: int, payload: bytes = b"x", queue: str | None = "mail", **fields: object) -> EnqueuedRow:
    return msgspec.structs.replace(EnqueuedRow(id, "default", queue, None, payload), **fields)


async def put(engine: Engine, store: Store, folder: Path, *rows: EnqueuedRow) -> None:
    assert engine.enqueue is not None
    await engine.enqueue(store, folder, rows)


def rows_of(store: Store) -> Enqueueing:
    assert store.enqueueing is not None
    return store.enqueueing


async def ids(
    store: Store, most: int = 100, bytes_most: int = EVERYTHING, passing: Sequence[EnqueuedTarget] = ()
) -> list[int]:
    return [found.id for found in await rows_of(store).rows(most, bytes_most, passing)]


def test_a_row_comes_back_as_it_was_put(engine: Engine, tmp_path: Path) -> None:
    full = EnqueuedRow(
        7,
        "büro",
        None,
        "orders",
        bytes(range(256)),
        "eu.new",
        "customer-42",
        '{"a": 1.0, "b": {"$base64": "AA=="}}',
        9,
        1_000,
        1_700_000_000_123,
        60_000,
        "id-1",
        "text/plain",
        "c-1",
        "t-1",
        False,
    )

    async def scenario(store: Store) -> None:
        await put(engine, store, tmp_path, full, row(8, b""))
        found = await rows_of(store).rows(10, EVERYTHING)
        assert [msgspec.structs.replace(one, enqueued_ms=0) for one in found] == [full, row(8, b"")]

    engine.run(tmp_path, scenario)


def test_the_lowest_ids_come_first_and_within_the_limits(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        assert await ids(store) == []
        await put(engine, store, tmp_path, *(row(id, b"0123456789") for id in (5, 3, 9, 4)))
        assert await ids(store) == [3, 4, 5, 9]
        assert await ids(store, most=2) == [3, 4]
        assert await ids(store, bytes_most=29) == [3, 4]
        assert await ids(store, bytes_most=30) == [3, 4, 5]
        assert await ids(store, bytes_most=0) == [3]  # one at least

    engine.run(tmp_path, scenario)


def test_a_lower_id_that_is_committed_later_is_not_skipped(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await put(engine, store, tmp_path, row(10), row(11))
        assert await ids(store, most=1) == [10]
        await store.apply(commit(epochs, change(64, batches=batches(1)), enqueued_deleted=[10]))
        await put(engine, store, tmp_path, row(2))
        assert await ids(store) == [2, 11]

    engine.run(tmp_path, scenario)


def test_messages_and_the_end_of_their_rows_are_one_commit(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        await put(engine, store, tmp_path, row(1), row(2), row(3))
        stale = commit(epochs, change(REGISTRAR_LANE, batches=batches(2)), enqueued_deleted=[1, 2])
        stale.epochs[REGISTRAR_SLOT] += 1  # another node is the registrar by now
        with pytest.raises(Fenced):
            await store.apply(stale)
        assert await ids(store) == [1, 2, 3]
        assert await all_batches(store, REGISTRAR_LANE) == []
        good = commit(epochs, change(REGISTRAR_LANE, batches=batches(2)), enqueued_deleted=[1, 2, 77])
        await store.apply(good)
        assert await ids(store) == [3]
        assert (await load_one(store, REGISTRAR_LANE)).end == 2

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize("field", ["enqueued_deleted", "enqueued_failed", "enqueued_retried"])
def test_a_commit_about_rows_must_name_the_registrars_epoch(engine: Engine, tmp_path: Path, field: str) -> None:
    async def scenario(store: Store) -> None:
        epochs = await own_all(store)
        about = [EnqueuedFailure(1, "no", 1)] if field == "enqueued_failed" else [1]
        with pytest.raises(InvalidArgument, match="no epoch for slot 0"):
            await store.apply(commit(epochs, change(batches=batches(2)), **{field: about}))
        assert LANE % 64 != 0
        assert await all_batches(store) == []

    engine.run(tmp_path, scenario)


def test_rows_that_failed_are_passed_over_and_kept(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = {0: (await own_all(store))[0]}
        await put(engine, store, tmp_path, row(1), row(2, b"abc", key="k"), row(3), row(4, namespace="other"))
        failures = [EnqueuedFailure(2, "no\0queue", 1_700_000_000_123), EnqueuedFailure(4, "no", 5)]
        await store.apply(msgspec.structs.replace(commit({}), epochs=epochs, enqueued_failed=failures))
        assert await ids(store) == [1, 3]
        assert await rows_of(store).count_failed() == 2
        [failed] = await rows_of(store).failed("default", 0, 10)
        wanted = FailedRow(2, "default", 3, failed.enqueued_ms, "no\0queue", 1_700_000_000_123, "mail", None, "k")
        assert failed == wanted
        assert await rows_of(store).failed("default", 2, 10) == []
        assert await rows_of(store).failed("default", 0, 0) == []
        await store.apply(msgspec.structs.replace(commit({}), epochs=epochs, enqueued_retried=[2]))
        assert await ids(store) == [1, 2, 3]
        await store.apply(msgspec.structs.replace(commit({}), epochs=epochs, enqueued_deleted=[4, 1]))
        assert await rows_of(store).count_failed() == 0
        assert await ids(store) == [2, 3]

    engine.run(tmp_path, scenario)


def test_rows_for_some_targets_can_be_passed_over(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await put(
            engine,
            store,
            tmp_path,
            row(1, queue="a"),
            row(2, queue="b"),
            row(3, queue="a", namespace="other"),
            row(4, queue=None, exchange="a"),
            row(5, queue="b"),
        )
        assert await ids(store, passing=[EnqueuedTarget("default", "a", None)]) == [2, 3, 4, 5]
        assert await ids(store, passing=[EnqueuedTarget("default", None, "a")]) == [1, 2, 3, 5]
        both = [EnqueuedTarget("default", "b", None), EnqueuedTarget("other", "a", None)]
        assert await ids(store, most=2, passing=both) == [1, 4]

    engine.run(tmp_path, scenario)


def test_whoever_watches_is_woken(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        woken = asyncio.Event()
        await rows_of(store).watch(woken.set)
        await asyncio.sleep(0)
        if engine.durable:
            await asyncio.wait_for(woken.wait(), 30)  # the engine says so once when it has begun to listen
            woken.clear()
        await put(engine, store, tmp_path, row(1))
        await asyncio.wait_for(woken.wait(), 30)

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize("engine", [engine for engine in ENQUEUING if engine.durable], ids=lambda engine: engine.name)
def test_rows_outlive_the_process(engine: Engine, tmp_path: Path) -> None:
    prepared(engine)

    async def write(store: Store) -> None:
        epochs = {0: (await own_all(store))[0]}
        await put(engine, store, tmp_path, row(1), row(2), row(3))
        failures = [EnqueuedFailure(2, "no", 1)]
        await store.apply(
            msgspec.structs.replace(commit({}), epochs=epochs, enqueued_failed=failures, enqueued_deleted=[1])
        )

    async def check(store: Store) -> None:
        assert await ids(store) == [3]
        assert [failed.id for failed in await rows_of(store).failed("default", 0, 10)] == [2]

    engine.run(tmp_path, write, check)


def test_rows_of_another_store_are_put_back_and_listed_in_pages(engine: Engine, tmp_path: Path) -> None:
    kept = [
        KeptRow(row(5, b"x" * 10, headers="{}", enqueued_ms=1_700_000_000_123, not_before_ms=1_800_000_000_001), None),
        KeptRow(row(9, b"y" * 10, headers="{}", enqueued_ms=1_700_000_000_124), EnqueuedFailure(9, "why\0", 77)),
        KeptRow(row(10, b"z" * 10, headers="{}", enqueued_ms=1_700_000_000_125), None),
    ]

    async def scenario(store: Store) -> None:
        enqueueing = rows_of(store)
        for one in kept:
            await enqueueing.put_back(one)
        assert await enqueueing.list_all(-1, 1 << 20) == kept
        assert await enqueueing.list_all(-1, 20) == kept[:2]
        assert await enqueueing.list_all(5, 1) == kept[1:2]
        assert await enqueueing.list_all(10, 1) == []
        assert await ids(store) == [5, 10]
        assert await enqueueing.count_failed() == 1

    engine.run(tmp_path, scenario)


@pytest.mark.parametrize("engine", REFUSING, ids=lambda engine: engine.name)
def test_where_applications_cannot_enqueue_the_engine_has_no_such_part(engine: Engine, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        epochs = {0: (await own_all(store))[0]}
        assert store.enqueueing is None
        await store.apply(msgspec.structs.replace(commit({}), epochs=epochs, enqueued_deleted=[1]))

    engine.run(tmp_path, scenario)
