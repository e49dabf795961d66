"""Acks that nobody waits for: they need no commit of their own while there are others, and are never forgotten."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Message
from penstock.api.options import QueueOptions
from penstock.model.errors import Unavailable
from penstock.model.verdict import Verdict
from penstock.node.commit.pacing import DEFERRED_SECONDS
from tests.scenarios.shaky import Machine, play

ACK = [Verdict("ack")]


def test_they_go_with_the_next_commit() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"0"))
        claim = await broker.claim("q")
        before, began_ms = len(machine.store.commits), machine.now_ms()
        acked = asyncio.ensure_future(broker.settle(claim, ACK, deferred=True))
        await asyncio.sleep(0)
        await broker.publish("q", Message(b"1"))
        await acked
        assert len(machine.store.commits) == before + 1
        assert machine.now_ms() - began_ms < DEFERRED_SECONDS * 1000
        again = await machine.open()
        assert [one.payload for one in await again.claim("q", max=9)] == [b"1"]

    play(story)


def test_alone_they_wait_for_a_moment_and_no_longer() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", [Message(b"0"), Message(b"1")])
        claims = [await broker.claim("q"), await broker.claim("q")]
        before, began_ms = len(machine.store.commits), machine.now_ms()
        await asyncio.gather(*(broker.settle(claim, ACK, deferred=True) for claim in claims))
        assert len(machine.store.commits) == before + 1
        assert DEFERRED_SECONDS * 1000 <= machine.now_ms() - began_ms <= DEFERRED_SECONDS * 1000 + 5
        again = await machine.open()
        assert not len(await again.claim("q"))

    play(story)


def test_somebody_who_waits_for_them_can_say_so() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"0"))
        claim = await broker.claim("q")
        began_ms = machine.now_ms()
        acked = asyncio.ensure_future(broker.settle(claim, ACK, deferred=True))
        await asyncio.sleep(0)
        broker.flush()
        await acked
        assert machine.now_ms() - began_ms < DEFERRED_SECONDS * 1000

    play(story)


def test_they_are_not_left_behind_when_the_broker_closes() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"0"))
        acked = asyncio.ensure_future(broker.settle(await broker.claim("q"), ACK, deferred=True))
        await asyncio.sleep(0)
        await broker.close()
        await acked
        again = await machine.open()
        assert not len(await again.claim("q"))

    play(story)


def test_who_settled_hears_that_the_commit_failed() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"0"))
        claim = await broker.claim("q")
        machine.store.fail("before", 1, lambda _: True)
        with pytest.raises(Unavailable):
            await broker.settle(claim, ACK, deferred=True)
        await broker.settle(claim, ACK, deferred=True)  # the lease is still there, and so is the message in it
        again = await machine.open()
        assert not len(await again.claim("q"))

    play(story)


@pytest.mark.parametrize("options", [{"ordered": True}, {"max_in_flight": 1}])
def test_where_others_wait_for_what_they_free_they_do_not_wait(options: QueueOptions) -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q", **options)
        await broker.publish_many("q", [Message(b"0", partition="p"), Message(b"1", partition="p")])
        claim = await broker.claim("q")
        waiting = asyncio.ensure_future(broker.claim("q", wait=10))
        await asyncio.sleep(0.1)  # it has changed what it has to, and stands in line
        began_ms = machine.now_ms()
        await broker.settle(claim, ACK, deferred=True)
        assert [one.payload for one in await waiting] == [b"1"]
        assert machine.now_ms() - began_ms < DEFERRED_SECONDS * 1000

    play(story)
