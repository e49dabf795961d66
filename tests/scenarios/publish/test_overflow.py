"""Queues with a limit: refused, dropped or dead, and never more than the limit."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock import Message, QueueFull
from penstock.model.options import Overflow
from penstock.node.broker import LocalBroker
from tests.scenarios.rig import Home, claim_all, group_stats, numbered, play, texts

NOISE = random.Random(0).randbytes(999)
"""Bytes that do not become fewer when a batch is compressed."""


async def first_digits(broker: LocalBroker) -> list[str]:
    claim = await broker.claim("q", max=100)
    await broker.ack(claim)
    return [chr(payload[0]) for payload in claim.payloads()]


def test_reject_refuses_a_publish_over_max_length_whole(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_length=5)
        await broker.publish_many("q", numbered(3))
        with pytest.raises(QueueFull, match=r"3 more messages on 3 waiting would pass max_length 5"):
            await broker.publish_many("q", numbered(3))
        await broker.publish_many("q", numbered(2, 3))
        broker = await home.reopen(broker)
        with pytest.raises(QueueFull):
            await broker.publish("q", Message(b"x"))
        claim = await broker.claim("q", max=2)  # what is leased does not count
        await broker.publish_many("q", numbered(2, 5))
        await broker.ack(claim)
        with pytest.raises(QueueFull):
            await broker.publish("q", Message(b"x"))
        assert await claim_all(broker, "q") == ["2", "3", "4", "5", "6"]

    play(home, scenario)


def test_publishes_at_once_do_not_pass_the_limit_together(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_length=5)
        results = await asyncio.gather(
            *(broker.publish("q", message) for message in numbered(20)), return_exceptions=True
        )
        assert [isinstance(result, QueueFull) for result in results] == [False] * 5 + [True] * 15
        assert await claim_all(broker, "q") == ["0", "1", "2", "3", "4"]

    play(home, scenario)


@pytest.mark.parametrize("policy", ["drop_oldest", "dead_letter_oldest"])
def test_the_oldest_go_when_more_than_max_length_come(home: Home, policy: Overflow) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_length=5, overflow=policy)
        await broker.publish_many("q", numbered(4))
        held = await broker.claim("q", max=1)
        await broker.publish_many("q", numbered(4, 4))
        broker = await home.reopen(broker)
        await broker.publish_many("q", numbered(40, 8))
        assert (await group_stats(broker, "q")).ready == 5
        dead = await broker.dead("q", max=100)
        if policy == "drop_oldest":
            assert dead == []
        else:
            assert [int(one.received.payload) for one in dead] == list(range(1, 43))
            assert {(one.reason, one.attempts) for one in dead} == {("overflow", 0)}
        assert await claim_all(broker, "q") == ["43", "44", "45", "46", "47"]
        await broker.ack(str(held.lease))

    play(home, scenario)


@pytest.mark.parametrize("policy", ["reject", "drop_oldest", "dead_letter_oldest"])
def test_max_bytes(home: Home, policy: Overflow) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_bytes=5_000, overflow=policy)
        taken = 0
        refusals: list[str] = []
        for number in range(10):
            try:
                await broker.publish("q", Message(b"%d" % number + NOISE))
                taken += 1
            except QueueFull as error:
                refusals.append(str(error))
        assert all("max_bytes 5000" in refusal for refusal in refusals)
        ready = (await group_stats(broker, "q")).ready
        assert ready in (3, 4)
        if policy == "reject":
            assert taken == ready
        else:
            assert taken == 10
        dead = await broker.dead("q", max=100)
        assert len(dead) == (10 - ready if policy == "dead_letter_oldest" else 0)
        broker = await home.reopen(broker)
        first = 0 if policy == "reject" else 10 - ready
        assert await first_digits(broker) == [str(first + n) for n in range(ready)]
        await broker.publish("q", Message(NOISE))
        with pytest.raises(QueueFull, match="6000 more bytes"):
            await broker.publish("q", Message(NOISE * 6 + bytes(6)))

    play(home, scenario)


def test_the_slowest_group_decides_when_a_queue_is_full(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_length=3)
        await broker.declare_group("q", "slow")
        await broker.publish_many("q", numbered(3))
        await claim_all(broker, "q")
        with pytest.raises(QueueFull):
            await broker.publish("q", Message(b"x"))
        await claim_all(broker, "q", group="slow")
        await broker.publish("q", Message(b"x"))

    play(home, scenario)


def test_a_limit_that_comes_later_counts_what_is_there(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(3))
        await broker.declare_queue("q", max_length=3)
        with pytest.raises(QueueFull):
            await broker.publish("q", Message(b"x"))
        assert texts(await broker.claim("q")) == ["0"]
        await broker.publish("q", Message(b"x"))

    play(home, scenario)


def test_an_exchange_publish_reaches_all_of_its_queues_or_none(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_exchange("x", kind="fanout")
        await broker.declare_queue("a")
        await broker.declare_queue("b", max_length=1)
        await broker.declare_queue("c")
        for queue in "abc":
            await broker.bind("x", queue)
        await broker.publish_to("x", Message(b"1"))
        with pytest.raises(QueueFull):
            await broker.publish_to("x", Message(b"2"))
        broker = await home.reopen(broker)
        assert [await claim_all(broker, queue) for queue in "abc"] == [["1"], ["1"], ["1"]]

    play(home, scenario)
