"""Payloads that were damaged in the file: whoever wants them is told, and those beside them come as they were."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Message
from penstock.node.broker import LocalBroker
from penstock.store.sqlite.log import segments
from tests.damage import flip_body
from tests.nodes import node_of
from tests.scenarios.rig import Home, play

BATCHES = 5
DAMAGED = 2
HEAD_BYTES = 10
"""Version, flags, count and checksum of a body; behind it are the payloads, or the frame that they unfold from."""
POSITIONS = [0, 1, 2, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 4, HEAD_BYTES + 5, -1]


async def with_damage(home: Home, position: int, size: int) -> LocalBroker:
    """A broker on a file with one damaged batch of one message; nothing of it is in memory."""
    assert home.path is not None
    broker = await home.open()
    await broker.declare_queue("q")
    for number in range(BATCHES):
        await broker.publish("q", Message(b"%d" % number * size))
    [lane] = node_of(broker).catalog.queue("default", "q").lanes
    await broker.close()
    flip_body(home.path, lane, DAMAGED, position)
    return await home.open()


@pytest.mark.parametrize("size", [20, 5_000])  # as they are, and compressed
@pytest.mark.parametrize("position", POSITIONS)
def test_a_damaged_body_is_set_aside_and_its_neighbours_are_handed_out(
    file_home: Home, position: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, position, size)
        for number in range(BATCHES):
            if number == DAMAGED:
                continue
            claim = await broker.claim("q")  # the first reads them all
            assert claim.offsets() == [number]
            assert claim.payloads() == [b"%d" % number * size]
            await broker.ack(claim)
        assert not len(await broker.claim("q"))
        await expect_told(broker)
        broker = await home.reopen(broker)
        [reason] = await broker.dead_reasons("q")
        assert (reason.reason, reason.count) == ("damaged", 1)
        assert "queue default/q, lane 0, offsets 2 to 2" in reason.error
        assert await broker.dead("q") == []  # it has nothing to show

    play(file_home, scenario)
    [line, _] = [record for record in caplog.records if "fails its checksum" in record.message]  # once a process
    assert line.levelname == "ERROR"
    assert "queue default/q, lane 0, offsets 2 to 2" in line.message


async def expect_told(broker: LocalBroker) -> None:
    node = node_of(broker)
    assert (await broker.measures()).damaged_messages["body"] == 1
    assert any("fail their checksum" in note for note in broker.damage())
    [lane] = [lane for lane in node.lanes.loaded() if lane.id in node.catalog.queue("default", "q").lanes]
    [row] = next(iter(lane.groups.values())).dead.overlapping(0, BATCHES)  # type: ignore[union-attr]
    assert (row.start, row.end, row.attempts, row.consumer) == (DAMAGED, DAMAGED + 1, 0, "")


@pytest.mark.parametrize("ack", [False, True])
def test_a_claim_of_all_holds_what_can_be_read(file_home: Home, ack: bool) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 20)
        claim = await broker.claim("q", max=100, ack=ack)
        assert claim.payloads() == [b"%d" % number * 20 for number in range(BATCHES) if number != DAMAGED]
        await expect_told(broker)
        if not ack:
            await broker.release(claim)
            broker = await home.reopen(broker)
            assert len(await broker.claim("q", max=100)) == BATCHES - 1

    play(file_home, scenario)


def test_a_waiting_consumer_is_given_what_is_behind(file_home: Home) -> None:
    """A claim that gets nothing but damage goes on; what comes again comes again to nobody."""

    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 20)
        await broker.seek("q", offset=DAMAGED, lane=0)
        claim = await broker.claim("q", max=1, wait=5)
        assert claim.offsets() == [DAMAGED + 1]
        assert await broker.redrive("q") == 1
        assert (await broker.claim("q", max=1)).offsets() == [DAMAGED + 2]
        await expect_told(broker)

    play(file_home, scenario)


def test_damage_is_not_copied_to_another_queue(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 20)
        await broker.declare_queue("dead")
        await broker.declare_group("q", "default", dead_letter_to="queue:dead")
        assert len(await broker.claim("q", max=100)) == BATCHES - 1
        await expect_told(broker)
        assert (await broker.stats("dead")).published == 0

    play(file_home, scenario)


def test_the_store_says_which_bodies_are_intact(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 20)
        [lane] = node_of(broker).catalog.queue("default", "q").lanes
        rows = await node_of(broker).store.read(lane, 0, BATCHES, 1 << 20)
        assert [row.is_intact for row in rows] == [number != DAMAGED for number in range(BATCHES)]

    play(file_home, scenario)


def test_a_file_of_the_log_that_is_too_short_costs_what_was_in_it(
    file_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_FIRST", 1 << 13)
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MOST", 1 << 13)

    async def scenario(home: Home) -> None:
        assert home.path is not None
        broker = await home.open()
        await broker.declare_queue("q")
        for number in range(40):
            await broker.publish("q", Message(random.Random(number).randbytes(1_000)))
        [lane] = node_of(broker).catalog.queue("default", "q").lanes
        await broker.close()
        with closing(sqlite3.connect(home.path)) as connection:
            query = "SELECT base, position FROM batches WHERE lane = ? AND segment = 2 ORDER BY base DESC LIMIT 2"
            [(second, _), (first, position)] = connection.execute(query, (lane,)).fetchall()
        os.truncate(Path(f"{home.path}-log", "0000000002.log"), position + 7)
        broker = await home.open()
        claim = await broker.claim("q", max=100)
        assert sorted({*range(40)} - set(claim.offsets())) == [first, second]
        assert {(row.start, row.reason) for row in (await broker.dead_ranges("q")).ranges} == {
            (first, "damaged"),
            (second, "damaged"),
        }

    play(file_home, scenario)
