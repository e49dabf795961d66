"""Backups: of a store in use, verified, incremental; and what is restored from them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

import penstock
from penstock import Message
from penstock.maintenance.backup import BackupMade, back_up, list_backups, restore
from penstock.maintenance.verify import verify
from penstock.model.errors import AlreadyExists, InvalidArgument, NotFound, StoreCorrupt
from penstock.model.rows import Member
from penstock.store.open import open_engine
from penstock.store.sqlite import backup as files
from penstock.store.sqlite import restore as restoring
from penstock.store.sqlite.log import segments as log_segments
from tests.maintenance.rig import fill, flip, make, segment_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES_FIRST", 1 << 16)
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES_MOST", 1 << 16)


def backed_up(path: Path, folder: Path, keep: int | None = None) -> BackupMade:
    return asyncio.run(back_up(str(path), folder, keep=keep))


async def payloads(place: Path, queue: str = "work") -> list[bytes]:
    async with await penstock.open(place) as broker:
        return [one.payload for one in await broker.read_from(queue, 0, max=100_000)]


def test_a_backup_of_a_store_in_use_has_all_that_was_answered_before(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "penstock.db"

    async def main() -> None:
        published = 0
        async with await penstock.open(path) as broker:
            await fill(broker)
            await broker.declare_queue("work")

            async def publish() -> None:
                nonlocal published
                while True:
                    await broker.publish("work", Message(b"%d" % published))
                    published += 1

            publishing = asyncio.create_task(publish())
            for number in range(3):
                await asyncio.sleep(0)
                before = published
                done = await asyncio.to_thread(asyncio.run, back_up(str(path), folder))
                assert (done.ok, done.findings) == (True, [])
                target = tmp_path / f"restored-{number}.db"
                restored = await restore(folder, str(target))
                assert restored.ok
                found = await payloads(target)
                assert len(found) >= before
                assert found == [b"%d" % one for one in range(len(found))]
            publishing.cancel()

    asyncio.run(main())
    assert len(list_backups(folder)) == 3


@pytest.mark.usefixtures("small_segments")
def test_segments_that_are_there_are_not_copied_again(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "penstock.db"

    async def publish(count: int) -> None:
        async with await penstock.open(path) as broker:
            await broker.declare_queue("work")
            for _ in range(count):
                await broker.publish("work", Message(os.urandom(20_000)))

    asyncio.run(publish(30))
    first = backed_up(path, folder)
    kept = {file: file.stat().st_mtime_ns for file in (folder / "segments").iterdir()}
    asyncio.run(publish(6))
    second = backed_up(path, folder)
    assert first.bytes_had == 0
    assert second.bytes_had > 500_000
    assert second.bytes_copied < first.bytes_copied / 2
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    for number, name in enumerate((first.name, second.name)):
        target = tmp_path / f"{number}.db"
        asyncio.run(restore(folder, str(target), name=name))
        assert len(asyncio.run(payloads(target))) == (30, 36)[number]


@pytest.mark.usefixtures("small_segments")
def test_two_lines_of_a_store_can_share_a_folder(tmp_path: Path, folder: Path) -> None:
    """Restored and gone on: segments of the same numbers, with other messages in them."""
    path, other = tmp_path / "penstock.db", tmp_path / "other.db"

    async def publish(place: Path, payload: bytes) -> None:
        async with await penstock.open(place) as broker:
            await broker.declare_queue("work")
            for _ in range(10):
                await broker.publish("work", Message(payload * 20_000))

    asyncio.run(publish(path, b"a"))
    first = backed_up(path, folder)
    asyncio.run(restore(folder, str(other)))
    asyncio.run(publish(path, b"b"))
    second = backed_up(path, folder)
    asyncio.run(publish(other, b"c"))
    third = backed_up(other, folder)
    for name, last in ((first.name, b"a"), (second.name, b"b"), (third.name, b"c")):
        target = tmp_path / name / "penstock.db"
        assert asyncio.run(restore(folder, str(target), name=name)).ok
        assert asyncio.run(payloads(target))[-1] == last * 20_000


def test_old_backups_go_and_what_the_others_need_stays(path: Path, folder: Path, tmp_path: Path) -> None:
    names = [backed_up(path, folder).name for _ in range(3)]
    asyncio.run(grow(path))
    last = backed_up(path, folder, keep=2)
    assert last.deleted == names[:2]
    assert [one.name for one in list_backups(folder)] == [names[2], last.name]
    for name in (names[2], last.name):
        assert asyncio.run(restore(folder, str(tmp_path / f"{name}.db"), name=name)).ok


async def grow(path: Path) -> None:
    async with await penstock.open(path) as broker:
        await broker.publish_many("mail", [Message(b"more" * 1000)] * 50)


def test_a_backup_of_a_damaged_store_is_kept_told_and_drives_no_other_out(path: Path, folder: Path) -> None:
    good = backed_up(path, folder)
    flip(segment_of(path), 3_000)
    bad = backed_up(path, folder, keep=1)
    assert not bad.ok
    assert bad.findings
    assert bad.deleted == []
    assert [one.name for one in list_backups(folder)] == [good.name, bad.name]


@pytest.mark.parametrize("what", ["segment", "file", "missing", "manifest"])
def test_a_damaged_backup_is_not_restored(path: Path, folder: Path, tmp_path: Path, what: str) -> None:
    done = backed_up(path, folder)
    [segment] = (folder / "segments").iterdir()
    if what == "segment":
        flip(segment, 3_000)
    elif what == "file":
        flip(folder / done.name / "penstock.db", 9_000)
    elif what == "missing":
        segment.unlink()
    else:
        (folder / done.name / "manifest.json").write_text("{}")
    with pytest.raises(StoreCorrupt, match=r"damaged|missing|cannot be read"):
        asyncio.run(restore(folder, str(tmp_path / "restored.db")))
    assert not (tmp_path / "restored.db").exists()


def test_a_restored_store_gives_out_no_number_again(path: Path, folder: Path, tmp_path: Path) -> None:
    backed_up(path, folder)
    target = tmp_path / "restored.db"
    asyncio.run(restore(folder, str(target)))

    async def given(place: Path) -> tuple[int, int]:
        store = await open_engine(place)
        try:
            joined = await store.join(Member("x", "", "1", 1))
            return joined.incarnation, await store.reserve_ids(1)
        finally:
            await store.close()

    (incarnation, id), (later, later_id) = asyncio.run(given(path)), asyncio.run(given(target))
    assert later >= incarnation + restoring.INCARNATIONS_SKIPPED
    assert later_id >= id + restoring.IDS_SKIPPED


def test_what_is_refused(path: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no backups"):
        asyncio.run(restore(folder, str(tmp_path / "x.db")))
    with pytest.raises(InvalidArgument, match="its own tools"):
        asyncio.run(back_up("postgresql://nobody@127.0.0.1/x", folder))
    with pytest.raises(InvalidArgument, match="becomes a file"):
        asyncio.run(restore(folder, "mysql://nobody@127.0.0.1/x"))
    backed_up(path, folder)
    with pytest.raises(NotFound, match="no backup 'yesterday'"):
        asyncio.run(restore(folder, str(tmp_path / "x.db"), name="yesterday"))
    with pytest.raises(AlreadyExists, match="name a new file"):
        asyncio.run(restore(folder, str(path)))
    make(str(tmp_path / "another.db"))
    with pytest.raises(InvalidArgument, match="another store"):
        backed_up(tmp_path / "another.db", folder)


def test_a_backup_that_broke_off_leaves_nothing(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_self: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files._Making, "_copy_file", fails)
        with pytest.raises(penstock.PenstockError, match="No space left"):
            backed_up(path, folder)
    assert list_backups(folder) == []
    (folder / ".partial-1").mkdir()  # of a process that was killed
    assert backed_up(path, folder).ok
    assert sorted(one.name for one in folder.iterdir() if one.name.startswith(".")) == []


def test_a_backup_can_move_and_is_for_its_owner_alone(path: Path, folder: Path, tmp_path: Path) -> None:
    done = backed_up(path, folder)
    assert all(one.stat().st_mode & 0o077 == 0 for one in folder.rglob("*"))
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    manifest = json.loads((moved / done.name / "manifest.json").read_text())
    assert not any(one["file"]["path"].startswith("/") for one in manifest["segments"])
    target = tmp_path / "deep" / "folder" / "restored.db"
    assert asyncio.run(restore(moved, str(target))).ok
    assert asyncio.run(verify(target)).ok
