"""The scrub: what is kept is read again in the background, and damage is told before a consumer meets it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from penstock import Message
from penstock.embedded import open_store
from penstock.node.background import scrub
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.store.checking import check_batches
from penstock.store.open import open_engine
from penstock.store.sqlite.log import segments as log_segments
from tests.maintenance.rig import flip, segment_of

DEADLINE_S = 60.0
MESSAGES = 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "COLD_MS", -1)


def filled(path: Path, queue: str = "q") -> None:
    async def main() -> None:
        broker = await opened(path, 0)
        await broker.declare_queue(queue)
        for number in range(MESSAGES):
            await broker.publish(queue, Message(b"%d" % number + os.urandom(1_000)))
        await broker.close()

    asyncio.run(main())


async def opened(path: Path, bytes_per_second: int) -> LocalBroker:
    store = await open_engine(path)
    return await open_store(store, SystemClock(), events=False, scrub_bytes_per_second=bytes_per_second)


def scrubbing(path: Path, scenario: Callable[[LocalBroker], Awaitable[None]], rate: int = 1 << 30) -> None:
    async def main() -> None:
        broker = await opened(path, rate)
        try:
            await scenario(broker)
        finally:
            await broker.close()

    asyncio.run(main())


async def passed(broker: LocalBroker) -> None:
    deadline = monotonic() + DEADLINE_S
    while True:
        numbers = (await broker.measures()).scrub
        assert numbers is not None
        if numbers.passes:
            return
        assert monotonic() < deadline, "the pass does not end"
        await asyncio.sleep(0.01)


def body_of(path: Path, base: int) -> tuple[int, int]:
    """Segment and place of the last byte of a body."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT segment, position + size - length(meta) - 1 FROM batches WHERE base = ?"
        segment, last = connection.execute(query, (base,)).fetchone()
    return segment, last


@pytest.mark.parametrize("how", ["a byte", "a short file"])
def test_damage_is_told_though_nobody_reads_it(
    path: Path, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES_FIRST", 1 << 13)
    monkeypatch.setattr(log_segments, "SEGMENT_BYTES_MOST", 1 << 13)
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        [base] = connection.execute("SELECT max(base) FROM batches WHERE segment = 2").fetchone()
    segment, last = body_of(path, base)
    if how == "a byte":
        flip(segment_of(path, segment), last)
    else:
        os.truncate(segment_of(path, segment), last - 5)

    async def scenario(broker: LocalBroker) -> None:
        await passed(broker)
        measures = await broker.measures()
        assert measures.damaged_messages == {"body": 1, "meta": 0}
        assert any("fail their checksum" in note for note in broker.damage())
        assert measures.scrub is not None
        assert measures.scrub.batches == MESSAGES
        assert measures.scrub.bytes > MESSAGES * 1_000
        assert measures.scrub.lanes_done == measures.scrub.lanes > 0

    scrubbing(path, scenario)
    [line] = [one for one in caplog.records if one.levelname == "ERROR" and f"offsets {base} to {base}:" in one.message]
    assert "queue default/q, lane 0" in line.message
    assert f"file: {segment_of(path, segment)}" in line.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.db"


def test_a_sound_store_stays_silent_and_nothing_is_read_on_the_event_loop(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    threads: set[str] = set()
    real = check_batches

    def check(*arguments: object) -> object:
        threads.add(threading.current_thread().name)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("penstock.store.sqlite.log.bodies.check_batches", check)

    async def scenario(broker: LocalBroker) -> None:
        await passed(broker)
        assert broker.damage() == []

    scrubbing(path, scenario)
    assert threads
    assert all(name.startswith("penstock-sqlite-read") for name in threads)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_what_is_new_has_its_turn_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "COLD_MS", 3_600_000)
    filled(path)
    segment, last = body_of(path, 7)
    flip(segment_of(path, segment), last)

    async def scenario(broker: LocalBroker) -> None:
        await passed(broker)
        assert broker.damage() == []

    scrubbing(path, scenario)


def test_it_waits_as_its_rate_asks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    monkeypatch.setattr(scrub, "READ_BYTES", 2_500)
    monkeypatch.setattr(scrub, "LOOK_BYTES", 1)
    waited: list[float] = []

    async def rest(_: scrub.Scrub, seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(scrub.Scrub, "rest", rest)

    async def scenario(broker: LocalBroker) -> None:
        await passed(broker)
        size = (await broker.measures()).scrub.bytes  # type: ignore[union-attr]
        assert sum(one for one in waited if one < 100) == pytest.approx(size / 10_000, rel=0.01)
        assert max(waited) > scrub.PASS_EVERY_S / 2

    scrubbing(path, scenario, rate=10_000)


def test_it_is_off_on_request(path: Path) -> None:
    async def scenario(broker: LocalBroker) -> None:
        assert (await broker.measures()).scrub is None

    scrubbing(path, scenario, rate=0)
