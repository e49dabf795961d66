"""A claim whose answer was held up until its lease was over is none: somebody else may be done with its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock import AsyncClient, Message
from penstock.node.broker import LocalBroker
from tests.clients.http.rig import run, served
from tests.nodes import node_of
from tests.scenarios.rig import until
from tests.torture.proxy import Proxy


@asynccontextmanager
async def held_up() -> AsyncIterator[tuple[LocalBroker, AsyncClient, Proxy]]:
    """A broker, a client of it, and what stands between the two."""
    async with served() as place:
        proxy = Proxy("127.0.0.1", place.server.port)
        await proxy.start()
        try:
            async with AsyncClient(f"http://127.0.0.1:{proxy.port}") as client:
                yield place.broker, client, proxy
        finally:
            await proxy.close()


async def _is_handed_out(broker: LocalBroker) -> bool:
    """Whether all is."""
    return (await broker.stats("q")).groups[0].ready == 0


async def _is_leased(broker: LocalBroker) -> bool:
    return (await broker.stats("q")).groups[0].leased == 1


@pytest.mark.parametrize("lease_seconds", [0.3, None])
def test_messages_that_another_has_acknowledged_meanwhile_are_not_handed_out(lease_seconds: float | None) -> None:
    async def story() -> None:
        async with held_up() as (broker, client, proxy):
            await broker.declare_queue("q", lease_ms=300, max_attempts=0, backoff_ms=0)
            await client.stats("q")  # connected
            claiming = asyncio.ensure_future(client.claim("q", wait=0.2, lease_seconds=lease_seconds))
            await asyncio.sleep(0.05)  # it waits at the server
            proxy.stall()
            await broker.publish("q", Message(b"first"))
            claim = await broker.claim("q", wait=10)  # when the lease is over
            assert claim.payloads() == [b"first"]
            await broker.ack(claim)
            await asyncio.sleep(1.0)  # what is not trusted any more
            proxy.heal()
            assert (await claiming).payloads() == []

    run(story())


@pytest.mark.parametrize("lease_seconds", [30.0, None])
def test_a_claim_that_is_late_and_still_holds_is_handed_out_with_a_new_deadline(lease_seconds: float | None) -> None:
    async def story() -> None:
        async with held_up() as (broker, client, proxy):
            await broker.declare_queue("q", lease_ms=30_000)
            await client.stats("q")
            claiming = asyncio.ensure_future(client.claim("q", wait=0.2, lease_seconds=lease_seconds))
            await asyncio.sleep(0.05)
            proxy.stall()
            await broker.publish("q", Message(b"m"))
            await until(lambda: _is_leased(broker))
            began_ms = node_of(broker).clock.now_ms()
            await asyncio.sleep(1.3)
            proxy.heal()
            claim = await claiming
            assert claim.payloads() == [b"m"]
            assert claim.deadline_ms >= began_ms + 31_200
            await client.ack(claim)

    run(story())


@pytest.mark.parametrize("lease_seconds", [0.3, None])
def test_so_it_is_with_a_claim_that_came_with_a_settle(lease_seconds: float | None) -> None:
    async def story() -> None:
        async with held_up() as (broker, client, proxy):
            await broker.declare_queue("q", lease_ms=300, max_attempts=0, backoff_ms=0)
            await broker.declare_group("q", "default")
            await broker.publish_many("q", [Message(b"first"), Message(b"second")])
            claim = await client.claim("q", lease_seconds=60)
            proxy.slow(0.8)  # there, and back
            settling = asyncio.ensure_future(client.settle_and_claim(claim, lease_seconds=lease_seconds))
            await until(lambda: _is_handed_out(broker))
            other = await broker.claim("q", wait=10)  # when the lease is over
            assert other.payloads() == [b"second"]
            await broker.ack(other)
            following = await settling
            assert (len(following), following.lease) == (0, None)

    run(story())
