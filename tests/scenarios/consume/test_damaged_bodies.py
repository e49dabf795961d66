"""Payloads that were damaged in the file: whoever wants them is told, and those beside them come as they were."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Claim, InvalidBatch, Message
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios.rig import Home, play, texts

BATCHES = 5
DAMAGED = 2
HEAD_BYTES = 10
"""Version, flags, count and checksum of a body; behind it are the payloads, or the frame that they unfold from."""
POSITIONS = [0, 1, 2, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 4, HEAD_BYTES + 5, -1]


def damage(path: Path, lane: int, position: int) -> None:
    """Flip the bits of one byte of one stored body."""
    with closing(sqlite3.connect(path)) as connection:
        [segment, start, size] = connection.execute(
            "SELECT segment, position, size - length(meta) FROM batches WHERE lane = ? AND base = ?", (lane, DAMAGED)
        ).fetchone()
    with Path(f"{path}-log", f"{segment:010d}.log").open("r+b") as log:
        log.seek(start + position % size)
        byte = log.read(1)[0]
        log.seek(start + position % size)
        log.write(bytes([byte ^ 0xFF]))


async def with_damage(home: Home, position: int, size: int) -> LocalBroker:
    """A broker on a file with one damaged batch of one message; nothing of it is in memory."""
    assert home.path is not None
    broker = await home.open()
    await broker.declare_queue("q")
    for number in range(BATCHES):
        await broker.publish("q", Message(b"%d" % number * size))
    [lane] = node_of(broker).catalog.queue("default", "q").lanes
    await broker.close()
    damage(home.path, lane, position)
    return await home.open()


@pytest.mark.parametrize("size", [20, 5_000])  # as they are, and compressed
@pytest.mark.parametrize("position", POSITIONS)
def test_a_damaged_body_is_reported_and_its_neighbours_are_handed_out(
    file_home: Home, position: int, size: int
) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, position, size)
        for number in range(BATCHES):
            claim = await broker.claim("q")  # the first reads them all
            assert claim.offsets() == [number]
            if number == DAMAGED:
                for _ in range(2):
                    with pytest.raises(InvalidBatch, match="body"):
                        claim.payloads()
                with pytest.raises(InvalidBatch, match="body"):
                    list(claim)
                await broker.reject(claim, error="damaged")
            else:
                assert claim.payloads() == [b"%d" % number * size]
                await broker.ack(claim)
        assert not len(await broker.claim("q"))

    play(file_home, scenario)


def test_a_claim_of_all_holds_what_can_be_read(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 20)
        claim = await broker.claim("q", max=100)
        assert len(claim) == BATCHES
        with pytest.raises(InvalidBatch, match="checksum"):
            claim.payloads()
        assert readable(claim) == [b"%d" % number * 20 for number in range(BATCHES) if number != DAMAGED]
        await broker.release(claim)
        broker = await home.reopen(broker)
        assert len(readable(await broker.claim("q", max=100))) == BATCHES - 1

    def readable(claim: Claim) -> list[bytes]:
        found: list[bytes] = []
        for part in claim.slices:
            if part.offset != DAMAGED:
                found += part.payloads()
        return found

    play(file_home, scenario)


def test_reads_and_browses_are_told_too(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 5_000)
        for operation in (broker.read_from("q", 0), broker.read_from("q", DAMAGED, max=1), broker.browse("q")):
            with pytest.raises(InvalidBatch, match="checksum"):
                texts(await operation)
        assert texts(await broker.read_from("q", 0, max=DAMAGED)) == ["0" * 5_000, "1" * 5_000]
        assert texts(await broker.read_from("q", DAMAGED + 1)) == ["3" * 5_000, "4" * 5_000]

    play(file_home, scenario)


def test_the_store_says_which_bodies_are_intact(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, -1, 20)
        [lane] = node_of(broker).catalog.queue("default", "q").lanes
        rows = await node_of(broker).store.read(lane, 0, BATCHES, 1 << 20)
        assert [row.is_intact for row in rows] == [number != DAMAGED for number in range(BATCHES)]

    play(file_home, scenario)
