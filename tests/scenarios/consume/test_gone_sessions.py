"""Sessions end with their process: what they held is there at once for whoever loads it next, counted as an attempt."""

from __future__ import annotations

import asyncio

from penstock.model import Message
from penstock.node.session import Session
from tests.scenarios.cluster.test_slots import SLOT, SharedStore, member
from tests.scenarios.rig import Home, messages, play


def test_what_a_session_held_returns_when_the_broker_begins_anew(home: Home) -> None:
    """Closed and not ended, as after a kill. A consumer that is no session's keeps its lease: it may still be there."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", messages("a", "b", "c"))
        session = broker.begin_session(broker.new_session_name())
        for consumer in (session.consumer_name, f"{session.consumer_name}/1"):
            await session.claim("work", lease_seconds=600, consumer=consumer)
        await broker.claim("work", lease_seconds=600, consumer="worker-7")
        broker = await home.reopen(broker)
        again = await broker.claim("work", max=10, wait=10)
        assert again.payloads() == [b"a", b"b"]
        assert [message.attempt for message in again] == [2, 2]

    play(home, scenario)


def test_a_name_makes_no_consumer_a_session(home: Home) -> None:
    """Whatever a user calls a consumer, it is an ordinary one, which may still be there after a restart."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        names = ("session-1-x", "session-1-x/2", "1.session", "session")
        await broker.publish_many("work", messages(*names))
        for name in names:
            await broker.claim("work", lease_seconds=600, consumer=name)
        broker = await home.reopen(broker)
        assert (await broker.claim("work", max=10, wait=0.2)).payloads() == []

    play(home, scenario)


def test_a_session_takes_only_its_own_leases_with_it(home: Home) -> None:
    """A consumer of the same name, or of a name that looks like the session's, keeps what it holds."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", messages("a", "b", "c", "d"))
        session = broker.begin_session("ann")
        await session.claim("work", lease_seconds=600, consumer="worker")
        await session.claim("work", lease_seconds=600)
        await broker.claim("work", lease_seconds=600, consumer="worker")
        await broker.attach("work", consumer="ann/1")
        await broker.claim("work", lease_seconds=600, consumer="ann/1")
        await session.end_session()
        again = await broker.claim("work", max=10, wait=5)
        assert again.payloads() == [b"a", b"b"]
        assert (await broker.stats("work")).consumers == 1

    play(home, scenario)


def test_in_a_cluster_a_session_lives_as_long_as_its_node() -> None:
    async def story() -> None:
        store = SharedStore()
        async with member(store, "two") as (second, taking):
            async with member(store, "one") as (first, giving):
                await taking.beat()
                await second.declare_queue("work")
                await second.publish("work", Message(b"m"))
                # A session of the first node holds something of the second's, which is then handed to the first.
                session = second.bound_to("default", Session(giving.ownership.incarnation, "s"))
                assert (await session.claim("work", lease_seconds=600)).payloads() == [b"m"]
                to = taking.ownership.node_of(giving.ownership.incarnation)
                assert to is not None
                await taking.hand_over({SLOT}, to)
                await giving.beat()
                assert SLOT in giving.ownership.owned
                assert (await first.claim("work", wait=0.05)).payloads() == []
            await taking.beat()
            assert SLOT in taking.ownership.owned
            assert (await second.claim("work", wait=10)).payloads() == [b"m"]

    asyncio.run(story())
