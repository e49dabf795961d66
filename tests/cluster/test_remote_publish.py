"""What happens in queues of several owners at once: all of it or nothing, each part once, through deaths of either."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from penstock.client.client import AsyncClient
from penstock.model import Message
from penstock.model.errors import PenstockError
from tests.cli.servers import Server, until
from tests.cluster.rig import Nodes, nodes


def queues_of_each(cluster: Nodes, *servers: Server) -> list[str]:
    return [cluster.queue_of(server, f"c{index}-") for index, server in enumerate(servers)]


async def drained(client: AsyncClient, queue: str) -> list[str]:
    """Everything in a queue, acknowledged."""
    found: list[str] = []
    while claim := await client.claim(queue, max=1_000, wait=0.2, ack=True):
        found += [payload.decode() for payload in claim.payloads()]
    return found


def test_a_publish_to_an_exchange_reaches_queues_of_all_owners(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start() for _ in range(3)]
        cluster.until_balanced(*servers)
        queues = queues_of_each(cluster, *servers)

        async def scenario() -> None:
            async with AsyncClient(servers[0].url) as client:
                await client.declare_exchange("fan", kind="fanout")
                for queue in queues:
                    await client.declare_queue(queue)
                    await client.bind("fan", queue)
                for server in servers:
                    async with AsyncClient(server.url) as publisher:
                        receipt = await publisher.publish_to("fan", Message(server.url.encode()))
                        assert receipt.queues == sorted(queues)
                        many = [Message(b"%d" % number) for number in range(100)]
                        receipt = await publisher.publish_to("fan", many, publish_id=f"many-{server.url}")
                        again = await publisher.publish_to("fan", many, publish_id=f"many-{server.url}")
                        assert [place.offset for place in again] == [place.offset for place in receipt]
                expected = [text for server in servers for text in (server.url, *map(str, range(100)))]
                for queue in queues:
                    assert await drained(client, queue) == expected

        asyncio.run(scenario())


def test_a_transaction_over_several_owners(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start(), cluster.start()]
        cluster.until_balanced(*servers)
        queues = queues_of_each(cluster, *servers)

        async def scenario() -> None:
            async with AsyncClient(servers[0].url) as client, AsyncClient(servers[1].url) as other:
                for queue in queues:
                    await client.declare_queue(queue)
                    await client.publish(queue, Message(b"in"))
                for through in (client, other):
                    claims = [await through.claim(queue, wait=1) for queue in queues]
                    async with through.transaction() as unit:
                        for claim, queue in zip(claims, reversed(queues), strict=True):
                            unit.ack(claim)
                            unit.publish(queue, Message(b"in"))
                    claim = await through.claim(queues[0], wait=1)
                    async with through.transaction() as unit:  # of one owner's lease, to another's queue
                        unit.ack(claim)
                        unit.publish(queues[1], Message(b"moved"))
                    assert await drained(client, queues[1]) == ["in", "moved"]
                    for queue in queues:
                        await client.publish(queue, Message(b"in"))
                assert [await drained(client, queue) for queue in queues] == [["in"], ["in"]]

        asyncio.run(scenario())


def test_dead_letters_and_schedules_cross_owners(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start(), cluster.start()]
        cluster.until_balanced(*servers)
        queues = queues_of_each(cluster, *servers)

        async def scenario() -> None:
            async with AsyncClient(servers[0].url) as client:
                for queue, other in zip(queues, reversed(queues), strict=True):
                    await client.declare_queue(queue, dead_letter_to=f"queue:{other}-dead")
                    await client.declare_queue(f"{other}-dead")
                    await client.publish(queue, Message(queue.encode()))
                    await client.reject(await client.claim(queue))
                for queue, other in zip(queues, reversed(queues), strict=True):
                    claim = await client.claim(f"{other}-dead", wait=5, ack=True)
                    assert claim.payloads() == [queue.encode()]
                for queue in queues:
                    await client.declare_schedule(f"tick-{queue}", message=Message(b"t"), queue=queue, interval_ms=200)
                for queue in queues:
                    claim = await client.claim(queue, wait=5, ack=True)
                    assert claim.payloads() == [b"t"]

        asyncio.run(scenario())


def test_fan_out_survives_the_death_of_either_side(tmp_path: Path) -> None:
    """Messages that were answered are in every queue once, in order, whoever is killed while they are published."""
    with nodes(tmp_path) as cluster:
        servers = [cluster.start() for _ in range(3)]
        cluster.until_balanced(*servers)
        queues = queues_of_each(cluster, *servers)
        published: list[str] = []

        async def scenario() -> None:
            urls = [server.url for server in servers]
            async with AsyncClient(urls[0]) as client:
                await client.declare_exchange("fan", kind="fanout")
                for queue in queues:
                    await client.declare_queue(queue)
                    await client.bind("fan", queue)
            stopping = asyncio.Event()

            async def publish() -> None:
                async with AsyncClient(urls, timeout=5.0) as client:
                    for number in itertools.count():
                        if stopping.is_set():
                            return
                        await client.publish_to("fan", Message(b"%d" % number), publish_id=f"fan-{number}")
                        published.append(str(number))

            async def go_on() -> None:
                known = len(published)
                await asyncio.to_thread(until, lambda: len(published) > known + 30, "publishes go on")

            publishing = asyncio.create_task(publish())
            for victim in (servers[1], servers[2]):
                await go_on()
                victim.process.kill()
            await go_on()
            stopping.set()
            await publishing
            async with AsyncClient(urls[0]) as client:
                for queue in queues:
                    assert await drained(client, queue) == published, queue

        try:
            asyncio.run(scenario())
        except PenstockError:
            print("".join(servers[0].errors[-20:]))
            raise
