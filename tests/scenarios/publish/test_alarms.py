"""While memory or disk is low: publishes of every kind wait and are then refused, whatever drains queues goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock import Message, ResourceAlarm, encode
from penstock.node.broker import LocalBroker
from tests.alarms import end_alarm, raise_alarm
from tests.local import open_local
from tests.scenarios.rig import until

Work = Callable[[LocalBroker], Awaitable[object]]
MESSAGE = Message(b"x")


def with_queues(work: Callable[[LocalBroker], Awaitable[None]]) -> None:
    """On a broker with a queue of three messages, one in memory alone, and an exchange."""

    async def run() -> None:
        async with await open_local() as broker:
            await broker.declare_queue("q")
            await broker.declare_queue("fleeting", ephemeral=True)
            await broker.declare_exchange("x", kind="fanout")
            await broker.bind("x", "q")
            await broker.publish_many("q", [Message(b"%d" % number) for number in range(3)])
            await asyncio.wait_for(work(broker), 60)

    asyncio.run(run())


async def transaction(broker: LocalBroker) -> None:
    async with broker.transaction() as made:
        made.publish("q", MESSAGE)


PUBLISHES: dict[str, Work] = {
    "publish": lambda broker: broker.publish("q", MESSAGE),
    "publish_many": lambda broker: broker.publish_many("q", [MESSAGE] * 3),
    "more than one part": lambda broker: broker.publish_many("q", [MESSAGE] * 5_000),
    "publish_batch": lambda broker: broker.publish_batch("q", encode([MESSAGE])),
    "publish_to": lambda broker: broker.publish_to("x", MESSAGE),
    "ephemeral": lambda broker: broker.publish("fleeting", MESSAGE),
    "transaction": transaction,
    "stage": lambda broker: broker.stage("t", "c", encode([MESSAGE]), queue="q"),
    "commit_staged": lambda broker: broker.commit_staged("before", ["c"]),
}


@pytest.mark.parametrize("kind", PUBLISHES)
def test_a_publish_is_refused_and_nothing_of_it_is_there(kind: str) -> None:
    async def work(broker: LocalBroker) -> None:
        await broker.stage("before", "c", encode([MESSAGE]), queue="q")
        raise_alarm(broker)
        with pytest.raises(ResourceAlarm, match="memory is low: this server uses 101 MiB"):
            await PUBLISHES[kind](broker)
        assert (await broker.stats("q")).messages == 3
        assert (await broker.stats("fleeting")).messages == 0
        end_alarm(broker)
        await PUBLISHES[kind](broker)

    with_queues(work)


@pytest.mark.parametrize("kind", PUBLISHES)
def test_a_publish_waits_for_the_alarm_to_end(kind: str) -> None:
    async def work(broker: LocalBroker) -> None:
        await broker.stage("before", "c", encode([MESSAGE]), queue="q")
        raise_alarm(broker, wait=60.0)
        publishing = asyncio.ensure_future(PUBLISHES[kind](broker))
        await until(lambda: broker._services.alarms.delayed == 1)
        assert (await broker.stats("q")).messages == 3
        end_alarm(broker)
        await publishing

    with_queues(work)


def test_what_waited_comes_in_its_order() -> None:
    async def work(broker: LocalBroker) -> None:
        raise_alarm(broker, wait=60.0)
        waiting = [asyncio.ensure_future(broker.publish("q", Message(b"%d" % number))) for number in range(3, 20)]
        await until(lambda: broker._services.alarms.delayed == len(waiting))
        end_alarm(broker)
        await asyncio.gather(*waiting)
        claim = await broker.claim("q", max=100)
        assert [int(message.payload) for message in claim.messages] == list(range(20))

    with_queues(work)


def test_everything_that_drains_a_queue_goes_on() -> None:
    async def work(broker: LocalBroker) -> None:
        raise_alarm(broker)
        first, second = await broker.claim("q"), await broker.claim("q")
        await broker.ack(first)
        async with broker.transaction() as made:
            made.ack(second)
        assert len((await broker.browse("q", state="ready")).messages) == 1
        assert len((await broker.read_from("q")).messages) == 3
        assert await broker.purge("q") == 1
        await broker.declare_queue("another")
        await broker.delete_queue("another")
        await broker.delete_queue("q")

    with_queues(work)


def test_a_message_that_dies_is_copied_to_where_dead_letters_go() -> None:
    async def work(broker: LocalBroker) -> None:
        await broker.declare_queue("dead")
        await broker.declare_queue("source", dead_letter_to="queue:dead")
        await broker.publish("source", MESSAGE)
        raise_alarm(broker)
        await broker.reject(await broker.claim("source"))
        assert len(await broker.claim("dead", wait=30)) == 1

    with_queues(work)


def test_a_schedule_fires_when_the_alarm_is_over() -> None:
    async def work(broker: LocalBroker) -> None:
        raise_alarm(broker)
        await broker.declare_schedule("s", queue="fleeting", message=MESSAGE, interval_ms=100)
        await until(lambda: broker._services.alarms.refused > 0)
        assert (await broker.stats("fleeting")).messages == 0
        end_alarm(broker)
        assert len(await broker.claim("fleeting", wait=30)) == 1

    with_queues(work)
