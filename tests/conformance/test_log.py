"""What the SQLite engine's log must prove: a torn end is cut, damage found, the tables follow, room is given back."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from penstock.model.errors import AlreadyExists, Fenced, NotFound, StoreCorrupt, Unavailable
from penstock.model.rows import Commit, DedupRow, GroupRow, LeaseRow
from penstock.store.sqlite import backup, index
from penstock.store.sqlite.backup import back_up
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.log import segments, space
from penstock.store.sqlite.log.records import HEAD, MAGIC
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Segment
from tests.conformance.samples import (
    CATALOG,
    LANE,
    OUTBOX,
    TRACES,
    all_batches,
    batches,
    change,
    commit,
    full_change,
    image_of,
    load_one,
    own_all,
)

Work = Callable[[SqliteStore], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.db"


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes into the tables unless a read asks for it."""
    monkeypatch.setattr(index, "INDEX_SECONDS", 3600.0)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_FIRST", 1 << 16)
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MOST", 1 << 16)
    return 1 << 16


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


# A crash ---------------------------------------------------------------------------------------------------------


def crashed(path: Path, tmp_path: Path, *commits: Commit) -> tuple[Path, list[int]]:
    """A store as a crash leaves it, with commits that are in the log only; and where each record begins."""
    image = tmp_path / "image" / "penstock.db"
    image.parent.mkdir()
    starts: list[int] = []

    async def write(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for made in commits:
            starts.append(max(store._log._log.end.position, SEGMENT_HEAD_BYTES))
            await append(store, epochs, made)
        starts.append(store._log._log.end.position)
        copy(path, image)

    use(path, write)
    return image, starts


def test_what_was_answered_is_there_after_a_crash(path: Path, tmp_path: Path, lazy: None) -> None:
    rest = Commit(lanes=[full_change(LANE + 64)], catalog=CATALOG, outbox=OUTBOX, traces=TRACES)
    image, _ = crashed(path, tmp_path, one(0), one(1), rest)
    with closing(sqlite3.connect(image)) as connection:
        assert connection.execute("SELECT count(*) FROM lanes").fetchall() == [(0,)]

    async def check(store: SqliteStore) -> None:
        assert await bases(store) == [0, 1]
        assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))
        assert (await store.catalog(), await store.outbox(0, 10)) == (CATALOG, OUTBOX)
        assert await store.find_trace("default", "t", 10) == TRACES

    use(image, check, check)


def test_a_torn_record_is_cut_wherever_it_was_torn(path: Path, tmp_path: Path, lazy: None) -> None:
    """The last record lacks everything from one byte on, at every byte, with zeros or other bytes in its place."""
    image, starts = crashed(path, tmp_path, one(0), one(1, body=b"the last record"))
    whole = segment_path(image).read_bytes()
    start, end = starts[1:]
    assert 60 < end - start < 400
    torn = tmp_path / "torn" / "penstock.db"
    for at in range(start, end):
        for rest in (bytes(end - at), b"\xa5" * (end - at), MAGIC * ((end - at) // 4) + b"\xa5" * ((end - at) % 4)):
            if whole[at:end] == rest:
                continue
            torn.parent.mkdir()
            copy(image, torn)
            segment_path(torn).write_bytes(whole[:at] + rest + whole[end:])
            use(torn, expect_first_and_go_on)
            shutil.rmtree(torn.parent)


async def expect_first_and_go_on(store: SqliteStore) -> None:
    assert await bases(store) == [0]
    await append(store, await own_all(store), one(1, body=b"another"), one(2))
    assert [row.body for row in await all_batches(store)] == [b"body", b"another", b"body"]


def test_a_last_record_that_lacks_a_piece_is_cut(path: Path, tmp_path: Path, lazy: None) -> None:
    """Pages reach the disk in any order: what is missing need not be the end."""
    image, starts = crashed(path, tmp_path, one(0), one(1, body=b"the last record"))
    whole = segment_path(image).read_bytes()
    torn = tmp_path / "torn" / "penstock.db"
    for at in range(starts[1], starts[2]):
        torn.parent.mkdir()
        copy(image, torn)
        segment_path(torn).write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
        use(torn, expect_first_and_go_on)
        shutil.rmtree(torn.parent)


def test_a_file_that_ends_in_the_last_record_is_cut(path: Path, tmp_path: Path, lazy: None) -> None:
    image, starts = crashed(path, tmp_path, one(0), one(1))
    for size in (starts[1], starts[1] + 10, starts[2] - 1):
        torn = tmp_path / f"torn-{size}" / "penstock.db"
        torn.parent.mkdir()
        copy(image, torn)
        os.truncate(segment_path(torn), size)
        use(torn, expect_first_and_go_on)


@pytest.mark.parametrize("record", [0, 1, 2])
def test_a_damaged_record_with_others_behind_it_is_corrupt(path: Path, tmp_path: Path, lazy: None, record: int) -> None:
    image, starts = crashed(path, tmp_path, *(one(number) for number in range(4)))
    whole = segment_path(image).read_bytes()
    for at in range(starts[record], starts[record + 1], 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        segment_path(image).write_bytes(damaged)
        with pytest.raises(StoreCorrupt, match=f"damaged at byte {starts[record]}:"):
            use(image, load_any)
    segment_path(image).write_bytes(whole)
    use(image, load_any)


async def load_any(store: SqliteStore) -> None:
    await load_one(store)


def test_a_body_that_holds_a_log_is_no_record(path: Path, tmp_path: Path, lazy: None) -> None:
    """A message may hold anything, a copy of this very log too: behind a torn record it proves nothing."""
    image = tmp_path / "image.db"
    starts: list[int] = []

    async def write(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0))
        starts.append(store._log._log.end.position)
        later = [one(number) for number in range(1, 9)]
        copy(path, image)
        await append(store, epochs, *later)

    async def publish_it(store: SqliteStore) -> None:
        assert await bases(store) == [0]
        content = segment_path(path).read_bytes()[:2_000]
        await append(store, await own_all(store), one(1, body=content))

    use(path, write)
    use(image, publish_it)
    with closing(sqlite3.connect(image)) as connection:
        connection.execute("UPDATE log SET position = ?, record = 2, last_position = 0", starts)
        connection.execute("DELETE FROM batches WHERE base = 1")
        connection.execute("UPDATE lanes SET end = 1")
        connection.commit()
    content = segment_path(image).read_bytes()
    assert content.count(MAGIC) == 11
    segment_path(image).write_bytes(content[: starts[0]] + bytes(HEAD.size) + content[starts[0] + HEAD.size :])
    use(image, expect_first_and_go_on)


# Segments that do not belong, or are missing -----------------------------------------------------------------------


@pytest.fixture
def three_segments(path: Path, tmp_path: Path, small_segments: int, lazy: None) -> Path:
    """A crashed store with records in three segments, none of them in the tables."""
    image, _ = crashed(path, tmp_path, *(one(number, body=bytes(20_000)) for number in range(8)))
    assert segments_of(image) == [1, 2, 3]
    return image


def test_records_of_several_segments_are_brought_in(three_segments: Path) -> None:
    async def check(store: SqliteStore) -> None:
        assert await bases(store) == list(range(8))
        assert {row.body for row in await all_batches(store)} == {bytes(20_000)}

    use(three_segments, check, check)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("where", [100, 45_000])
def test_damage_in_a_segment_that_others_follow_is_corrupt(three_segments: Path, number: int, where: int) -> None:
    """Its last record too: it was whole when the next segment began."""
    with segment_path(three_segments, number).open("r+b") as file:
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 0xFF]))
    with pytest.raises(StoreCorrupt, match=f"000000000{number}.log is damaged at byte"):
        use(three_segments, load_any)


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_segment_is_corrupt(three_segments: Path, number: int) -> None:
    segment_path(three_segments, number).unlink()
    with pytest.raises(StoreCorrupt, match="lacks segment"):
        use(three_segments, load_any)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_head_of_a_segment_is_corrupt(three_segments: Path, number: int) -> None:
    with segment_path(three_segments, number).open("r+b") as file:
        file.seek(10)
        file.write(b"\xff")
    with pytest.raises(StoreCorrupt, match="head of the log file"):
        use(three_segments, load_any)


def test_a_segment_that_was_still_being_made_is_made_anew(three_segments: Path) -> None:
    segment_path(three_segments, 4).write_bytes(bytes(1 << 16))

    async def go_on(store: SqliteStore) -> None:
        assert await bases(store) == list(range(8))
        epochs = await own_all(store)
        await append(store, epochs, *(one(number, body=bytes(20_000)) for number in range(8, 14)))
        assert await bases(store) == list(range(14))

    use(three_segments, go_on)


def test_a_file_without_its_log_is_refused(path: Path) -> None:
    use(path, lambda store: _fill(store, 3))
    shutil.rmtree(f"{path}-log")
    with pytest.raises(StoreCorrupt, match=r"lacks segment 1.*restore both"):
        use(path, load_any)


def test_another_stores_log_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    use(path, lambda store: _fill(store, 3))
    use(other, lambda store: _fill(store, 3))
    shutil.rmtree(f"{path}-log")
    shutil.copytree(f"{other}-log", f"{path}-log")
    with pytest.raises(StoreCorrupt, match="belongs to another store"):
        use(path, load_any)


def test_a_log_that_is_older_than_its_file_is_refused(path: Path, tmp_path: Path) -> None:
    use(path, lambda store: _fill(store, 3))
    shutil.copytree(f"{path}-log", tmp_path / "older")
    use(path, lambda store: _fill(store, 3, start=3))
    shutil.rmtree(f"{path}-log")
    shutil.copytree(tmp_path / "older", f"{path}-log")
    with pytest.raises(StoreCorrupt, match="older than the file"):
        use(path, load_any)


async def _fill(store: SqliteStore, count: int, start: int = 0) -> None:
    epochs = await own_all(store)
    await append(store, epochs, *(one(number) for number in range(start, start + count)))


# Tables that lost their last writes ----------------------------------------------------------------------------------


def test_tables_that_are_older_than_the_log_are_brought_up_to_date(path: Path, tmp_path: Path) -> None:
    """As after a loss of power, for SQLite's own log is not synced with every write."""
    older = tmp_path / "older"
    older.mkdir()

    async def write(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, *(one(number) for number in range(10)))
        await store.apply(
            commit(epochs, change(end=10, leases=[LeaseRow(1, 1, 0, "", b"")], groups=[GroupRow(1, 1, 1)]))
        )
        assert (await load_one(store)).leases
        for name in ("penstock.db", "penstock.db-wal"):
            shutil.copy(path.with_name(name), older / name)
        await store.acquire(range(64), "a second time")
        epochs = await store.acquire(range(64), "a third time")
        await append(store, epochs, *(one(number) for number in range(10, 20)))
        await store.apply(
            commit(
                epochs,
                change(first=5, end=20, trim_to=5, leases_deleted=[(1, 1)], dedup=[DedupRow(b"k", 1, 1)]),
                full_change(LANE + 64),
            )
        )
        expected.append(await load_one(store))
        expected.append(epochs)

    expected: list[object] = []
    use(path, write)
    for name in ("penstock.db", "penstock.db-wal"):
        shutil.copy(older / name, path.with_name(name))

    async def check(store: SqliteStore) -> None:
        assert await load_one(store) == expected[0]
        assert [row.base for row in await all_batches(store)] == list(range(5, 20))
        assert await load_one(store, LANE + 64) == image_of(full_change(LANE + 64))
        # Whoever was fenced before is fenced still.
        epochs = expected[1]
        assert isinstance(epochs, dict)
        assert (await store.acquire([LANE], "new"))[LANE] > epochs[LANE]

    use(path, check, lambda store: _same_batches(store, list(range(5, 20))))


async def _same_batches(store: SqliteStore, expected: list[int]) -> None:
    assert [row.base for row in await all_batches(store)] == expected


@pytest.fixture(params=["links", "copies"])
def segments_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of the copy are links or, as on another disk, copies. Room is given back as soon as it can be."""
    monkeypatch.setattr(space, "SLACK_SEGMENTS", 0)
    if request.param == "copies":
        monkeypatch.setattr(os, "link", lambda *_: os.close(-1))


@pytest.mark.usefixtures("segments_as", "small_segments")
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
                copying = asyncio.ensure_future(asyncio.to_thread(back_up, path, path.with_name(f"{number}.db")))
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


@pytest.mark.usefixtures("segments_as", "small_segments")
def test_what_comes_and_goes_while_a_store_is_copied_is_in_the_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copied file knows the log up to some place, and needs every segment from there on to be opened."""
    monkeypatch.setattr(index, "INDEX_ROWS", 4)
    copied = path.with_name("copy.db")
    real = backup._copy_file
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

        def copy_slowly(source: Path, target: Path) -> None:
            asyncio.run_coroutine_threadsafe(write(store, epochs, range(40, 80)), loop).result(60)
            real(source, target)
            asyncio.run_coroutine_threadsafe(write(store, epochs, range(80, 160)), loop).result(60)

        monkeypatch.setattr(backup, "_copy_file", copy_slowly)
        await write(store, epochs, range(40))
        given_back_before[:] = segments_of(path)
        await asyncio.to_thread(back_up, path, copied)
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
        await asyncio.to_thread(back_up, path, copied)
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
    monkeypatch.setattr(os, "link", lambda *_: os.close(-1))
    monkeypatch.setattr(os, "fsync", fsync)
    back_up(path, path.with_name("copy.db"))
    made = list(Path(f"{path.with_name('copy.db')}-log").glob("*.log"))
    assert len(made) > 2
    assert {file.stat().st_ino for file in made} <= synced


def test_a_copy_goes_nowhere_where_something_is(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store"):
        back_up(path, tmp_path / "copy.db")
    use(path, load_any)
    back_up(path, tmp_path / "copy.db")
    with pytest.raises(AlreadyExists, match="name a new file"):
        back_up(path, tmp_path / "copy.db")


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


# Room -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "SLACK_SEGMENTS", 1)
    monkeypatch.setattr(index, "INDEX_ROWS", 50)
    monkeypatch.setattr(index, "INDEX_SECONDS", 0.01)


def test_steady_work_keeps_the_log_short(path: Path, small_segments: int, little_slack: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(400):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = number - 5
            await append(store, epochs, made)
        await load_one(store)
        assert await all_batches(store) == [
            row for number in range(394, 400) for row in batches(1, base=number, body=bytes(10_000))
        ]
        assert segments_of(path)[-1] > 50
        assert log_bytes(path) < 4 * small_segments

    use(path, scenario)


def test_one_old_message_a_segment_does_not_keep_it(path: Path, small_segments: int, little_slack: None) -> None:
    """Every fiftieth goes to a lane that nobody empties."""
    kept: list[int] = []

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(1_000):
            await append(store, epochs, one(number, body=bytes(2_000)))
            if number % 50 == 0:
                kept.append(len(kept))
                await append(store, epochs, one(kept[-1], body=b"%d" % kept[-1] * 100, lane=LANE + 64))
            await store.apply(commit(epochs, change(first=number, end=number + 1, trim_to=number)))
        await load_one(store)
        assert log_bytes(path) < 4 * small_segments
        assert segments_of(path)[-1] > 25
        await check(store)

    async def check(store: SqliteStore) -> None:
        assert [row.body for row in await all_batches(store, LANE + 64)] == [b"%d" % number * 100 for number in kept]

    use(path, scenario, check)


def test_a_stream_keeps_what_its_retention_keeps(path: Path, small_segments: int, little_slack: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for number in range(300):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = max(number - 100, 0)
            await append(store, epochs, made)
            if number % 50 == 0:
                await load_one(store)
                assert log_bytes(path) < 101 * 10_100 + 6 * small_segments
        assert await bases(store) == list(range(199, 300))

    use(path, scenario)


def test_a_deleted_lane_gives_its_room_back(path: Path, small_segments: int, little_slack: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, *(one(number, body=bytes(10_000)) for number in range(100)))
        await load_one(store)
        assert log_bytes(path) > 1_000_000
        await store.apply(commit(epochs, lanes_deleted=[LANE]))
        await append(store, epochs, one(0, body=bytes(60_000), lane=LANE + 64), one(1, lane=LANE + 64))
        await load_one(store, LANE + 64)
        assert log_bytes(path) < 4 * small_segments
        assert await all_batches(store) == []

    use(path, scenario)


def test_a_read_finds_what_was_moved_while_it_looked(
    path: Path, small_segments: int, little_slack: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose segment is emptied or deleted under a reader are read from where they are then."""
    monkeypatch.setattr(space, "SLACK_SEGMENTS", 0)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0, body=b"kept", lane=LANE + 64))
        done = False

        async def read_on() -> int:
            reads = 0
            while not done:
                found = await all_batches(store, LANE + 64)
                assert [row.body for row in found] == [b"kept"]
                await all_batches(store)
                reads += 1
            return reads

        reader = asyncio.ensure_future(read_on())
        for number in range(300):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = number
            await append(store, epochs, made)
        done = True
        assert await reader > 10
        assert 1 not in segments_of(path)

    use(path, scenario)


def test_a_read_begins_anew_when_a_segment_goes_under_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = segments.Segments.path
    asked: list[int] = []

    def gone_at_first(self: segments.Segments, number: int) -> Path:
        asked.append(number)
        return Path("no such segment") if len(asked) == 1 else real(self, number)

    async def scenario(store: SqliteStore) -> None:
        await append(store, await own_all(store), one(0))
        monkeypatch.setattr(segments.Segments, "path", gone_at_first)
        assert [row.body for row in await all_batches(store)] == [b"body"]
        assert len(asked) == 2
        monkeypatch.setattr(segments.Segments, "path", lambda *_: Path("no such segment"))
        with pytest.raises(StoreCorrupt, match="no such segment is missing"):
            await all_batches(store)
        monkeypatch.setattr(segments.Segments, "path", real)

    use(path, scenario)


def test_what_is_put_and_gone_before_the_tables_are_written_never_reaches_them(path: Path, lazy: None) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await append(store, epochs, one(0), one(1))
        await store.apply(commit(epochs, change(end=2, leases=[LeaseRow(1, 1, 0, "", b"")])))
        await store.apply(commit(epochs, change(end=2, leases_deleted=[(1, 1)], trim_to=1, first=1)))
        written: list[str] = []
        for connection in store._writer._idle:
            connection.set_trace_callback(written.append)
        assert await bases(store) == [1]
        puts = [text for text in written if text.lstrip().startswith(("INSERT INTO batches", "REPLACE INTO leases"))]
        assert len(puts) == 1
        assert "batches" in puts[0]

    use(path, scenario)


def test_a_segment_goes_when_the_tables_that_do_without_it_are_on_the_disk(
    path: Path, small_segments: int, little_slack: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = segments.Segments.remove

    def remove(self: segments.Segments, number: int) -> None:
        seen.append("gone")
        real(self, number)

    monkeypatch.setattr(segments.Segments, "remove", remove)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        for connection in store._writer._idle:
            connection.set_trace_callback(seen.append)
        for number in range(40):
            made = one(number, body=bytes(10_000))
            made.lanes[0].trim_to = number
            await append(store, epochs, made)
        await load_one(store)
        assert "gone" in seen
        settled = [word for word in seen if word in ("COMMIT", "gone") or word.startswith("PRAGMA synchronous")]
        before = settled[: settled.index("gone")]
        # The last commit before it was a durable one, and wrote something.
        assert before[-3:] == ["PRAGMA synchronous = FULL", "COMMIT", "PRAGMA synchronous = NORMAL"]
        assert any("syncs = syncs + 1" in word for word in seen[: seen.index("gone")])

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
