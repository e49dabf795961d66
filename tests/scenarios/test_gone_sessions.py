"""Sessions end with their process: what they held is there at once for whoever loads it next, counted as an attempt."""

from __future__ import annotations

import asyncio

from penstock.model import Message
from tests.scenarios.rig import Home, messages, play
from tests.scenarios.test_slots import SLOT, SharedStore, member


def test_what_a_session_held_returns_when_the_broker_begins_anew(home: Home) -> None:
    """Closed and not ended, as after a kill. A consumer that is no session's keeps its lease: it may still be there."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", messages("a", "b", "c"))
        session = broker.begin_session(broker.new_session_name())
        for consumer in (session.consumer, f"{session.consumer}/1"):
            await session.claim("work", lease_seconds=600, consumer=consumer)
        await broker.claim("work", lease_seconds=600, consumer="worker-7")
        broker = await home.reopen(broker)
        again = await broker.claim("work", max=10, wait=10)
        assert again.payloads() == [b"a", b"b"]
        assert [message.attempt for message in again] == [2, 2]

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
                session = second.begin_session(first.new_session_name())
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
