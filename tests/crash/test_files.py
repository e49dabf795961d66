"""Files that are no good: each is refused with an error that says why, and is left as it was."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from penstock import InvalidArgument, Message, PenstockError, StoreCorrupt, Unavailable
from penstock.store.sqlite.index import LOOK_SECONDS
from tests.crash.faults import is_root, small_disk
from tests.local import open_local
from tests.scenarios.rig import Home, claim_all, play


def refused(path: Path, kind: type[PenstockError], text: str) -> None:
    async def main() -> None:
        with pytest.raises(kind, match=text) as error:
            await open_local(path)
        assert str(path) in str(error.value)

    asyncio.run(main())


def filled(path: Path, count: int = 500) -> None:
    async def main() -> None:
        async with await open_local(path) as broker:
            await broker.declare_queue("q")
            await broker.publish_many("q", [Message(b"%d" % number * 50) for number in range(count)])

    asyncio.run(main())


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are my notes, not a database" * 100)
    before = path.read_bytes()
    refused(path, StoreCorrupt, "SQLITE_NOTADB")
    assert path.read_bytes() == before


def test_someone_elses_database(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE contacts (name TEXT)")
    before = path.read_bytes()
    refused(path, StoreCorrupt, "Penstock did not make")
    assert path.read_bytes() == before


def test_a_file_of_a_newer_penstock(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    filled(path, 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    refused(path, StoreCorrupt, "schema version 99 .* newer Penstock")


def test_a_folder(tmp_path: Path) -> None:
    refused(tmp_path, InvalidArgument, "is a folder")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused(tmp_path / "file" / "penstock.db", Unavailable, "ot a directory|unable to open")


def test_a_file_that_may_only_be_read(tmp_path: Path) -> None:
    if not is_root():
        path = tmp_path / "penstock.db"
        filled(path)
        path.chmod(0o444)
        refused(path, Unavailable, "readonly|unable to open|denied")
        return
    with small_disk(tmp_path / "disk", 8 << 20) as disk:  # root may write any file, but not to such a disk
        path = disk / "penstock.db"
        filled(path)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        refused(path, Unavailable, "readonly|unable to open|read-only|SQLITE_")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        play(Home(path), _all_there)


async def _all_there(home: Home) -> None:
    broker = await home.open()
    assert len(await claim_all(broker, "q")) == 500


@pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
def test_a_damaged_file_is_corrupt_and_never_a_wrong_answer(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "penstock.db"
    filled(path, 5_000)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        middle = slice(8_192, len(content))
        content[middle] = bytes(len(content) - 8_192) if damage == "zeros" else b"\xa5" * (len(content) - 8_192)
    path.write_bytes(content)

    async def read_all() -> None:
        broker = await open_local(path)
        try:
            await broker.declare_group("q", "g")
            assert len(await claim_all(broker, "q", group="g")) == 5_000
        finally:
            await broker.close()

    async def main() -> None:
        with pytest.raises(StoreCorrupt, match="SQLITE_"):
            await read_all()

    asyncio.run(main())


def test_a_file_that_is_moved_away_under_an_open_broker(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        assert home.path is not None
        broker = await home.open()
        await broker.declare_queue("q")
        away = home.path.with_name("away.db")
        home.path.rename(away)
        await asyncio.sleep(2 * LOOK_SECONDS)  # it has just looked
        for _ in range(2):
            with pytest.raises(Unavailable, match="moved, deleted or replaced"):
                await broker.publish("q", Message(b"never"))
        away.rename(home.path)
        await broker.publish("q", Message(b"m"))
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q") == ["m"]

    play(file_home, scenario)


@pytest.mark.parametrize("name", ["with space.db", "hash#mark?.db", "per%20cent.db", "ü😀.db", "semi;colon.db"])
def test_any_path_is_a_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a folder" / "deeper" / name
    filled(path, 500)
    assert path.exists()
    play(Home(path), _all_there)
