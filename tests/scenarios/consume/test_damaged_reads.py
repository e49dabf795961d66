"""Damaged bodies and metadata under every way to look: each passes over them, says so, and goes on behind them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from penstock import DamagedRange, Message, StoreCorrupt
from penstock.arrow.reading import write_stream
from penstock.node.broker import LocalBroker
from tests.damage import FLIP
from tests.nodes import node_of
from tests.scenarios.rig import Home, numbered, play, texts, until

PARTS = pytest.mark.parametrize("part", ["body", "meta"])
SIZE = 4
"""Messages of a batch: the second of three, offsets 4 to 7, is damaged."""
GAP = DamagedRange(0, 4, 8)
SOUND = ["0", "1", "2", "3", "8", "9", "10", "11"]


async def with_damage(home: Home, part: str, position: int = -1, **options: Any) -> LocalBroker:
    """A broker on a file with three batches, whose second is damaged; nothing of it is in memory."""
    assert home.path is not None
    broker = await home.open()
    await broker.declare_queue("q", **options)
    for batch in range(3):
        await broker.publish_many("q", numbered(SIZE, batch * SIZE, partition="p", headers={"n": batch}))
    [lane] = node_of(broker).catalog.queue("default", "q").lanes
    await broker.close()
    FLIP[part](home.path, lane, SIZE, position)
    return await home.open()


async def expect_told(broker: LocalBroker, part: str) -> None:
    measured = (await broker.measures()).damaged_messages
    assert measured == {"body": 0, "meta": 0, part: SIZE}
    assert any("fail their checksum" in note for note in broker.damage())


@PARTS
@pytest.mark.parametrize("most", [1, 3, 100])
def test_reads_by_offset_go_on_behind_it(file_home: Home, part: str, most: int) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        found: list[str] = []
        damaged: list[DamagedRange] = []
        offset = 0
        while True:
            read = await broker.read_from("q", offset, max=most)
            found += texts(read)
            damaged += read.damaged
            if not len(read):
                break
            offset = read.next_offset
        assert found == SOUND
        assert damaged == [GAP]
        assert offset == 12
        behind = await broker.read_from("q", 6)  # from the middle of it
        assert (texts(behind), behind.damaged) == (SOUND[4:], [DamagedRange(0, 6, 8)])
        await expect_told(broker, part)

    play(file_home, scenario)


@PARTS
def test_a_queue_that_ends_with_damage_is_read_to_its_end(file_home: Home, part: str) -> None:
    async def scenario(home: Home) -> None:
        assert home.path is not None
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"0", key="k"))
        [lane] = node_of(broker).catalog.queue("default", "q").lanes
        await broker.close()
        FLIP[part](home.path, lane, 0)
        broker = await home.open()
        read = await broker.read_from("q", 0)
        assert (texts(read), read.damaged, read.next_offset) == ([], [DamagedRange(0, 0, 1)], 1)
        page = await broker.browse("q")
        assert (page.messages, page.damaged, page.next) == ([], [DamagedRange(0, 0, 1)], None)
        assert not len(await broker.claim("q"))
        await broker.publish("q", Message(b"1", key="k"))
        assert (await broker.claim("q")).payloads() == [b"1"]

    play(file_home, scenario)


@PARTS
@pytest.mark.parametrize("most", [1, 3, 100])
def test_browses_go_on_behind_it(file_home: Home, part: str, most: int) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        found: list[str] = []
        damaged: list[DamagedRange] = []
        after = None
        while True:
            page = await broker.browse("q", max=most, after=after)
            found += texts(page)
            damaged += page.damaged
            after = page.next
            if after is None:
                break
        assert found == SOUND
        assert damaged == [GAP]
        filtered = await broker.browse("q", filter="n = 2")
        assert (texts(filtered), filtered.damaged) == (SOUND[4:], [GAP])

    play(file_home, scenario)


@PARTS
@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("condition", [None, "n <> 7"])
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_stream_group_is_told_of_a_gap_and_its_cursor_moves_behind_it(
    file_home: Home, part: str, most: int, condition: str | None, auto_commit: bool
) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        await broker.declare_group(
            "q", "s", kind="stream", start="beginning", filter=condition, auto_commit=auto_commit
        )
        found: list[str] = []
        damaged: list[DamagedRange] = []
        while True:
            read = await broker.read("q", "s", max=most)
            if not len(read) and not read.damaged:
                break
            found += texts(read)
            damaged += read.damaged
            if not auto_commit:
                await broker.commit("q", "s", read.next_offset)
        assert found == SOUND
        assert damaged == [GAP]
        broker = await home.reopen(broker)
        assert (await broker.stats("q")).groups[-1].lag == 0
        again = await broker.read("q", "s")
        assert (len(again), again.damaged) == (0, [])

    play(file_home, scenario)


@PARTS
def test_what_was_not_committed_is_told_again(file_home: Home, part: str) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        await broker.declare_group("q", "s", kind="stream", start="beginning", auto_commit=False)
        assert texts(await broker.read("q", "s", max=4)) == SOUND[:4]
        await broker.commit("q", "s", 4)
        assert (await broker.read("q", "s", max=1)).damaged == [GAP]
        await broker.detach("q", "s")
        assert (await broker.read("q", "s", max=1)).damaged == [GAP]

    play(file_home, scenario)


@PARTS
@pytest.mark.parametrize("position", [0, 1, 5, 9, 14, 20, -1])
def test_a_work_group_has_it_as_dead_letters(
    file_home: Home, part: str, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part, position)
        claim = await broker.claim("q", max=100)
        assert [payload.decode() for payload in claim.payloads()] == SOUND
        await broker.ack(claim)
        await expect_told(broker, part)
        broker = await home.reopen(broker)
        [reason] = await broker.dead_reasons("q")
        assert (reason.reason, reason.count) == ("damaged", SIZE)
        [died] = (await broker.dead_ranges("q")).ranges
        assert (died.start, died.end, died.attempts, died.consumer) == (4, 8, 0, "")
        listed = await broker.dead("q")
        assert (list(listed), listed.damaged) == ([], [GAP])
        page = await broker.dead_page("q")
        assert (page.dead, page.damaged, page.next) == ([], [GAP], None)
        assert await broker.redrive("q") == SIZE
        assert not len(await broker.claim("q", max=100))  # what comes again comes again to nobody
        assert await broker.purge_dead("q") == SIZE

    play(file_home, scenario)
    [line, *_] = [record for record in caplog.records if "fails its checksum" in record.message]
    assert line.levelname == "ERROR"
    assert "queue default/q, lane 0, offsets 4 to 7" in line.message
    assert "file: " in line.message
    assert (".log" in line.message) == (part == "body")
    assert str(file_home.path) in line.message


@pytest.mark.parametrize("options", [{"ordered": True}, {"prioritized": True}, {"filter": "n < 9"}])
def test_groups_that_need_the_metadata_go_on_without_it(file_home: Home, options: dict[str, Any]) -> None:
    """Order, priority, filters and lives of a batch with damaged metadata are unknown: all of it is dead."""

    async def scenario(home: Home) -> None:
        broker = await with_damage(home, "meta")
        await broker.declare_group("q", "g", start="beginning", **options)
        found: list[str] = []
        while len(claim := await broker.claim("q", group="g", max=3)):
            found += [payload.decode() for payload in claim.payloads()]
            await broker.ack(claim)
        assert found == SOUND
        [reason] = await broker.dead_reasons("q", "g")
        assert (reason.reason, reason.count) == ("damaged", SIZE)
        assert await broker.redrive("q", "g") == SIZE
        assert not len(await broker.claim("q", group="g", max=3))
        [reason] = await broker.dead_reasons("q", "g")
        assert (reason.reason, reason.count) == ("damaged", SIZE)

    play(file_home, scenario)


@pytest.mark.parametrize("condition", [None, "n < 9"])
def test_what_outlives_its_ttl_unread_is_dead_and_not_dropped(file_home: Home, condition: str | None) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await with_damage(home, "meta", ttl_ms=1_000)
        await broker.declare_group("q", "g", filter=condition)
        home.pass_time(broker, 2_000)

        async def is_swept() -> bool:
            return (await broker.stats("q")).groups[-1].lag == 0

        await until(is_swept)
        [reason] = await broker.dead_reasons("q", "g")
        assert (reason.reason, reason.count) == ("damaged", SIZE)

    play(file_home, scenario)


@PARTS
@pytest.mark.parametrize(
    "options", [{}, {"where": "n < 9"}, {"columns": ["offset", "payload"]}, {"group": "g"}, {"max_bytes": 1}]
)
def test_scans_pass_over_it(file_home: Home, part: str, options: dict[str, Any]) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        await broker.declare_group("q", "g")
        offset = 0
        damaged: list[DamagedRange] = []
        offsets: list[int] = []
        while offset < 12:
            scan = await broker.scan("q", 0, offset, 12, **options)
            damaged += scan.damaged
            offsets += [part.base + place for part in scan.slices for place in part.places()]
            offset = scan.next_offset
        assert damaged == [GAP]
        assert offsets == [0, 1, 2, 3, 8, 9, 10, 11]
        await expect_told(broker, part)

    play(file_home, scenario)


def test_a_scan_without_payloads_needs_none(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, "body")
        scan = await broker.scan("q", 0, 0, 12, payload=False)
        assert scan.damaged == []
        assert sum(len(part.places()) for part in scan.slices) == 12

    play(file_home, scenario)


def test_a_scan_without_payloads_passes_over_damaged_metadata(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, "meta")
        for _ in range(2):  # from the store, and what claims have fed into memory
            scan = await broker.scan("q", 0, 0, 12, payload=False)
            assert scan.damaged == [GAP]
            await broker.claim("q", max=100)

    play(file_home, scenario)


@PARTS
def test_an_arrow_stream_says_it_in_its_metadata(file_home: Home, part: str) -> None:
    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        parts: list[bytes] = []
        write_stream(await broker.scan("q", 0, 0, 12), ["offset", "payload"], parts)
        with pa.ipc.open_stream(b"".join(parts)) as stream:
            assert stream.schema.metadata[b"penstock.damaged"] == b'[{"lane":0,"start":4,"end":8}]'
            assert stream.read_all().column("payload").to_pylist() == [text.encode() for text in SOUND]

    play(file_home, scenario)


@PARTS
def test_a_dead_letter_that_is_damaged_later_is_not_copied_and_stays(file_home: Home, part: str) -> None:
    """Its copy waits in the outbox when the damage comes."""

    async def scenario(home: Home) -> None:
        broker = await with_damage(home, part)
        await broker.declare_queue("dead")
        await broker.declare_group("q", "default", dead_letter_to="queue:dead", dead_kept=False)
        node = node_of(broker)
        await broker.reject(await broker.claim("q", max=100))
        await node.outbox.drain({node.catalog.queue("default", "q").slot})
        assert (await broker.stats("dead")).published == len(SOUND)
        [reason] = await broker.dead_reasons("q")
        assert (reason.reason, reason.count) == ("damaged", SIZE)

    play(file_home, scenario)


# Rows ----------------------------------------------------------------------------------------------------


def corrupt(home: Home, lane: int) -> None:
    assert home.path is not None
    with closing(sqlite3.connect(home.path)) as connection:
        assert connection.execute("UPDATE leases SET entries = x'ff' WHERE lane = ?", (lane,)).rowcount == 1
        connection.commit()


def test_a_row_that_cannot_be_read_stops_its_lane_alone(file_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("broken", lanes=2)
        await broker.declare_queue("sound")
        first, second = node_of(broker).catalog.queue("default", "broken").lanes
        for name in ("broken", "sound"):
            for number in range(20):
                await broker.publish(name, Message(b"%d" % number, partition=f"p{number}"))
        claim = await broker.claim("broken", max=1)
        await broker.claim("sound", max=1)
        await broker.close()
        corrupt(home, [first, second][claim.lane])
        broker = await home.open()
        assert len(await broker.claim("sound", max=100)) == 19
        other = await broker.claim("broken", max=100)
        assert other.lane == 1 - claim.lane
        assert not len(await broker.claim("broken", max=100, wait=0.01))
        with pytest.raises(StoreCorrupt, match=f"queue default/broken, lane {claim.lane}: a lease or waiting row"):
            await broker.stats("broken")
        with pytest.raises(StoreCorrupt, match=f"queue default/broken, lane {claim.lane}"):
            await broker.read_from("broken", 0, lane=claim.lane)
        assert (await broker.measures()).damaged_lanes == 1
        assert any("1 lanes cannot be used" in note for note in broker.damage())

    play(file_home, scenario)
    lines = [record for record in caplog.records if "a lease or waiting row" in record.message]
    assert "file: " + str(file_home.path) in lines[0].message
    assert len([line for line in lines if line.levelname == "ERROR"]) == 1


def test_a_stream_group_goes_on_with_the_lanes_that_are_left(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=2)
        await broker.declare_group("q", "s", kind="stream", start="beginning")
        lanes = node_of(broker).catalog.queue("default", "q").lanes
        for number in range(20):
            await broker.publish("q", Message(b"%d" % number, partition=f"p{number}"))
        claim = await broker.claim("q", max=1)
        await broker.close()
        corrupt(home, lanes[claim.lane])
        broker = await home.open()
        read = await broker.read("q", "s")
        assert read.lane == 1 - claim.lane
        assert len(read) > 0
        empty = await broker.read("q", "s", wait=0.01)
        assert (len(empty), empty.lane) == (0, 1 - claim.lane)

    play(file_home, scenario)
