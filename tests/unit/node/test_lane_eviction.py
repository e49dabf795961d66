"""Many more queues than lanes in memory: those that nobody uses are let go, and come back as they were."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import penstock
from penstock import Message
from tests.local import open_local
from tests.nodes import node_of

QUEUES = 60
LANES = 10


async def use(broker: penstock.Broker, number: int, message: bytes) -> None:
    await broker.publish(f"q{number}", Message(message))
    claim = await broker.claim(f"q{number}", max=10)
    assert claim.payloads() == [message]
    await broker.ack(claim)


async def story() -> None:
    async with await open_local(None) as broker:
        for number in range(QUEUES):
            await broker.declare_queue(f"q{number}")
            await use(broker, number, b"first")
        held = len(node_of(broker).lanes.loaded())
        assert held < 2 * LANES
        for number in range(QUEUES):
            await use(broker, number, b"second")
            stats = await broker.stats(f"q{number}")
            assert (stats.published, stats.messages, stats.groups[0].lag) == (2, 0, 0)
        await broker.publish("q0", Message(b"kept"))
        leased = await broker.claim("q0")
        for number in range(1, QUEUES):
            await use(broker, number, b"third")
        assert node_of(broker).catalog.queue("default", "q0").lanes[0] in {
            lane.id for lane in node_of(broker).lanes.loaded()
        }, "a lane with a lease has a timer to mind"
        await broker.ack(leased)


def test_lanes_that_are_idle_are_let_go() -> None:
    with patch("penstock.node.lanes.LANES_MAX", LANES):
        asyncio.run(story())
