"""Publishing under an id again changes nothing, whatever has happened to the first message since."""

from __future__ import annotations

import asyncio

from penstock import Message, Published
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, numbered, play, soon


def test_an_id_is_known_after_its_message_was_acked_and_removed_and_after_a_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"before"))
        first = await broker.publish("q", Message(b"first", dedup_id="x"))
        assert (first.offset, first.duplicate) == (1, False)
        assert await claim_all(broker, "q") == ["before", "first"]
        assert (await broker.stats("q")).messages == 0
        known = Published("q", first.lane, 1, duplicate=True)
        assert await broker.publish("q", Message(b"second", dedup_id="x")) == known
        broker = await home.open()
        assert await broker.publish("q", Message(b"third", dedup_id="x")) == known
        assert await claim_all(broker, "q") == []
        assert (await broker.stats("q")).published == 2

    play(home, scenario)


def test_an_id_is_forgotten_after_its_window(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", dedup_window_ms=5_000)
        await broker.publish("q", Message(b"1", dedup_id="x"))
        home.pass_time(broker, 4_999)
        assert (await broker.publish("q", Message(b"2", dedup_id="x"))).duplicate
        home.pass_time(broker, 1)
        assert not (await broker.publish("q", Message(b"3", dedup_id="x"))).duplicate
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q") == ["1", "3"]
        home.pass_time(broker, 120_000)
        await soon(broker.publish("q", Message(b"4")))
        (image,) = await node_of(broker).store.load(node_of(broker).catalog.queue("default", "q").lanes, 10)
        assert image.dedup == []

    play(home, scenario)


def test_ids_are_apart_by_partition_and_by_queue(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for queue in ("q", "r"):
            await broker.declare_queue(queue, lanes=3)
        places = [("q", None), ("q", "a"), ("q", "b"), ("r", None), ("r", "a")]
        for queue, partition in places:
            assert not (await broker.publish(queue, Message(b"", partition=partition, dedup_id="x"))).duplicate
        for queue, partition in places:
            assert (await broker.publish(queue, Message(b"", partition=partition, dedup_id="x"))).duplicate

    play(home, scenario)


def test_doubles_inside_one_call_and_between_calls_at_once_are_stored_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        for count in (5, 50):  # as single messages, and as an encoded batch
            ids = [f"{count}-{number % 3}" for number in range(count)]
            batch = [Message(b"%d" % number, dedup_id=id) for number, id in enumerate(ids)]
            first, second = await asyncio.gather(broker.publish_many("q", batch), broker.publish_many("q", batch))
            assert (first.stored, first.duplicates) == (3, count - 3)
            assert (second.stored, second.duplicates) == (0, count)
            offsets = [result.offset for result in first]
            assert [result.offset for result in second] == offsets
            assert offsets == [offsets[number % 3] for number in range(count)]
        assert await claim_all(broker, "q") == ["0", "1", "2", "0", "1", "2"]

    play(home, scenario)


def test_every_one_of_many_ids_is_known_after_a_restart(home: Home) -> None:
    """More than the store writes with one statement, and not a multiple of that."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        messages = [Message(b"%d" % number, dedup_id=f"id {number}") for number in range(150)]
        first = await broker.publish_many("q", messages)
        broker = await home.reopen(broker)
        again = await broker.publish_many("q", messages[::-1])
        assert all(one.duplicate for one in again)
        assert [one.offset for one in again] == [one.offset for one in first][::-1]
        assert (await broker.stats("q")).published == 150

    play(home, scenario)


def test_messages_without_an_id_are_never_doubles(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(2))
        receipt = await broker.publish_many("q", [*numbered(2), Message(b"x", dedup_id="x"), *numbered(40)])
        assert receipt.duplicates == 0
        assert receipt.stored == 43

    play(home, scenario)
