"""Two brokers on one file: the second takes over, the first is told so and can do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock import Closed, Fenced, Message
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, group_stats, numbered, play, soon, texts, turns, until


def test_the_first_is_fenced_and_changes_nothing_more(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        first = await home.open()
        await first.declare_queue("q")
        await first.publish_many("q", numbered(4))
        held = await first.claim("q", max=2)
        second = await home.open()
        operations: list[Callable[[], Awaitable[object]]] = [
            lambda: first.ack(held),
            lambda: first.publish("q", Message(b"never")),
            lambda: first.claim("q"),
            lambda: first.declare_queue("never"),
            lambda: first.browse("q"),
            lambda: first.stats("q"),
        ]
        for operation in operations:
            with pytest.raises(Fenced, match="epoch"):
                await soon(operation())
        assert set(await second.queues()) == {"q", "$events"}
        assert texts(await second.claim("q", max=10)) == ["2", "3"]
        await second.ack(str(held.lease))
        assert (await group_stats(second, "q")).leased == 2
        await soon(first.close())
        with pytest.raises(Closed):
            await first.publish("q", Message(b"never"))
        await second.publish("q", Message(b"goes on"))
        assert await claim_all(second, "q") == ["goes on"]

    play(file_home, scenario)


def test_polls_of_the_fenced_end_when_it_learns_of_it(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        first = await home.open()
        await first.declare_queue("q")
        await first.declare_group("q", "s", kind="stream")
        poll = asyncio.create_task(first.claim("q", wait=3_600))
        read = asyncio.create_task(first.read("q", "s", wait=3_600))
        await until(lambda: node_of(first).waiters.count == 1)
        await turns(100)
        second = await home.open()
        with pytest.raises(Fenced):
            await first.publish("q", Message(b"never"))
        for ended in (poll, read):
            with pytest.raises(Fenced):
                await soon(ended)
        assert await claim_all(second, "q") == []

    play(file_home, scenario)


def test_brokers_that_take_over_from_each_other_lose_and_double_nothing(file_home: Home) -> None:
    """Each works until it is fenced: what was confirmed is there, what was acked is not."""

    async def scenario(home: Home) -> None:
        confirmed: set[str] = set()
        acked: set[str] = set()
        maybe: set[str] = set()
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=1)

        async def work(broker: LocalBroker, life: int) -> None:
            for number in range(1_000):
                name = f"{life}.{number}"
                try:
                    await broker.publish("q", Message(name.encode()))
                    confirmed.add(name)
                    claim = await broker.claim("q", lease_seconds=60)
                    assert not acked & set(texts(claim))
                    if number % 3 == 0 and len(claim):
                        maybe.update(texts(claim))
                        await broker.ack(claim)
                        acked.update(texts(claim))
                    elif len(claim):
                        await broker.release(claim)
                except Fenced:
                    return
            raise AssertionError("it was never fenced")

        task = asyncio.create_task(work(broker, 0))
        for life in range(1, 8):
            before = len(confirmed)
            await until(lambda before=before: len(confirmed) > before + 3)
            broker = await home.open()
            await soon(task)
            task = asyncio.create_task(work(broker, life))
        broker = await home.open()
        await soon(task)
        left = set(texts(await broker.browse("q", max=10_000, state="ready")))
        left |= set(texts(await broker.browse("q", max=10_000, state="waiting")))
        left |= set(texts(await broker.browse("q", max=10_000, state="leased")))
        assert confirmed - maybe <= left
        assert not left & acked

    play(file_home, scenario)
