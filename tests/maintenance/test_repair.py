"""`repair`: of a damaged SQLite store, all that can be read becomes a sound one; the damaged one stays as it is."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.maintenance.repair import Repaired, repair
from penstock.maintenance.verify import verify
from penstock.model.errors import AlreadyExists, InvalidArgument, NotFound, StoreCorrupt, Unavailable
from penstock.store.sqlite import index, server_lock
from tests.maintenance.rig import copy_files, flip, segment_of


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "repaired.db"


def repaired(path: Path, target: Path) -> Repaired:
    before = contents(path)
    done = asyncio.run(repair(str(path), str(target)))
    assert contents(path) == before, "the damaged store is not touched"
    assert done.ok, done.findings
    assert asyncio.run(verify(target)).ok
    return done


def contents(path: Path) -> dict[Path, bytes]:
    files = [path, *Path(f"{path}-log").glob("*.log")]
    return {file: file.read_bytes() for file in files if file.exists()}


async def seen(place: Path) -> dict[str, Any]:
    """What a user finds in a store."""
    async with await penstock.open(place) as broker:
        found: dict[str, Any] = {"queues": await broker.queues(), "marks": await broker.marks()}
        for name in found["queues"]:
            stats = await broker.stats(name)
            found[name] = (stats.messages, stats.published, stats.groups)
        return found


def place_of_batch(path: Path, queue: str, base: int) -> tuple[int, int]:
    """(segment, last byte) of a batch of a queue's first lane."""
    with closing(sqlite3.connect(path)) as connection:
        [(document,)] = connection.execute("SELECT document FROM catalog WHERE kind = 'queue' AND name = ?", (queue,))
        lane = int(document.split(b'"lanes":[')[1].split(b"]")[0].split(b",")[0])
        query = "SELECT segment, position + size - length(meta) - 1 FROM batches WHERE lane = ? AND base <= ? "
        row: tuple[int, int] = connection.execute(query + "ORDER BY base DESC LIMIT 1", (lane, base)).fetchone()
        return row


def test_a_sound_store_comes_out_as_it_was(path: Path, target: Path) -> None:
    done = repaired(path, target)
    assert (done.lost, done.findings, done.aside) == (0, [], None)
    assert asyncio.run(seen(target)) == asyncio.run(seen(path))


def test_damaged_messages_are_set_aside_and_never_delivered(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "penstock.db"

    async def fill() -> None:
        async with await penstock.open(path) as broker:
            await broker.declare_queue("work", retain_ms=3_600_000)
            await broker.declare_group("work", "readers", kind="stream")
            for number in range(6):
                await broker.publish(
                    "work", Message(b"payload %d" % number, key=f"key-{number}", headers={"n": number})
                )
            await broker.claim("work", max=2, lease_seconds=0.001)  # 0 and 1 were handed out before

    asyncio.run(fill())
    for base in (1, 4):
        flip(segment_of(path), place_of_batch(path, "work", base)[1])
    done = repaired(path, target)
    assert done.lost == 2
    assert {(one.queue, one.start, one.end) for one in done.findings if one.check == "offsets"} == {
        ("default/work", 1, 2),
        ("default/work", 4, 5),
    }
    assert done.aside is not None
    assert len(list(Path(done.aside).glob("*.body"))) == 2

    async def consume() -> None:
        async with await penstock.open(target) as broker:
            got = []
            while claim := await broker.claim("work", max=1, wait=1.0):
                got += [(one.offset, one.payload) for one in claim]
                await broker.ack(claim)
            assert got == [(number, b"payload %d" % number) for number in (0, 2, 3, 5)]
            assert [one.offset for one in await broker.read("work", "readers", max=10)] == [0, 2, 3, 5]
            [dead] = await broker.dead("work")
            headers = dead.received.headers or {}
            assert (dead.received.offset, dead.reason, dead.received.key) == (1, "damaged", "key-1")
            assert (headers["n"], headers["x-penstock-damaged"]) == (1, True)
            assert (await broker.publish("work", Message(b"more"))).offset == 6

    asyncio.run(consume())


def test_a_record_that_cannot_be_read_costs_its_messages_alone(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's end is damaged before the tables know it: no server starts on it."""
    monkeypatch.setattr(index, "INDEX_SECONDS", 3600.0)
    path, crashed = tmp_path / "penstock.db", tmp_path / "crash" / "penstock.db"

    async def fill() -> None:
        async with await penstock.open(path) as broker:
            await broker.declare_queue("work")
            for number in range(20):
                await broker.publish("work", Message(b"payload %d " % number * 20))
            copy_files(path, crashed.parent)

    asyncio.run(fill())
    data = segment_of(crashed).read_bytes()
    flip(segment_of(crashed), data.rindex(b"PNLr", 0, data.index(b"payload 7 ")) + 40)
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        asyncio.run(seen(crashed))
    done = repaired(crashed, target)
    assert done.lost == 1
    assert done.records > 20

    async def consume() -> None:
        async with await penstock.open(target) as broker:
            claim = await broker.claim("work", max=100)
            assert [one.offset for one in claim] == [*range(7), *range(8, 20)]

    asyncio.run(consume())


def test_a_block_that_the_disk_does_not_give_back_costs_its_messages_alone(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "penstock.db"
    payloads = [random.Random(number).randbytes(5_000) for number in range(20)]

    async def fill() -> None:
        async with await penstock.open(path) as broker:
            await broker.declare_queue("work")
            await broker.declare_group("work", "default")
            for payload in payloads:
                await broker.publish("work", Message(payload))

    asyncio.run(fill())
    bad, real = segment_of(path).read_bytes().index(payloads[7]) // 4096 * 4096 + 4096, os.pread

    def pread(descriptor: int, size: int, position: int) -> bytes:
        is_log = os.fstat(descriptor).st_ino == segment_of(path).stat().st_ino
        if is_log and position < bad + 4096 and position + size > bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    report = asyncio.run(verify(path))
    assert not report.ok
    assert {"checksum", "log"} <= {finding.check for finding in report.findings}, report.findings
    done = repaired(path, target)
    assert 1 <= done.lost <= 2

    async def consume() -> list[bytes]:
        async with await penstock.open(target) as broker:
            return (await broker.claim("work", max=100)).payloads()

    found = asyncio.run(consume())
    assert len(found) == 20 - done.lost
    assert set(found) <= {*payloads} - {payloads[7]}


def test_a_lost_file_is_rebuilt_from_the_log(path: Path, target: Path) -> None:
    expected = asyncio.run(seen(path))
    path.unlink()
    done = repaired(path, target)
    assert done.lost == 0
    assert asyncio.run(seen(target)) == expected


def test_damaged_pages_are_rebuilt_from_the_log(path: Path, target: Path) -> None:
    expected = asyncio.run(seen(path))
    for page in range(8192, path.stat().st_size, 8192):
        flip(path, page + 3)
    assert not asyncio.run(verify(path)).ok
    done = repaired(path, target)
    assert done.lost == 0
    assert any(one.check == "file" for one in done.findings)
    assert asyncio.run(seen(target)) == expected


@pytest.mark.parametrize("seed", range(6))
def test_whatever_bytes_are_damaged_the_outcome_is_sound(path: Path, target: Path, seed: int) -> None:
    """Random damage of the file and its log: what comes out is always a store without a fault."""
    from random import Random

    random = Random(seed)
    with closing(sqlite3.connect(path)) as connection:
        end = connection.execute("SELECT position FROM log").fetchone()[0]
    for _ in range(8):
        flip(segment_of(path), random.randrange(64, end))
        flip(path, random.randrange(200, path.stat().st_size))
    done = repaired(path, target)
    assert done.findings


def test_rows_that_do_not_fit_are_mended(path: Path, target: Path) -> None:
    """Rows that only the tables know: the log is cut back to what came after."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM groups WHERE lane = (SELECT max(lane) FROM leases)")
        connection.execute("UPDATE waiting SET entries = x'c1'")
        connection.execute("UPDATE dead SET end = end + 90")
        connection.execute("DELETE FROM batches WHERE rowid = 3")
    for file in Path(f"{path}-log").glob("*.log"):
        file.rename(file.with_suffix(".gone"))
    done = repaired(path, target)
    assert any("cursor" in one.problem for one in done.findings)
    assert done.lost > 0


def test_what_is_refused(path: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no store"):
        asyncio.run(repair(str(tmp_path / "none.db"), str(target)))
    with pytest.raises(AlreadyExists, match="name a new file"):
        asyncio.run(repair(str(path), str(path)))
    with pytest.raises(InvalidArgument, match="is a database"):
        asyncio.run(repair("postgresql://nobody@127.0.0.1/x", str(target)))
    with server_lock.held(path), pytest.raises(Unavailable, match="stop it first"):
        asyncio.run(repair(str(path), str(target)))
    nothing = tmp_path / "nothing.db"
    nothing.write_bytes(os.urandom(20_000))
    Path(f"{nothing}-log").mkdir()
    with pytest.raises(StoreCorrupt, match="nothing of"):
        asyncio.run(repair(str(nothing), str(target)))
    assert not target.exists()
