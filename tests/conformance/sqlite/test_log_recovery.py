"""The log after a crash: a torn end is cut, damage is found, the tables follow."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.errors import StoreCorrupt
from penstock.model.rows import Commit, DedupRow, GroupRow, LeaseRow
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.log.records import HEAD, MAGIC
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES
from tests.conformance.samples import (
    CATALOG,
    LANE,
    OUTBOX,
    TRACES,
    all_batches,
    change,
    commit,
    full_change,
    image_of,
    load_one,
    own_all,
)
from tests.conformance.sqlite.log_rig import (
    append,
    bases,
    copy,
    expect_first_and_go_on,
    load_any,
    one,
    segment_path,
    segments_of,
    use,
)

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


# What is cut off is told and kept -----------------------------------------------------------------------------------


def cut_files(path: Path) -> dict[str, bytes]:
    folder = Path(f"{path}-log", "cut")
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}


async def notes_of(store: SqliteStore) -> list[str]:
    await load_one(store)
    return store.damage()


def opened_notes(path: Path) -> list[str]:
    """What a store that is opened tells of damage, after it went on."""
    notes: list[str] = []

    async def look(store: SqliteStore) -> None:
        notes.extend(await notes_of(store))
        await append(store, await own_all(store), one((await load_one(store)).end, body=b"more"))

    use(path, look)
    return notes


def test_a_log_that_ends_as_it_should_has_nothing_cut(path: Path, tmp_path: Path, lazy: None) -> None:
    image, _ = crashed(path, tmp_path, one(0), one(1))
    assert opened_notes(image) == []
    assert cut_files(image) == {}


def test_a_torn_record_is_kept_and_told(
    path: Path, tmp_path: Path, lazy: None, caplog: pytest.LogCaptureFixture
) -> None:
    image, starts = crashed(path, tmp_path, one(0), one(1, body=bytes(range(1, 251)) * 40))
    content = bytearray(segment_path(image).read_bytes())
    content[8192 : starts[2]] = bytes(starts[2] - 8192)
    segment_path(image).write_bytes(content)
    [note] = opened_notes(image)
    assert "never written whole" in note
    assert cut_files(image) == {f"0000000001-{starts[1]}.torn": bytes(content[starts[1] : 8192])}
    [record] = [record for record in caplog.records if "cut off" in record.message]
    assert record.levelname == "WARNING"
    assert f"{segment_path(image)}: {8192 - starts[1]} bytes at byte {starts[1]}" in record.message


def test_a_last_record_that_fails_its_checksum_is_kept_and_told(
    path: Path, tmp_path: Path, lazy: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is damaged: it was written whole, and may have been answered."""
    image, starts = crashed(path, tmp_path, one(0), one(1, body=b"the last record"))
    whole = segment_path(image).read_bytes()
    damaged = tmp_path / "damaged" / "penstock.db"
    for at in (starts[1], starts[1] + 3, starts[1] + 5, starts[1] + HEAD.size, starts[2] - 1):
        damaged.parent.mkdir()
        copy(image, damaged)
        segment_path(damaged).write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        caplog.clear()
        [note] = opened_notes(damaged)
        assert "fails its checksum" in note
        [kept] = cut_files(damaged).values()
        assert kept == whole[starts[1] : at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 : starts[2]]
        assert [record.levelname for record in caplog.records if "cut off" in record.message] == ["ERROR"]
        shutil.rmtree(damaged.parent)


@pytest.mark.parametrize("where", ["at a record's end", "inside a record", "at a whole block"])
def test_a_file_that_is_shorter_than_it_was_made_is_told(
    path: Path, tmp_path: Path, lazy: None, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    image, starts = crashed(path, tmp_path, one(0), one(1))
    size = {"at a record's end": starts[1], "inside a record": starts[2] - 1, "at a whole block": 4096}[where]
    os.truncate(segment_path(image), size)
    [note] = opened_notes(image)
    assert "shorter than it was made" in note
    assert [Path(name).suffix for name in cut_files(image)] == [".short"]
    assert "ERROR" in [record.levelname for record in caplog.records]


def test_a_record_that_the_disk_does_not_give_back_is_damage_with_the_way_out(
    path: Path, tmp_path: Path, lazy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, [start, *_] = crashed(path, tmp_path, one(0), one(1))
    file, real = segment_path(image, 1), os.pread

    def pread(descriptor: int, size: int, position: int) -> bytes:
        if os.fstat(descriptor).st_ino == file.stat().st_ino and position >= start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, size, position)

    async def never(_: SqliteStore) -> None:
        pytest.fail("it was opened")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        with pytest.raises(StoreCorrupt, match=rf"{file} cannot be read .*Input/output error.*store repair"):
            use(image, load_any, never)

    async def check(store: SqliteStore) -> None:
        assert await bases(store) == [0, 1]

    use(image, check)  # the disk is back, and nothing was changed


def test_what_was_cut_off_is_told_until_its_file_is_gone(path: Path, tmp_path: Path, lazy: None) -> None:
    image, starts = crashed(path, tmp_path, one(0), one(1))
    with segment_path(image).open("r+b") as file:
        file.seek(starts[2] - 1)
        file.write(b"\xff")
    first = opened_notes(image)
    assert len(first) == 1
    assert opened_notes(image) == first  # it is cut off once, and told again
    [kept] = Path(f"{image}-log", "cut").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    kept.unlink()
    assert opened_notes(image) == []
    use(image, lambda store: expect_bases(store, [0, 1, 2, 3]))


async def expect_bases(store: SqliteStore, expected: list[int]) -> None:
    assert await bases(store) == expected
