"""How much may be published at once, as the node's limits say: refused whole, and nothing of it is kept."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Message, MessageTooLarge, encode
from penstock.embedded import open_store
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.limits import Limits
from penstock.store.memory.engine import MemoryStore
from tests.scenarios.rig import numbered


async def opened(limits: Limits) -> LocalBroker:
    broker = await open_store(MemoryStore(), SystemClock(), limits=limits)
    await broker.declare_queue("work")
    await broker.declare_exchange("all", kind="fanout")
    await broker.bind("all", "work")
    return broker


def test_too_many_messages_in_one_call() -> None:
    async def scenario() -> None:
        async with await opened(Limits(batch_messages=50)) as broker:
            await broker.publish_many("work", numbered(50))
            for publish in (
                broker.publish_many("work", numbered(51)),
                broker.publish_batch("work", encode(numbered(51))),
                broker.publish_to("all", numbered(51)),
                broker.transaction().publish("work", *numbered(51)).commit(),
            ):
                with pytest.raises(MessageTooLarge, match="51 messages in one call; the limit is 50"):
                    await publish
            assert (await broker.stats("work")).published == 50

    asyncio.run(scenario())


def test_too_many_bytes_in_one_call() -> None:
    async def scenario() -> None:
        async with await opened(Limits(batch_bytes=1_000)) as broker:
            await broker.publish("work", Message(bytes(900)))
            for publish in (
                broker.publish_many("work", [Message(bytes(600))] * 2),
                broker.publish_to("all", [Message(bytes(600))] * 2),
                broker.transaction().publish("work", *[Message(bytes(600))] * 2).commit(),
            ):
                with pytest.raises(MessageTooLarge, match="1200 bytes in one call; the limit is 1000"):
                    await publish
            assert (await broker.stats("work")).published == 1

    asyncio.run(scenario())
