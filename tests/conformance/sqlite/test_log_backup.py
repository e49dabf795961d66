"""A copy of a store that is in use: it holds all that was answered before it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.model.errors import AlreadyExists, NotFound
from penstock.store.sqlite import backup, index
from penstock.store.sqlite.backup import back_up
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.log import space
from penstock.store.sqlite.restore import plan, restore
from tests.conformance.samples import (
    all_batches,
    own_all,
)
from tests.conformance.sqlite.log_rig import (
    append,
    bases,
    load_any,
    one,
    opened,
    segments_of,
    use,
)


@pytest.fixture
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is given back as soon as it can be."""
    monkeypatch.setattr(space, "SLACK_SEGMENTS", 0)


def copy_to(path: Path, target: Path) -> None:
    """A backup of a store, and a store made from it."""
    folder = target.with_suffix(".backup")
    restore(plan(folder, back_up(path, folder).manifest.name), folder, target)


@pytest.mark.usefixtures("no_slack", "small_segments")
def test_a_copy_of_a_store_in_use_holds_all_that_was_answered_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "INDEX_ROWS", 20)
    answered: list[int] = []

    async def write(store: SqliteStore) -> None:
        epochs = await own_all(store)
        number = 0
        while len(answered) < 5:
            made = one(number, body=b"%d" % number * 3_000)
            made.lanes[0].trim_to = number - 10
            await append(store, epochs, made)
            number += 1
            if number > 40 * (len(answered) + 1):
                answered.append(number)
                copying = asyncio.ensure_future(asyncio.to_thread(copy_to, path, path.with_name(f"{number}.db")))
                while not copying.done():
                    made = one(number, body=b"%d" % number * 3_000)
                    made.lanes[0].trim_to = number - 10
                    await append(store, epochs, made)
                    number += 1
                await copying

    use(path, write)
    for number in answered:

        async def check(store: SqliteStore, number: int = number) -> None:
            found = await all_batches(store)
            assert found[-1].base >= number - 1
            assert [row.body for row in found] == [b"%d" % row.base * 3_000 for row in found]

        use(path.with_name(f"{number}.db"), check)


@pytest.mark.usefixtures("no_slack", "small_segments")
def test_what_comes_and_goes_while_a_store_is_copied_is_in_the_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copied file knows the log up to some place, and needs every segment from there on to be opened."""
    monkeypatch.setattr(index, "INDEX_ROWS", 4)
    copied = path.with_name("copy.db")
    real = backup._Making._copy_file
    given_back_before: list[int] = []

    async def write(store: SqliteStore, epochs: dict[int, int], numbers: range) -> None:
        for number in numbers:
            made = one(number, body=b"%d" % number * 3_000)
            made.lanes[0].trim_to = number - 1
            await append(store, epochs, made)
        await bases(store)  # and into the tables

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        loop = asyncio.get_running_loop()

        def copy_slowly(self: backup._Making) -> str:
            asyncio.run_coroutine_threadsafe(write(store, epochs, range(40, 80)), loop).result(60)
            copied = real(self)
            asyncio.run_coroutine_threadsafe(write(store, epochs, range(80, 160)), loop).result(60)
            return copied

        monkeypatch.setattr(backup._Making, "_copy_file", copy_slowly)
        await write(store, epochs, range(40))
        given_back_before[:] = segments_of(path)
        await asyncio.to_thread(copy_to, path, copied)
        await write(store, epochs, range(160, 200))
        assert segments_of(path)[0] > given_back_before[-1] + 4, "afterwards room is given back again"

    async def check(store: SqliteStore) -> None:
        found = await all_batches(store)
        assert [row.body for row in found] == [b"%d" % row.base * 3_000 for row in found]
        assert [row.base for row in found] == [158, 159]

    use(path, scenario)
    use(copied, check)


def test_a_copy_and_its_store_go_their_own_ways(path: Path, small_segments: int) -> None:
    copied = path.with_name("copy.db")

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, *(one(number, body=bytes(9_000)) for number in range(20)))
        await asyncio.to_thread(copy_to, path, copied)
        async with opened(copied) as other:
            await append(other, await own_all(other), *(one(number, body=b"theirs") for number in range(20, 25)))
            await append(store, epochs, *(one(number, body=b"ours") for number in range(20, 23)))
            assert [row.body for row in await all_batches(other)] == [bytes(9_000)] * 20 + [b"theirs"] * 5
            assert [row.body for row in await all_batches(store)] == [bytes(9_000)] * 20 + [b"ours"] * 3

    async def check(store: SqliteStore) -> None:
        assert len(await all_batches(store)) == 23

    use(path, scenario, check)


def test_every_segment_that_was_copied_is_synced(
    path: Path, small_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    real = os.fsync

    def fsync(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        real(file)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, *(one(number, body=bytes(9_000)) for number in range(20)))

    use(path, scenario)
    monkeypatch.setattr(os, "fsync", fsync)
    copy_to(path, path.with_name("copy.db"))
    made = list(Path(f"{path.with_name('copy.db')}-log").glob("*.log"))
    assert len(made) > 2
    assert {file.stat().st_ino for file in made} <= synced


def test_a_copy_goes_nowhere_where_something_is(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store"):
        back_up(path, tmp_path / "backup")
    use(path, load_any)
    copy_to(path, tmp_path / "copy.db")
    with pytest.raises(AlreadyExists, match="name a new file"):
        copy_to(path, tmp_path / "copy.db")
