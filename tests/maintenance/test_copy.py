"""`copy`: a store of one engine in another, with every row as it was, and what it refuses."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.maintenance import copy as copying
from penstock.maintenance import online
from penstock.maintenance.copy import copy
from penstock.maintenance.online import copy_online
from penstock.maintenance.verify import verify
from penstock.model.errors import AlreadyExists, InvalidArgument, NotFound, StoreCorrupt, Unavailable
from penstock.model.rows import REGISTRAR_SLOT, Commit, EnqueuedFailure, EnqueuedRow, KeptRow, Member
from penstock.store.open import open_engine
from penstock.store.sqlite import server_lock
from tests.conformance.engines import ENGINES
from tests.maintenance.rig import ENGINE_NAMES, fill, flip, make, place_of, segment_of

PAIRS = [(old, new) for old in ENGINE_NAMES for new in ENGINE_NAMES]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_broker_goes_on_where_the_source_was(old: str, new: str, tmp_path: Path) -> None:
    source, target = place_of(old, tmp_path / "old"), place_of(new, tmp_path / "new")

    async def main() -> None:
        async with await penstock.open(source) as broker:
            await fill(broker)
            claim = await broker.claim("mail", max=2, lease_seconds=600.0)
            before = await told(broker)
        copied = await copy(source, target)
        assert copied.messages >= 60
        assert copied.ids >= 40
        assert copied.outbox == 1
        assert copied.traces > 0
        assert (await verify(target)).ok
        async with await penstock.open(target) as broker:
            assert await told(broker) == before
            # What was claimed there is acknowledged here, and nothing is handed out twice.
            await broker.ack(claim)
            more = await broker.claim("mail", max=100)
            assert not {received.offset for received in more} & {received.offset for received in claim}
            published = await broker.publish("orders", Message(b"again", partition="customer-3", dedup_id="id-3"))
            assert published.duplicate
            await broker.commit_staged("load-1", ["part-0", "part-1"])
            letters = await broker.read_from("mail", max=100)
            assert b"staged 0" in [received.payload for received in letters]
        assert (await verify(target)).ok

    asyncio.run(main())


async def told(broker: penstock.Broker) -> dict[str, Any]:
    """What a user sees of everything."""
    seen: dict[str, Any] = {
        "queues": await broker.queues(),
        "bindings": await broker.bindings("all"),
        "marks": await broker.marks(),
        "trace": [(one.at_ms, one.kind, one.name) for one in (await broker.trace("trace-1")).entries],
        "schedules": [(one.name, one.queue, one.cron) for one in await broker.schedules()],
        "staged": await broker.staged("load-1"),
    }
    for name in seen["queues"]:
        stats = await broker.stats(name)
        seen[name] = (
            stats,
            [(one.lane, one.offset, one.payload, one.headers) for one in await everything(broker, name, stats)],
        )
    return seen


async def everything(broker: penstock.Broker, name: str, stats: Any) -> list[Any]:
    return [one for lane in range(stats.lanes) for one in await broker.read_from(name, 0, lane=lane, max=1000)]


def test_small_and_large_commits_copy_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "COMMIT_BYTES", 600)
    monkeypatch.setattr(copying, "COMMIT_ROWS", 3)
    make(str(tmp_path / "old.db"))
    asyncio.run(copy(str(tmp_path / "old.db"), str(tmp_path / "new.db")))
    assert asyncio.run(verify(tmp_path / "new.db")).ok


def test_numbers_of_the_source_are_not_given_again(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old.db"), str(tmp_path / "new.db")
    make(old)
    for _ in range(5):
        asyncio.run(open_and_close(old))

    async def main() -> None:
        await copy(old, new)
        source, target = await open_engine(old), await open_engine(new)
        member = Member("x", "", "1", 1)
        try:
            given = (await source.join(member)).incarnation - 1
            assert (await target.join(member)).incarnation > given > 5
            given = await source.reserve_ids(1) - 1
            assert await target.reserve_ids(1) > given >= max(row.id for row in await source.catalog())
        finally:
            await source.close()
            await target.close()

    asyncio.run(main())


async def open_and_close(place: str) -> None:
    async with await penstock.open(place):
        pass


# What is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_target_with_anything_in_it_is_refused(engine: str, tmp_path: Path) -> None:
    source, target = str(tmp_path / "source.db"), place_of(engine, tmp_path / "target")
    make(source)
    make(target)
    with pytest.raises(AlreadyExists, match="not empty"):
        asyncio.run(copy(source, target))
    with pytest.raises(InvalidArgument, match="to itself"):
        asyncio.run(copy(target, target))
    assert asyncio.run(verify(target)).ok


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_source_that_is_not_there_is_not_made(engine: str, tmp_path: Path) -> None:
    source, target = place_of(engine, tmp_path / "source"), tmp_path / "target.db"
    for _ in range(2):
        with pytest.raises(NotFound, match="there is no store"):
            asyncio.run(copy(source, str(target)))
    assert not target.exists()


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
def test_a_database_that_is_used_is_refused_as_source_and_as_target(engine: str, tmp_path: Path) -> None:
    used, other = place_of(engine, tmp_path / "used"), str(tmp_path / "other.db")

    async def main() -> None:
        async with await penstock.open(used) as broker:
            with pytest.raises(Unavailable, match="is used by"):
                await copy(used, other)
            await broker.declare_queue("mine")
            await broker.publish("mine", Message(b"still works"))
        async with await penstock.open(other) as broker:
            await broker.declare_queue("mine")
        async with await penstock.open(used) as broker:
            with pytest.raises(Unavailable, match="is used by"):
                await copy(other, used)

    asyncio.run(main())


def test_a_file_that_is_served_is_refused_as_source_and_as_target(tmp_path: Path) -> None:
    used, other = tmp_path / "used.db", tmp_path / "other.db"
    make(str(used))
    with server_lock.held(used):
        with pytest.raises(Unavailable, match=r"uses .*used.db; stop it first"):
            asyncio.run(copy(str(used), str(other)))
        make(str(other))
        with pytest.raises(Unavailable, match=r"uses .*used.db; stop it first"):
            asyncio.run(copy(str(other), str(used)))


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_nobody_takes_the_source_while_it_is_copied(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = place_of(engine, tmp_path / "source"), str(tmp_path / "target.db")
    make(source)
    real = copying.Copying.run

    async def run(self: copying.Copying) -> copying.Copied:
        with pytest.raises(Unavailable, match=r"used by|uses"):
            await copy(source, str(tmp_path / "another.db"))
        return await real(self)

    monkeypatch.setattr(copying.Copying, "run", run)
    asyncio.run(copy(source, target))
    asyncio.run(open_and_close(source))


def test_a_damaged_source_is_refused_and_leaves_no_queues_behind(tmp_path: Path) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    make(str(source))
    with closing(sqlite3.connect(source)) as connection:
        query = "SELECT segment, position + size - length(meta) - 1 FROM batches WHERE rowid = 30"
        segment, last = connection.execute(query).fetchone()
    flip(segment_of(source, segment), last)
    with pytest.raises(StoreCorrupt, match="fail their checksum"):
        asyncio.run(copy(str(source), str(target)))
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("SELECT count(*) FROM catalog").fetchone() == (0,)


ENQUEUED = EnqueuedRow(
    7,
    "default",
    "mail",
    None,
    bytes(range(256)),
    "k",
    "p",
    '{"a": 1.0}',
    3,
    5_000,
    9_000,
    7_000_000,
    "once",
    "text/plain",
)


async def enqueued(engine: str, place: str, folder: Path) -> None:
    """A message that waits to be published, one that has failed, and one for a queue that is not there."""
    enqueue = next(one.enqueue for one in ENGINES if one.name == engine)
    assert enqueue is not None
    store = await open_engine(place)
    try:
        await enqueue(store, folder, [ENQUEUED, EnqueuedRow(8, "default", "nowhere", None, b"waits", headers="{}")])
        await enqueue(store, folder, [EnqueuedRow(11, "default", None, "none", b"failed", headers="{}")])
        epochs = await store.acquire([REGISTRAR_SLOT], "test")
        failure = EnqueuedFailure(11, "no such\0exchange", 123_456)
        await store.apply(Commit(epochs=epochs, enqueued_failed=[failure]))
    finally:
        await store.close()


@pytest.mark.parametrize("how", [copy, copy_online])
@pytest.mark.parametrize(("old", "new"), [("postgres", "mysql"), ("mysql", "postgres")])
def test_what_is_enqueued_and_not_published_is_taken_along(
    old: str, new: str, how: Callable[[str, str], Awaitable[copying.Copied]], tmp_path: Path
) -> None:
    source, target = place_of(old, tmp_path / "old"), place_of(new, tmp_path / "new")

    async def all_of(place: str) -> list[KeptRow]:
        store = await open_engine(place)
        try:
            assert store.enqueueing is not None
            return await store.enqueueing.list_all(-1, 1 << 20)
        finally:
            await store.close()

    async def main() -> None:
        await enqueued(old, source, tmp_path / "old")
        copied = await how(source, target)
        assert copied.enqueued == 3
        expected = await all_of(source)
        assert [one.row.id for one in expected] == [7, 8, 11]
        assert expected[2].failure == EnqueuedFailure(11, "no such\0exchange", 123_456)
        assert await all_of(target) == expected
        async with await penstock.open(target) as broker:
            await broker.declare_queue("mail")
            await broker.declare_queue("nowhere")
            claim = await broker.claim("nowhere", wait=30.0)
            assert [one.payload for one in claim] == [b"waits"]

    asyncio.run(main())


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
def test_what_is_enqueued_is_not_left_behind_where_it_has_no_place(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "TRY_AGAIN_SECONDS", 0.0)
    source = place_of(engine, tmp_path)

    async def main() -> None:
        await enqueued(engine, source, tmp_path)
        for number, how in enumerate((copy, copy_online)):
            with pytest.raises(InvalidArgument, match="1 enqueued messages that could not be published"):
                await how(source, str(tmp_path / f"{number}.db"))
        store = await open_engine(source)
        epochs = await store.acquire([REGISTRAR_SLOT], "test")
        await store.apply(Commit(epochs=epochs, enqueued_deleted=[11]))
        await store.close()
        with pytest.raises(InvalidArgument, match="enqueued messages that no server has published"):
            await copy(source, str(tmp_path / "2.db"))

    asyncio.run(main())


def test_a_target_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong below: what is not the same is no copy."""
    make(str(tmp_path / "source.db"))
    real = copying._change

    def forgets_dead(image: Any, **rows: Any) -> Any:
        return real(image, **{name: [] if name == "dead" else kept for name, kept in rows.items()})

    monkeypatch.setattr(copying, "_change", forgets_dead)
    with pytest.raises(StoreCorrupt, match="not the same"):
        asyncio.run(copy(str(tmp_path / "source.db"), str(tmp_path / "target.db")))
