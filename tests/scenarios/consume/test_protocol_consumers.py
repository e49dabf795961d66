"""What consumers of a protocol with connections need: being alone, stopping, keeping what they hold; stream queues."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Message
from penstock.model.errors import Forbidden, InvalidArgument
from penstock.node.broker import LocalBroker
from tests.scenarios.rig import Home, play, soon, until


def test_a_consumer_that_wants_to_be_alone(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.attach("q", consumer="a")
        with pytest.raises(Forbidden, match="has 1 consumers"):
            await broker.attach("q", consumer="b", exclusive=True)
        assert (await broker.stats("q")).consumers == 1
        await broker.detach("q", consumer="a")
        await broker.attach("q", consumer="b", exclusive=True)
        with pytest.raises(Forbidden, match="alone"):
            await broker.attach("q", consumer="a")
        await broker.detach("q", consumer="b")
        await broker.attach("q", consumer="a")
        assert (await broker.stats("q")).consumers == 1

    play(home, scenario)


def test_a_consumer_may_go_and_keep_what_it_holds(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", auto_delete=False)
        await broker.publish_many("q", [Message(b"0"), Message(b"1")])
        await broker.attach("q", consumer="a")
        first = await broker.claim("q", consumer="a")
        await broker.claim("q", consumer="a")
        await broker.detach("q", consumer="a", keep=True)
        assert (await broker.stats("q")).consumers == 0
        assert not len(await broker.claim("q", consumer="b"))
        await broker.ack(first)
        await broker.detach("q", consumer="a")
        (again,) = await broker.claim("q", consumer="b")
        assert (again.payload, again.attempt) == (b"1", 2)

    play(home, scenario)


def test_the_consumers_of_a_session_go_with_it(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", auto_delete=True)
        async with broker.session() as session:
            await session.attach("q", consumer=f"{session.consumer_name}/1")
            other = await broker.attach("q", consumer=f"{session.consumer_name}1")
        assert (await broker.stats("q")).consumers == 1
        await broker.detach("q", consumer=other)
        assert not await broker.has_queue("q")

    play(home, scenario)


def test_a_claim_that_waits_can_be_stopped(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        mine = asyncio.ensure_future(broker.claim("q", wait=600, consumer="a"))
        others = asyncio.ensure_future(broker.claim("q", wait=600, consumer="b"))
        await until(lambda: _waiting(broker, 2))
        await broker.stop_waiting("q", consumer="a")
        assert not len(await soon(mine))
        await broker.publish("q", Message(b"m"))
        assert (await soon(others)).payloads() == [b"m"]

    play(home, scenario)


async def _waiting(broker: LocalBroker, count: int) -> bool:
    return (await broker.measures()).polls_waiting == count


def test_reading_from_an_offset_waits_for_it(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        read = asyncio.ensure_future(broker.read_from("q", 1, wait=600))
        await broker.publish("q", Message(b"0"))
        await broker.publish("q", Message(b"1"))
        assert (await soon(read)).payloads() == [b"1"]
        assert not len(await broker.read_from("q", 2, wait=0.01))

    play(home, scenario)


def test_a_stream_queue_keeps_what_work_groups_have_done(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("kept", stream=True)
        await broker.declare_queue("gone")
        for queue in ("kept", "gone"):
            await broker.publish(queue, Message(b"m"))
            await broker.ack(await broker.claim(queue))
            await broker.publish(queue, Message(b"n"))
            await broker.ack(await broker.claim(queue))
        assert (await broker.stats("kept")).messages == 2
        assert (await broker.stats("gone")).messages == 0

    play(home, scenario)


def test_priorities_above_the_highest_count_as_that(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", prioritized=True, priority_max=3)
        for payload, priority in ((b"a", 1), (b"b", 3), (b"c", 200), (b"d", 4), (b"e", 0)):
            await broker.publish("q", Message(payload, priority=priority))
        assert (await broker.claim("q", max=10)).payloads() == [b"b", b"c", b"d", b"a", b"e"]
        with pytest.raises(InvalidArgument, match="priority_max is 0"):
            await broker.declare_queue("r", prioritized=True, priority_max=0)

    play(home, scenario)


def test_dead_letters_through_the_default_exchange(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", dead_letter_to="exchange:")
        await broker.declare_queue("r", dead_letter_to="exchange:/graves")
        await broker.declare_queue("graves")
        await broker.publish("q", Message(b"by its key", key="graves"))
        await broker.reject(await broker.claim("q"))
        await broker.publish("r", Message(b"by another", key="q"))
        await broker.reject(await broker.claim("r"))
        await until(lambda: _kept(broker, "graves", 2))
        copies = {copy.payload: copy.headers["x-death"][0] for copy in await broker.claim("graves", max=2)}
        assert copies[b"by its key"]["target"] == "exchange:"
        assert (copies[b"by another"]["key"], copies[b"by another"]["target"]) == ("q", "exchange:/graves")

    play(home, scenario)


async def _kept(broker: LocalBroker, queue: str, count: int) -> bool:
    return (await broker.stats(queue)).messages == count
