"""Writing the log: room written ahead, writes that fail, and two stores that take turns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import Fenced, Unavailable
from penstock.store.sqlite import index
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.log import segments
from penstock.store.sqlite.log.records import MAGIC
from penstock.store.sqlite.log.segments import Segment
from tests.conformance.samples import (
    LANE,
    all_batches,
    change,
    commit,
    load_one,
    own_all,
)
from tests.conformance.sqlite.log_rig import (
    append,
    bases,
    copy,
    expect_first_and_go_on,
    one,
    opened,
    segment_path,
    segments_of,
    use,
)

# Room that is written ahead ---------------------------------------------------------------------------------------


def test_small_records_find_room_that_was_written_and_a_segment_never_grows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[tuple[int, int]] = []
    real = os.pwritev

    def pwritev(file: int, parts: list[bytes], position: int) -> int:
        record = sum(map(len, parts[:-1]))
        if len(parts) > 1 and not any(parts[-1]):
            ahead.append((position + record, position + record + len(parts[-1])))
        return real(file, parts, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    sizes: set[int] = set()
    ends: list[int] = []

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(200):
            await append(store, epochs, one(number, body=b"%d" % number * 2_000))
            sizes.add(segment_path(path).stat().st_size)
            ends.append(store._log._log.end.position)

    async def check(store: SqliteStore) -> None:
        assert [row.body for row in await all_batches(store)] == [b"%d" % number * 2_000 for number in range(200)]

    use(path, scenario, check)
    assert sizes == {segments.SEGMENT_BYTES_FIRST}
    assert len(ahead) == 4, "256 KiB at a time, and no more than there is"
    assert ahead[-1][1] == segments.SEGMENT_BYTES_FIRST
    for end in ends[:-1]:
        assert any(start <= end < stop for start, stop in ahead), "the next record begins in room that was written"


def test_what_zeros_were_written_over_is_no_record(path: Path) -> None:
    """A torn record behind the end, from before a crash: the next one and its zeros take its place."""

    async def begin(store: SqliteStore) -> None:
        await append(store, await own_all(store), one(0))

    async def go_on(store: SqliteStore) -> None:
        await append(store, await own_all(store), *(one(number) for number in range(1, 4)))

    async def check(store: SqliteStore) -> None:
        assert await bases(store) == [0, 1, 2, 3]

    use(path, begin)
    with segment_path(path).open("r+b") as file:
        file.seek(len(segment_path(path).read_bytes().rstrip(b"\0")))
        file.write(MAGIC + b"torn" * 100)
    use(path, go_on, check)


def test_a_large_record_takes_no_zeros_along(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    real = os.pwritev

    def pwritev(file: int, parts: list[bytes], position: int) -> int:
        written.append(real(file, parts, position))
        return written[-1]

    monkeypatch.setattr(os, "pwritev", pwritev)

    async def scenario(store: SqliteStore) -> None:
        await append(store, await own_all(store), one(0, body=bytes(segments.ZEROS_FOR_BYTES)))
        assert written[-1] < segments.ZEROS_FOR_BYTES + 1_000

    use(path, scenario)


# Writes that fail -------------------------------------------------------------------------------------------------


def failing(error: int, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    real = getattr(Segment, name)

    def fail(self: Segment, *arguments: object) -> None:
        real(self, *arguments)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Segment, name, fail)
    yield
    monkeypatch.setattr(Segment, name, real)


@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_record_that_failed_is_void_now_and_after_a_crash(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: None, step: str
) -> None:
    """Every byte of it reached the file: it is void all the same, for its caller was told that it failed."""
    image, later = tmp_path / "image.db", tmp_path / "later.db"

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0))
        fault = failing(5, monkeypatch, step)
        next(fault)
        for _ in range(2):
            with pytest.raises(Unavailable, match="Input/output error"):
                await append(store, epochs, one(1, body=b"never"))
        next(fault, None)
        assert await bases(store) == [0]
        copy(path, image)
        await append(store, epochs, one(1, body=b"again"))
        copy(path, later)
        assert [row.body for row in await all_batches(store)] == [b"body", b"again"]

    use(path, scenario)
    use(image, expect_first_and_go_on)

    async def check(store: SqliteStore) -> None:
        assert [row.body for row in await all_batches(store)] == [b"body", b"again"]

    use(later, check)
    use(path, check)


def test_a_record_in_doubt_is_followed_by_a_new_segment(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: None
) -> None:
    """The page cache is not to be trusted after a failed sync: even a head that could not be voided does no harm."""
    monkeypatch.setattr(Segment, "void", lambda *_: None)
    image = tmp_path / "image.db"

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0))
        fault = failing(5, monkeypatch, "sync")
        next(fault)
        with pytest.raises(Unavailable):
            await append(store, epochs, one(1, body=b"never"))
        next(fault, None)
        assert segments_of(path) == [1, 2]
        copy(path, image)
        await append(store, epochs, one(1, body=b"again"))
        assert [row.body for row in await all_batches(store)] == [b"body", b"again"]

    use(path, scenario)
    use(image, expect_first_and_go_on)


def test_no_room_for_a_segment_fails_clearly_and_goes_on(
    path: Path, small_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def full(file: int, start: int, size: int) -> None:
        asked.append(size)
        raise OSError(28, os.strerror(28))

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0, body=bytes(40_000)))
        real = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", full)
        for _ in range(2):
            with pytest.raises(Unavailable, match="No space left on device"):
                await append(store, epochs, one(1, body=bytes(40_000)))
        # Smaller ones were tried, down to what the record needs.
        assert asked[0] == small_segments
        assert 40_000 < asked[-1] < 50_000
        assert segments_of(path) == [1]
        await append(store, epochs, one(1, body=b"fits"))
        monkeypatch.setattr(os, "posix_fallocate", real)
        await append(store, epochs, one(2, body=bytes(40_000)))
        assert await bases(store) == [0, 1, 2]

    use(path, scenario)


def test_a_log_that_was_moved_takes_no_commit(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0))
        Path(f"{path}-log").rename(path.with_name("away"))  # noqa: ASYNC240
        await asyncio.sleep(2 * index.LOOK_SECONDS)  # it has just looked
        for _ in range(2):
            with pytest.raises(Unavailable, match="moved, deleted or replaced"):
                await append(store, epochs, one(1))
        path.with_name("away").rename(f"{path}-log")
        await append(store, epochs, one(1))
        assert await bases(store) == [0, 1]

    use(path, scenario)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_commit_is_synced_before_it_is_answered(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(index, "AT_ONCE_SECONDS", 1e9 if at_once else -1.0)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0))
        synced: list[int] = []
        real = os.fdatasync

        def note(file: int) -> None:
            synced.append(os.fstat(file).st_ino)
            real(file)

        monkeypatch.setattr(os, "fdatasync", note)
        for number in range(1, 4):
            await append(store, epochs, one(number))
            assert synced == [segment_path(path).stat().st_ino] * number
        monkeypatch.setattr(os, "fdatasync", real)

    use(path, scenario)


# Two at once ------------------------------------------------------------------------------------------------------


def test_two_stores_that_take_turns_see_each_others_commits(path: Path, lazy: None) -> None:
    async def scenario(first: SqliteStore) -> None:
        async with opened(path) as second:
            ours = await first.acquire([LANE], "first")
            theirs = await second.acquire([LANE + 1], "second")
            for number in range(20):
                await append(first, ours, one(number))
                await append(second, theirs, one(number, lane=LANE + 1))
                if number % 5 == 0:
                    for store in (first, second):
                        assert await bases(store) == list(range(number + 1))
                        assert await bases(store, LANE + 1) == list(range(number + 1))
            await second.acquire([LANE], "second")
            with pytest.raises(Fenced, match="second"):
                await append(first, ours, one(20))
            assert await bases(first) == list(range(20))

    use(path, scenario)


def test_readers_elsewhere_never_keep_a_commit_from_its_turn(path: Path) -> None:
    """Each read of another store takes the turn: a commit takes it back and is written before the next can."""

    async def scenario(first: SqliteStore) -> None:
        epochs = await own_all(first)
        others = [await SqliteStore.open(path) for _ in range(4)]
        done = False

        async def read_on(store: SqliteStore) -> None:
            while not done:
                end = len(answered)
                assert len(await all_batches(store)) >= end
                assert (await load_one(store)).end >= end

        answered: list[int] = []
        readers = [asyncio.ensure_future(read_on(store)) for store in others]
        for number in range(100):
            await append(first, epochs, one(number))
            answered.append(number)
            await asyncio.sleep(0)
        done = True
        await asyncio.gather(*readers)
        for store in others:
            await store.close()
        assert await bases(first) == answered

    use(path, scenario)


def test_a_store_that_lost_its_turn_writes_no_old_rows(path: Path, lazy: None) -> None:
    """What it still had to bring into the tables was brought there by the other, and is older by now."""

    async def scenario(first: SqliteStore) -> None:
        ours = await own_all(first, "first")
        await append(first, ours, one(0))
        async with opened(path) as second:
            theirs = await own_all(second, "second")
            await second.apply(commit(theirs, change(first=1, end=9, trim_to=1)))
            assert (await load_one(second)).end == 9
            await first.close()
            assert (await load_one(second)).end == 9
            await append(second, theirs, one(9))
            assert [row.base for row in await all_batches(second)] == [9]

    use(path, scenario)
