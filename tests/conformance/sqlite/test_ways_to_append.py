"""The ways in which a commit on SQLite becomes durable: by the kernel's sync, by the event loop's, on a thread."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.model.errors import Fenced, Unavailable
from penstock.model.rows import DeadRow
from penstock.store.sqlite import index
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.index import IndexedLog
from penstock.store.sqlite.log import sync
from penstock.store.sqlite.log.log import Entry
from penstock.store.sqlite.log.records import Draft
from penstock.store.sqlite.log.sync import KernelSyncs
from penstock.store.sqlite.overlay import Overlay
from tests.conformance.samples import all_batches, batches, change, commit, load_one, own_all
from tests.conformance.sqlite.rig import opened, use


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.db"


@pytest.fixture(params=["the kernel syncs", "the loop syncs"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which a small commit is made without a thread, however slow the disk."""
    monkeypatch.setattr(index, "AT_ONCE_SECONDS", 60.0)
    if request.param == "the kernel syncs":
        monkeypatch.setattr(index, "KERNEL_AFTER", 0)


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """The records that were left to a thread."""
    left: list[Draft] = []
    append = IndexedLog._append_blocking

    def noted(log: IndexedLog, draft: Draft) -> None:
        left.append(draft)
        append(log, draft)

    monkeypatch.setattr(IndexedLog, "_append_blocking", noted)
    return left


@pytest.mark.usefixtures("way")
def test_a_small_commit_is_durable_when_it_is_said_to_be(path: Path, on_threads: list[Draft]) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))  # the log has a segment from now on
        on_threads.clear()
        await store.apply(commit(epochs, change(batches=batches(1, base=1), first=0)))
        async with opened(path, 1000) as other:  # it finds what is in the file and its log, and nothing else
            assert [row.base for row in await all_batches(other)] == [0, 1]
        assert not on_threads

    use(path, scenario)


@pytest.mark.usefixtures("way")
def test_a_commit_of_many_rows_is_left_to_a_thread(path: Path, on_threads: list[Draft]) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        on_threads.clear()
        dead = [DeadRow(1, at, at + 1, 1, "rejected", "no", "worker", 99) for at in range(20_000)]
        await store.apply(commit(epochs, change(dead=dead, first=0)))
        assert len(on_threads) == 1
        async with opened(path, 1000) as other:
            assert sorted((await load_one(other)).dead, key=lambda row: row.start) == dead

    use(path, scenario)


@pytest.mark.usefixtures("way")
def test_a_small_commit_of_one_who_lost_its_slot_is_refused(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        await own_all(store)
        with pytest.raises(Fenced):
            await store.apply(commit(epochs, change(batches=batches(1, base=1), first=0)))
        assert [row.base for row in await all_batches(store)] == [0]

    use(path, scenario)


@pytest.mark.usefixtures("way")
def test_a_large_commit_is_left_to_a_thread(path: Path, on_threads: list[Draft]) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        on_threads.clear()
        most = max(index.AT_ONCE_BYTES, index.SOON_BYTES)
        large = commit(
            epochs, change(batches=[msgspec.structs.replace(batches(1, base=1)[0], body=bytes(most))], first=0)
        )
        ticket = store.apply(large)
        assert not ticket.is_done
        await ticket
        assert len(on_threads) == 1
        assert [row.base for row in await all_batches(store)] == [0, 1]

    use(path, scenario)


@pytest.mark.usefixtures("way")
def test_a_small_commit_that_cannot_be_synced_is_void(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        broken_disk = OSError(errno.EIO, "Input/output error")

        def fail(file: int) -> None:
            raise broken_disk

        def fail_later(syncs: KernelSyncs, file: int, done: Callable[[OSError | None], None]) -> bool:
            asyncio.get_running_loop().call_soon(done, broken_disk)
            return True

        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            broken.setattr(KernelSyncs, "start", fail_later)
            with pytest.raises(Unavailable, match="Input/output error"):
                await store.apply(commit(epochs, change(batches=batches(1, base=1), first=0)))
        await store.apply(commit(epochs, change(batches=batches(2, base=1), first=0)))
        assert [(row.base, row.count) for row in await all_batches(store)] == [
            (0, 1),
            *((row.base, row.count) for row in batches(2, base=1)),
        ]

    use(path, scenario)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[OSError | None], None]]:
    """Syncs that the kernel takes and does not carry out: what is to be called for each when it has."""
    syncs: list[Callable[[OSError | None], None]] = []

    def hold(_: KernelSyncs, file: int, done: Callable[[OSError | None], None]) -> bool:
        syncs.append(done)
        return True

    monkeypatch.setattr(index, "KERNEL_AFTER", 0)
    monkeypatch.setattr(KernelSyncs, "start", hold)
    return syncs


def test_nothing_is_said_while_the_kernel_syncs_and_the_next_commit_waits(
    path: Path, held: list[Callable[[OSError | None], None]]
) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        first = asyncio.ensure_future(store.apply(commit(epochs, change(batches=batches(1, base=1), first=0))))
        second = asyncio.ensure_future(store.apply(commit(epochs, change(batches=batches(1, base=2), first=0))))
        await asyncio.wait([first, second], timeout=0.05)
        assert not first.done()
        assert not second.done()
        assert [row.base for row in await all_batches(store)] == [0]
        held[0](None)
        await asyncio.gather(first, second)
        assert [row.base for row in await all_batches(store)] == [0, 1, 2]

    use(path, scenario)


@pytest.mark.parametrize("is_ready", [False, True])
def test_the_kernel_is_asked_by_a_store_that_is_busy_or_where_that_costs_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    asked: list[int] = []

    def ask(loop: asyncio.AbstractEventLoop) -> None:
        asked.append(1)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        for base in range(1, 5):
            await store.apply(commit(epochs, change(batches=batches(1, base=base), first=0)))
            assert len(asked) == (is_ready or base > 2), "once; after three commits, unless a server has made it ready"

    monkeypatch.setattr(index, "AT_ONCE_SECONDS", 60.0)
    monkeypatch.setattr(index, "KERNEL_AFTER", 3)
    monkeypatch.setattr(sync, "_is_ready", is_ready)
    monkeypatch.setattr(KernelSyncs, "of_loop", ask)
    use(path, scenario)


def test_closing_waits_for_the_sync_under_way(path: Path, held: list[Callable[[OSError | None], None]]) -> None:
    async def main() -> None:
        store = await SqliteStore.open(path)
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        under_way = store.apply(commit(epochs, change(batches=batches(1, base=1), first=0)))
        closing_it = asyncio.ensure_future(store.close())
        await asyncio.wait([closing_it], timeout=0.05)
        assert not closing_it.done()
        held[0](None)
        await under_way
        await closing_it
        async with opened(path) as other:
            assert [row.base for row in await all_batches(other)] == [0, 1]

    asyncio.run(main())


def test_a_kernel_that_takes_no_more_orders_costs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        monkeypatch.setattr(index, "KERNEL_AFTER", 0)
        monkeypatch.setattr(KernelSyncs, "start", lambda *_: False)
        await store.apply(commit(epochs, change(batches=batches(1, base=1), first=0)))
        monkeypatch.setattr(index, "AT_ONCE_SECONDS", 60.0)
        await store.apply(commit(epochs, change(batches=batches(1, base=2), first=0)))  # and it is not asked again
        assert [row.base for row in await all_batches(store)] == [0, 1, 2]

    use(path, scenario)


@pytest.mark.usefixtures("way")
def test_who_waits_is_told_before_what_later_reads_need_and_they_find_it_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    fold = Overlay.fold

    def folded(recent: Overlay, entry: Entry) -> None:
        happened.append("folded")
        fold(recent, entry)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))
        monkeypatch.setattr(Overlay, "fold", folded)
        ticket = store.apply(commit(epochs, change(batches=batches(1, base=1), first=0)))
        was_done = ticket.is_done
        ticket.then(lambda _: happened.append("told"))
        await ticket
        # Where the event loop syncs, the commit is durable before anyone can ask to be told.
        assert happened == (["folded", "told"] if was_done else ["told", "folded"])
        assert [row.base for row in await all_batches(store)] == [0, 1]

    use(path, scenario)


@pytest.mark.usefixtures("way")
def test_what_is_durable_and_could_not_be_taken_in_is_found_in_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(batches=batches(1), first=0)))

        def fail(recent: Overlay, entry: Entry) -> None:
            raise MemoryError

        with monkeypatch.context() as broken:
            broken.setattr(Overlay, "fold", fail)
            second = commit(epochs, change(batches=batches(1, base=1), first=0))
            await store.apply(second)
        await store.apply(commit(epochs, change(batches=batches(1, base=2), first=0)))
        assert [row.base for row in await all_batches(store)] == [0, 1, 2]

    use(path, scenario)
