"""The spool's files: whatever is cut off or changed in them, a record comes back as it was, or not at all."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from penstock import InvalidArgument, StoreCorrupt, Unavailable
from penstock.node.spool.folder import DiskFolder
from penstock.node.spool.log import LogPosition, SpoolLog
from penstock.node.spool.records import (
    MAGIC,
    DeadRecord,
    Doubt,
    Header,
    Record,
    dead_of,
    header_of,
    packed,
    packed_dead,
    records_in,
    segment_start,
)

HEADER = Header("00aa", "the store", 1_700_000_000_000)


def record(number: int, size: int = 5) -> Record:
    doubt = Doubt(3, b"key", 7, 5) if number % 2 else None
    return Record(number, 5, "default", "work", 9, None, ("work",), None, 1, b"meta", b"%d" % number * size, doubt)


RECORDS = [record(number) for number in range(1, 5)]
SEGMENT = segment_start(HEADER) + b"".join(map(packed, RECORDS))


def found_in(data: bytes) -> list[Record]:
    start = header_of(data, "segment")
    return [] if start is None else [one for one, _ in records_in(data, start[1], "segment")]


def test_what_is_whole_comes_back() -> None:
    start = header_of(SEGMENT, "segment")
    assert start is not None
    assert start[0] == HEADER
    assert found_in(SEGMENT) == RECORDS


def test_a_segment_that_ends_anywhere_has_the_records_before_it() -> None:
    ends = [len(segment_start(HEADER) + b"".join(map(packed, RECORDS[:count]))) for count in range(5)]
    for size in range(len(SEGMENT)):
        assert found_in(SEGMENT[:size]) == RECORDS[: sum(end <= size for end in ends[1:])]
        if size >= ends[0]:
            assert found_in(SEGMENT[:size] + bytes(50)) == RECORDS[: sum(end <= size for end in ends[1:])]


def test_no_changed_byte_goes_unnoticed() -> None:
    for place in range(len(SEGMENT)):
        changed = bytearray(SEGMENT)
        changed[place] ^= 0x41
        try:
            found = found_in(bytes(changed))
        except StoreCorrupt:
            continue
        assert len(found) < len(RECORDS)
        assert found == RECORDS[: len(found)]


def test_a_dead_letter_comes_back_or_is_called_damaged() -> None:
    dead = DeadRecord(HEADER, RECORDS[0], "not_found: it is gone", 6)
    data = packed_dead(dead)
    assert dead_of(data, "letter") == dead
    for size in range(len(data)):
        with pytest.raises(StoreCorrupt, match="letter"):
            dead_of(data[:size], "letter")


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = DiskFolder.open(tmp_path / "spool")
        with pytest.raises(InvalidArgument, match=r"another process uses.*spool\.folder"):
            DiskFolder.open(tmp_path / "spool")
        await folder.append("a", b"one")
        await folder.append("b", b"x")
        await folder.append("a", b"two")
        await folder.truncate("a", 4)
        await folder.append("a", b"!")
        assert (await folder.names(), await folder.read("a"), await folder.read("a", 1, 2)) == (
            ["a", "b", "lock"],
            b"onet!",
            b"ne",
        )
        await folder.remove("a")
        await folder.remove("a")
        assert await folder.names() == ["b", "lock"]
        with pytest.raises(Unavailable, match="No such file"):
            await folder.read("a")
        assert await folder.free_bytes() > 0
        await folder.close()
        await DiskFolder.open(tmp_path / "spool").close()

    asyncio.run(scenario())


def test_a_folder_is_called_the_same_at_every_start_and_like_no_other(tmp_path: Path) -> None:
    async def named(place: str) -> str:
        folder = DiskFolder.open(tmp_path / place)
        await folder.close()
        return folder.place

    async def scenario() -> None:
        first = await named("a")
        assert [await named("a"), await named("a")] == [first, first]
        assert first.startswith(f"{socket.gethostname()[:64]}:")
        assert await named("b") != first
        lock = tmp_path / "a" / "lock"
        for torn in (b"", first.encode(), b"\xff" * 200):
            lock.write_bytes(torn)
            second = await named("a")
            assert second != first
            assert lock.read_text() == f"{second}\n"

    asyncio.run(scenario())


def test_what_is_appended_or_removed_is_on_the_disk_when_that_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str, int]] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            done.append((name, path.name, path.stat().st_size if path.is_file() else 0))
            real(descriptor)

        monkeypatch.setattr(os, name, call)

    async def scenario() -> None:
        folder = DiskFolder.open(tmp_path / "spool")
        noted("fsync")
        noted("fdatasync")
        await folder.append("a", b"one")
        assert done == [("fsync", "spool", 0), ("fdatasync", "a", 3)]
        await folder.append("a", b"two")
        assert done[2:] == [("fdatasync", "a", 6)]
        await folder.truncate("a", 4)
        assert done[3:] == [("fsync", "a", 4)]
        await folder.remove("a")
        assert done[4:] == [("fsync", "spool", 0)]
        await folder.close()

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"cannot be used.*spool\.folder"):
        DiskFolder.open(tmp_path / "file")


def test_records_are_read_in_order_over_segments_and_removed_behind_the_reader(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = DiskFolder.open(tmp_path)
        log = await SpoolLog.open(folder, HEADER, 1 << 30, lambda *_: None, segment_bytes=400)
        futures = []
        for number in range(1, 41):
            added, future = log.add(record)
            assert added.sequence == number
            futures.append(future)
            if number % 3 == 0:
                await future
        await asyncio.gather(*futures)
        await log.written()
        assert len([name for name in await folder.names() if name.endswith(".spool")]) > 3
        place, seen = log.start, []
        while entries := await log.read(place):
            seen += [entry.record.sequence for entry in entries]
            place = entries[-1].end
            await log.release(place)
        assert seen == list(range(1, 41))
        assert log.is_end(place)
        assert [name for name in await folder.names() if name.endswith(".spool")] == []
        _, future = log.add(lambda sequence: record(sequence, 2_000_000))  # larger than what is read at once
        await future
        assert [entry.record.sequence for entry in await log.read(place)] == [41]
        assert (await log.read(LogPosition(0, 0)))[0].record == record(41, 2_000_000)
        await folder.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", range(len(MAGIC) + 4))
@pytest.mark.parametrize("zeros", [0, 1, 100])
def test_a_segment_whose_beginning_a_crash_has_cut_holds_nothing(cut: int, zeros: int) -> None:
    start = segment_start(Header("0001", "store", 1))
    assert header_of(start[:cut] + bytes(zeros), "name") is None


def test_a_file_that_is_something_else_is_refused() -> None:
    for data in (b"x", b"\0\0x", MAGIC[:3] + b"x", MAGIC[:3] + b"\0\0x"):
        with pytest.raises(StoreCorrupt, match="name is no segment"):
            header_of(data, "name")
