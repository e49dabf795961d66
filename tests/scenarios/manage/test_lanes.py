"""Queues with several lanes: users see and name them 0, 1, 2 … in each queue, whatever the store calls them."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import pytest

from penstock import InvalidArgument, Message, OffsetGone, encode
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios.rig import Home, lease, numbered, play, texts, until

LANES = 4
NAMES = [f"customer-{number}" for number in range(40)]


def lane_of(partition: str) -> int:
    """Where a partition belongs: the same as long as a queue has its lanes, or its order would be lost."""
    return crc32(partition.encode()) % LANES


def of_lane(lane: int) -> str:
    return next(name for name in NAMES if lane_of(name) == lane)


async def opened(home: Home, **options: Any) -> LocalBroker:
    """A broker with the queue `wide`, declared after others so that its lanes are not the store's first."""
    broker = await home.open()
    await broker.declare_queue("before", lanes=3)
    await broker.declare_queue("wide", lanes=LANES, **options)
    assert min(node_of(broker).catalog.queue("default", "wide").lanes) >= LANES
    return broker


def test_publishes_are_answered_with_the_lane_in_the_queue(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home)
        expected = [lane_of(name) for name in NAMES]
        assert set(expected) == set(range(LANES))
        messages = [Message(b"m", partition=name) for name in NAMES]
        assert [(await broker.publish("wide", message)).lane for message in messages] == expected
        assert [place.lane for place in await broker.publish_many("wide", messages)] == expected
        assert [place.lane for place in await broker.publish_many("wide", messages[:5])] == expected[:5]
        assert [place.lane for place in await broker.publish_batch("wide", encode(messages))] == expected
        await broker.declare_exchange("all", kind="fanout")
        await broker.bind("all", "wide")
        assert [place.lane for place in await broker.publish_to("all", messages)] == expected
        async with broker.transaction() as transaction:
            transaction.publish("wide", *messages)
        assert transaction.receipt is not None
        assert [place.lane for place in transaction.receipt] == expected
        assert {(await broker.publish("wide", Message(b"anywhere"))).lane for _ in range(LANES)} == set(range(LANES))
        assert (await broker.publish("before", Message(b"m", partition="p"))).lane in range(3)

    play(home, scenario)


def test_a_duplicate_is_told_the_lane_of_the_first(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home)
        message = Message(b"m", partition=of_lane(2), dedup_id="once")
        first = await broker.publish("wide", message)
        again = await broker.publish("wide", message)
        assert (first.lane, again.lane, again.offset, again.duplicate) == (2, 2, first.offset, True)

    play(home, scenario)


@pytest.mark.parametrize("ack", [False, True])
def test_claims_and_dead_letters_name_the_lane(home: Home, ack: bool) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home)
        assert (await broker.claim("wide")).lane == 0  # nothing there: the first one stands for all
        for name in NAMES:
            await broker.publish("wide", Message(name.encode(), partition=name))
        broker = await home.reopen(broker)
        seen: set[int] = set()
        while len(claim := await broker.claim("wide", max=3, ack=ack)):
            seen.add(claim.lane)
            assert [received.lane for received in claim] == [lane_of(text) for text in texts(claim)]
            assert {received.lane for received in claim} == {claim.lane}
            if claim.lease is not None:
                # A lease says by itself where it is held, so it keeps the store's number.
                assert claim.lease.lane == node_of(broker).catalog.queue("default", "wide").lanes[claim.lane]
                await broker.reject(lease(claim))
        assert seen == set(range(LANES))
        dead = [letter.received for letter in await broker.dead("wide")]
        assert [letter.lane for letter in dead] == sorted(lane_of(text) for text in texts(dead))
        assert len(dead) == (0 if ack else len(NAMES))

    play(home, scenario)


def test_a_stream_is_read_committed_and_sought_by_lane(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home, retain_messages=1_000)
        await broker.declare_group("wide", "reader", kind="stream", auto_commit=False)
        for lane in range(LANES):
            for text in ("a", "b", "c"):
                await broker.publish("wide", Message(f"{lane}{text}".encode(), partition=of_lane(lane)))
        read: dict[int, list[str]] = {}
        while found := await broker.read("wide", "reader"):
            assert {received.lane for received in found.messages} == {found.lane}
            read[found.lane] = texts(found)
        assert read == {lane: [f"{lane}a", f"{lane}b", f"{lane}c"] for lane in range(LANES)}
        assert found.lane == 0
        for lane in range(LANES):
            await broker.commit("wide", "reader", lane % 3 + 1, lane=lane)
        broker = await home.reopen(broker)  # the group goes on where each lane was committed
        read = {}
        while found := await broker.read("wide", "reader"):
            read[found.lane] = texts(found)
        assert read == {0: ["0b", "0c"], 1: ["1c"], 3: ["3b", "3c"]}
        await broker.seek("wide", "reader", offset=2, lane=3)
        assert texts(await broker.read("wide", "reader")) == ["3c"]
        await broker.seek("wide", "reader", to="first", lane=2)
        assert texts(await broker.read("wide", "reader")) == ["2a", "2b", "2c"]
        assert not len(await broker.read("wide", "reader"))
        for lane in range(LANES):
            found = await broker.read_from("wide", 1, lane=lane)
            assert (found.lane, texts(found), found.next_offset) == (lane, [f"{lane}b", f"{lane}c"], 3)
            found = await broker.read_from("wide", 3, lane=lane)
            assert (found.lane, len(found)) == (lane, 0)

    play(home, scenario)


def test_an_offset_that_is_gone_is_named_with_its_lane(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home)
        await broker.publish("wide", Message(b"m", partition=of_lane(3)))
        await broker.ack(await broker.claim("wide"))
        lane = node_of(broker).lanes.get(node_of(broker).catalog.queue("default", "wide").lanes[3])
        assert lane is not None
        await until(lambda: lane.first == 1)
        with pytest.raises(OffsetGone, match="offset 0 of queue 'wide' is gone; its lane 3 begins at 1"):
            await broker.read_from("wide", 0, lane=3)

    play(home, scenario)


def test_reads_that_mark_what_is_done_name_the_lane(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home, retain_messages=100, primary_group="default")
        await broker.publish("wide", Message(b"m", partition=of_lane(1)))
        await broker.ack(await broker.claim("wide"))
        found = await broker.read_from("wide", lane=1)
        assert (found.lane, found.messages[0].lane, found.messages[0].done) == (1, 1, True)

    play(memory_home, scenario)


@pytest.mark.parametrize("most", [1, 3, 7, 1_000])
def test_browse_goes_on_where_a_page_ended(home: Home, most: int) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home)
        await broker.publish_many("wide", [Message(name.encode(), partition=name) for name in NAMES])
        expected = sorted(NAMES, key=lane_of)
        found: list[str] = []
        after: tuple[int, int] | None = None
        while True:
            page = await broker.browse("wide", max=most, after=after)
            assert [received.lane for received in page.messages] == [lane_of(text) for text in texts(page)]
            found += texts(page)
            after = page.next
            if after is None:
                break
            assert after[0] in range(LANES)
            after = json.loads(json.dumps(after))  # as it comes back from another process
        assert found == expected
        for lane in range(LANES):
            page = await broker.browse("wide", lane=lane)
            assert texts(page) == [name for name in expected if lane_of(name) >= lane]
            page = await broker.browse("wide", after=(lane, 1))
            assert texts(page)[0] == [name for name in expected if lane_of(name) == lane][1]

    play(home, scenario)


def test_events_and_history_name_the_lane(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await opened(home)
        for lane in range(LANES):
            await broker.publish("wide", Message(b"%d" % lane, partition=of_lane(lane)))
        for _ in range(LANES):
            claim = await broker.claim("wide")
            await broker.reject(claim, error=f"error of {claim.lane}")
        for lane in range(LANES):
            told = [(entry.kind, entry.detail) for entry in await broker.history("wide", 0, lane=lane)]
            assert told[0] == ("claimed", "")
            assert told[-1][0] == "dead"
        events = [json.loads(one.payload) for one in (await broker.read_from("$events", max=1_000)).messages]
        assert [event["queue"] for event in events] == ["wide"] * len(events)
        assert {event["lane"] for event in events} == set(range(LANES))
        dead = {one.received.lane: one.error for one in await broker.dead("wide")}
        assert dead == {lane: f"error of {lane}" for lane in range(LANES)}

    play(home, scenario)


def test_history_tells_nothing_of_a_queue_that_was_deleted(home: Home) -> None:
    """Its lanes and offsets were the same, and when a message is gone its time is not known."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        for consumer in ("old", "new"):
            await broker.declare_queue("q")
            await broker.publish("q", Message(b"m"))
            await broker.ack(await broker.claim("q", consumer=consumer))
            if consumer == "old":
                await broker.delete_queue("q")
        told = [(entry.kind, entry.consumer) for entry in await broker.history("q", 0)]
        assert told == [("claimed", "new"), ("acked", "new")]

    play(home, scenario)


def test_lanes_that_are_not_there_are_refused(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker: Any = await opened(home, retain_messages=100)
        await broker.declare_group("wide", "s", kind="stream")
        await broker.publish_many("wide", numbered(10))
        for lane in (4, -1, True, False, "0", 1.0, 10**30):
            text = rf"lane is {lane!r}; queue 'wide' has lanes 0 to 3"
            for operation in (
                broker.commit("wide", "s", 0, lane=lane),
                broker.read_from("wide", 0, lane=lane),
                broker.seek("wide", "s", offset=0, lane=lane),
                broker.seek("wide", "s", to="first", lane=lane),
                broker.browse("wide", lane=lane),
                broker.history("wide", 0, lane=lane),
            ):
                with pytest.raises(InvalidArgument, match=text):
                    await operation
            with pytest.raises(InvalidArgument, match=r"it must be a page's next: \(lane, offset\), of lanes 0 to 3"):
                await broker.browse("wide", after=(lane, 0))
        with pytest.raises(InvalidArgument, match="queue 'wide' has lanes 0 to 3: say which one with lane="):
            await broker.read_from("wide", 0)

    play(memory_home, scenario)
