"""`doctor`: what is well, what to mind and what is wrong, of a store and the machine below it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock.maintenance import doctor
from penstock.maintenance.doctor import Check, check_disk, check_programs, check_store, file_system
from penstock.model.rows import EnqueuedFailure, EnqueuedRow
from penstock.store.open import open_engine
from penstock.store.sqlite import server_lock
from tests.conformance.engines import ENGINES
from tests.conformance.samples import own_all
from tests.maintenance.rig import ENGINE_NAMES, flip, make, place_of


def looked_at(place: str) -> dict[str, Check]:
    """The worst check of each kind."""
    worst: dict[str, Check] = {}
    for check in asyncio.run(check_store(place)):
        known = worst.get(check.about)
        if known is None or ("fine", "mind", "wrong").index(check.state) > ("fine", "mind", "wrong").index(known.state):
            worst[check.about] = check
    return worst


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_store_that_is_well(engine: str, tmp_path: Path) -> None:
    place = place_of(engine, tmp_path)
    assert "yet" in looked_at(place)["store"].text
    make(place)
    found = looked_at(place)
    assert (found["store"].state, found["clock"].state) == ("fine", "fine")
    assert "no server" in found["server"].text


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
def test_members_and_what_could_not_be_published_are_told(engine: str, tmp_path: Path) -> None:
    place = place_of(engine, tmp_path)
    enqueue = next(one.enqueue for one in ENGINES if one.name == engine)
    assert enqueue is not None

    async def main() -> None:
        async with await penstock.open(place):
            checks = await check_store(place)
            assert [(one.state, "1 at work" in one.text) for one in checks if one.about == "server"] == [("fine", True)]
        store = await open_engine(place)
        epochs = await own_all(store)
        await enqueue(store, tmp_path, [EnqueuedRow(1, "default", "mail", None, b"soon")])
        failure = EnqueuedFailure(1, "no queue", 1)
        await store.apply(penstock.model.rows.Commit(epochs=epochs, enqueued_failed=[failure]))
        await store.close()

    asyncio.run(main())
    assert looked_at(place)["enqueued"].state == "mind"


def test_a_server_that_holds_the_file_is_told_and_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    make(str(path))
    with server_lock.held(path):
        assert looked_at(str(path))["server"] == Check(
            "server", "fine", f"a server uses the store: process {os.getpid()}"
        )
    with server_lock.held(path):
        pass


def test_damage_open_files_and_messages_of_the_future_are_told(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    make(str(path))
    path.chmod(0o644)
    assert "chmod" in looked_at(str(path))["store"].advice
    ahead = time.time_ns() // 1_000_000 + 3_600_000
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE batches SET published_ms = ?", (ahead,))
    assert "in the future" in looked_at(str(path))["clock"].text
    flip(path, 1)
    assert looked_at(str(path))["store"].state == "wrong"


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"proc": Path("/proc"), "sysfs": Path("/sys")}
    assert {kind: file_system(place) for kind, place in kinds.items()} == {"proc": "proc", "sysfs": "sysfs"}
    found = list(check_disk(tmp_path / "not" / "there", "disk"))
    assert any("free" in one.text for one in found)
    assert any("sync takes" in one.text for one in found)
    assert list(tmp_path.iterdir()) == []
    for kind in ("nfs4", "tmpfs"):
        monkeypatch.setattr(doctor, "file_system", lambda _, kind=kind: kind)
        assert any(one.state == "wrong" and kind in one.text for one in check_disk(tmp_path, "disk"))
    monkeypatch.setattr(doctor, "FREE_LEAST", 1 << 60)
    assert any(one.state == "wrong" and "make room" in one.advice for one in check_disk(tmp_path, "disk"))


def test_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.state for one in check_programs()} == {"fine"}
    monkeypatch.setattr(doctor, "SQLITE_LEAST", (99, 0, 0))
    assert "too old" in next(one.text for one in check_programs() if one.state == "wrong")
