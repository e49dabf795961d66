"""Damage below the databases: bytes of rows change, as a disk may do it. What a file's damage does, this does too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import DamagedRange, Message, StoreCorrupt
from penstock.embedded import open_store
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.store.open import open_engine
from tests.damage import flip_column
from tests.maintenance.rig import place_of
from tests.nodes import node_of
from tests.scenarios.rig import numbered, texts

ENGINES = pytest.mark.parametrize("engine", ["postgres", "mysql"])
GAP = DamagedRange(0, 4, 8)
SOUND = ["0", "1", "2", "3", "8", "9", "10", "11"]

Scene = Callable[[LocalBroker], Awaitable[Any]]


def play(place: str, *scenes: Scene) -> Any:
    """Each on a broker of its own; what the last one gave."""

    async def main() -> Any:
        found: Any = None
        for scene in scenes:
            broker = await open_store(await open_engine(place), SystemClock())
            try:
                found = await asyncio.wait_for(scene(broker), 60)
            finally:
                await broker.close()
        return found

    return asyncio.run(main())


async def filled(broker: LocalBroker) -> int:
    await broker.declare_queue("q")
    for batch in range(3):
        await broker.publish_many("q", numbered(4, batch * 4, partition="p", headers={"n": batch}))
    [lane] = node_of(broker).catalog.queue("default", "q").lanes
    return lane


@ENGINES
@pytest.mark.parametrize("part", ["body", "meta"])
def test_a_damaged_batch_is_passed_over(
    engine: str, part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def looked_at(broker: LocalBroker) -> None:
        read = await broker.read_from("q", 0)
        assert (texts(read), read.damaged) == (SOUND, [GAP])
        page = await broker.browse("q")
        assert (texts(page), page.damaged) == (SOUND, [GAP])
        scan = await broker.scan("q", 0, 0, 12)
        assert ([one.offset for one in scan.messages()], scan.damaged) == ([int(text) for text in SOUND], [GAP])
        await broker.declare_group("q", "s", kind="stream")
        reads = [await broker.read("q", "s", max=4) for _ in range(3)]
        assert [texts(one) for one in reads] == [SOUND[:4], [], SOUND[4:]]
        assert [one.damaged for one in reads] == [[], [GAP], []]
        claim = await broker.claim("q", max=100)
        assert [payload.decode() for payload in claim.payloads()] == SOUND
        assert (await broker.dead("q")).damaged == [GAP]
        [reason] = await broker.dead_reasons("q")
        assert (reason.reason, reason.count) == ("damaged", 4)
        assert (await broker.measures()).damaged_messages == {"body": 0, "meta": 0, part: 4}

    place = place_of(engine, tmp_path)
    lane = play(place, filled)
    flip_column(engine, place, "batches", part, f"lane = {lane} AND base = 4")
    play(place, looked_at)
    [line] = [record for record in caplog.records if "fails its checksum" in record.message]
    assert line.levelname == "ERROR"
    assert "queue default/q, lane 0, offsets 4 to 7" in line.message
    assert "file: " in line.message


@ENGINES
def test_a_row_that_cannot_be_read_stops_its_lane_alone(engine: str, tmp_path: Path) -> None:
    async def leased(broker: LocalBroker) -> int:
        lane = await filled(broker)
        await broker.declare_queue("other")
        await broker.publish("other", Message(b"sound"))
        await broker.claim("q", lease_seconds=600)
        return lane

    async def looked_at(broker: LocalBroker) -> None:
        assert (await broker.claim("other")).payloads() == [b"sound"]
        for operation in (broker.claim("q"), broker.stats("q"), broker.publish("q", Message(b"x"))):
            with pytest.raises(StoreCorrupt, match="queue default/q, lane 0: a lease or waiting row cannot be read"):
                await operation
        assert (await broker.measures()).damaged_lanes == 1

    place = place_of(engine, tmp_path)
    lane = play(place, leased)
    flip_column(engine, place, "leases", "entries", f"lane = {lane}", position=0)
    play(place, looked_at)
