"""PostgreSQL behind a pooler in transaction mode: no statement may count on the connection of the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.embedded import open_member
from penstock.model import Message
from penstock.model.errors import NotOwner
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.cluster.membership import ClusterOptions
from penstock.store.postgres.engine import PostgresStore
from tests.databases import pgbouncer, postgres
from tests.scenarios.rig import until

QUEUES = [f"q{number}" for number in range(12)]

pytestmark = [
    pytest.mark.skipif(not postgres.is_there(), reason="there is no PostgreSQL for this Python"),
    pytest.mark.skipif(not pgbouncer.is_there(), reason=pgbouncer.MISSING),
]


@asynccontextmanager
async def member(url: str, name: str) -> AsyncIterator[LocalBroker]:
    store = await PostgresStore.open(url)
    options = ClusterOptions(heartbeat_ms=100, lease_ms=60_000)
    broker = await open_member(store, SystemClock(), name=name, options=options)
    try:
        assert broker.cluster is not None
        await broker.cluster.join(f"http://{name}:7333")
        yield broker
    finally:
        await broker.close()


async def _owner(queue: str, brokers: list[LocalBroker]) -> LocalBroker:
    """Whoever owns a queue now."""
    found: list[LocalBroker] = []

    async def is_owned() -> bool:
        for broker in brokers:
            try:
                await broker.stats(queue)
            except NotOwner:
                continue
            found.append(broker)
            return True
        return False

    await until(is_owned)
    return found[0]


async def _through(queue: str, brokers: list[LocalBroker], count: int) -> None:
    """So many messages into a queue and out of it again, in order, each once."""
    broker = await _owner(queue, brokers)
    for number in range(count):
        await broker.publish(queue, Message(b"%d" % number, partition="p", dedup_id=str(number)))
    again = await broker.publish(queue, Message(b"0", partition="p", dedup_id="0"))
    assert again.duplicate
    seen: list[bytes] = []
    while claim := await broker.claim(queue, max=7):
        seen += claim.payloads()
        await broker.ack(claim)
    assert seen == [b"%d" % number for number in range(count)]


def test_nodes_share_a_store_behind_a_pooler() -> None:
    async def story(url: str) -> None:
        async with member(url, "one") as first:
            for queue in QUEUES:
                await first.declare_queue(queue, ordered=True)
            async with member(url, "two") as second:
                assert first.cluster is not None
                assert second.cluster is not None
                one, two = first.cluster, second.cluster

                async def shared() -> bool:
                    return len(one.ownership.owned) == len(two.ownership.owned) == 32

                await until(shared)
                await asyncio.gather(*(_through(queue, [first, second], 20) for queue in QUEUES))
                await (await _owner("q0", [first, second])).publish("q0", Message(b"kept"))

            async def alone() -> bool:
                return len(one.ownership.owned) == 64

            await until(alone)
            assert (await first.claim("q0")).payloads() == [b"kept"]

    with postgres.fresh_database() as direct, pgbouncer.pooled(direct) as url:
        asyncio.run(asyncio.wait_for(story(f"{url}?schema=pooled&prepared=no&listen=no"), 60))
