"""What applications enqueue, with several nodes: taken by one of them, for queues of any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import asyncpg

from penstock.client.client import AsyncClient
from penstock.enqueue import enqueue_many, enqueue_many_async
from penstock.model import Message
from penstock.store.mysql.pool import StoreAddress
from tests.cluster.rig import nodes
from tests.cluster.test_remote_publish import drained, queues_of_each
from tests.databases import mariadb

COUNT = 2_000


async def enqueue_all(store: str, queues: Sequence[str], messages: Sequence[Message]) -> None:
    """The messages to each of the queues, in one transaction of an application."""
    if store.startswith("mysql:"):
        schema = StoreAddress.parse(store).database
        with mariadb.connected(store) as session:
            for queue in queues:
                await asyncio.to_thread(enqueue_many, session, queue, messages, schema=schema)
            await asyncio.to_thread(session.commit)
        return
    address, _, schema = store.partition("?schema=")
    application = await asyncpg.connect(address)
    try:
        async with application.transaction():
            for queue in queues:
                await enqueue_many_async(application, queue, messages, schema=schema)
    finally:
        await application.close()


def test_rows_reach_queues_of_every_owner_once_and_in_order_while_the_registrar_dies(
    tmp_path: Path, store: str
) -> None:
    with nodes(tmp_path, store=store) as cluster:
        servers = [cluster.start() for _ in range(3)]
        cluster.until_balanced(*servers)
        queues = queues_of_each(cluster, *servers)

        async def scenario() -> None:
            async with AsyncClient([server.url for server in servers]) as client:
                for queue in queues:
                    await client.declare_queue(queue)
                    await client.declare_group(queue, "default")
                for start in range(0, COUNT, 100):
                    await enqueue_all(store, queues, [Message(b"%d" % number) for number in range(start, start + 100)])
                    if start == COUNT // 2:
                        found = cluster.cluster(servers[0])
                        name = next(one["owner"] for one in found["slots"] if one["slot"] == 0)
                        url = next(node["url"] for node in found["nodes"] if node["name"] == name)
                        next(server for server in servers if server.url == url).process.kill()
                expected = [str(number) for number in range(COUNT)]
                for queue in queues:
                    found_texts: list[str] = []
                    deadline = asyncio.get_running_loop().time() + 60
                    while len(found_texts) < COUNT and asyncio.get_running_loop().time() < deadline:
                        found_texts += await drained(client, queue)
                    assert found_texts == expected

        asyncio.run(scenario())


def test_rows_that_failed_are_retried_through_any_node(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start() for _ in range(2)]
        cluster.until_balanced(*servers)
        address, _, schema = cluster.store.partition("?schema=")

        async def scenario() -> None:
            application = await asyncpg.connect(address)
            try:
                await enqueue_many_async(application, "absent", [Message(b"late")], schema=schema)
            finally:
                await application.close()
            for server in servers:
                async with AsyncClient(server.url) as client:
                    deadline = asyncio.get_running_loop().time() + 30
                    while not (await client.enqueued_failed()).failed:
                        assert asyncio.get_running_loop().time() < deadline
                        await asyncio.sleep(0.05)
                    assert await client.retry_enqueued() == 1
            other = cluster.queue_of(servers[1], "absent")
            assert other != "absent"
            async with AsyncClient(servers[1].url) as client:
                await client.declare_queue("absent")
                await client.declare_group("absent", "default")
                claim = await client.claim("absent", wait=20, ack=True)
                assert claim.payloads() == [b"late"]

        asyncio.run(scenario())
