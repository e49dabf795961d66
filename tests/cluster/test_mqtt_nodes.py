"""MQTT on several nodes: one world of topics, sessions that move, and what a node leaves that dies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import mqtt5
from mqtt5 import Will

from tests.cli.servers import Server
from tests.cluster.rig import nodes
from tests.fronts.mqtt import rig as mqtt_rig
from tests.fronts.mqtt.rig import Client

OPEN: list[Client] = []
"""The clients of the test that runs."""


async def connect(port: int, client_id: str, **options: Any) -> Client:
    client = await mqtt_rig.connect(port, client_id, **options)
    OPEN.append(client)
    return client


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def to_its_end() -> None:
        try:
            await scenario()
        finally:
            for client in OPEN:
                client.cut()
            OPEN.clear()
            await asyncio.sleep(0)  # the transports close

    asyncio.run(to_its_end())


def port_of(server: Server) -> int:
    found = re.search(r"MQTT is at mqtt://127\.0\.0\.1:(\d+)", "".join(server.output))
    assert found is not None, server.output
    return int(found[1])


def test_clients_of_all_nodes_are_in_one_world(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start(), cluster.start()]
        cluster.until_balanced(*servers)
        one, two = map(port_of, servers)

        async def scenario() -> None:
            subscribers = [await connect(port, f"subscriber-{port}", expiry=60) for port in (one, two)]
            clean = [await connect(port, f"clean-{port}") for port in (one, two)]
            for client in (*subscribers, *clean):
                assert await client.subscribe("a/#", qos=2) == [2]
            publishers = [await connect(port, f"publisher-{port}") for port in (one, two)]
            for number, publisher in enumerate(publishers):
                assert await publisher.publish("a/b", b"%d" % number, qos=2) == 0
                assert await publisher.publish("a/r", b"r%d" % number, qos=1, retain=True) == 0
            for client in (*subscribers, *clean):
                found = [await client.message() for _ in range(4)]
                assert [one.payload for one in found] == [b"0", b"r0", b"1", b"r1"]
            for port in (one, two):
                late = await connect(port, f"late-{port}")
                await late.subscribe("a/r", qos=0)
                message = await late.message()
                assert (message.payload, message.retain) == (b"r1", True)
            await queues_and_shares(one, two)

        run(scenario)


async def queues_and_shares(one: int, two: int) -> None:
    consumers = [await connect(port, f"consumer-{port}") for port in (one, two)]
    for consumer in consumers:
        assert await consumer.subscribe("$queue/orders/eu/#", qos=1, properties={"consumer-group": "workers"}) == [1]
        assert await consumer.subscribe("$share/group/b/#", qos=1) == [1]
    publishers = [await connect(port, f"another-{port}") for port in (one, two)]
    for number, publisher in enumerate(publishers):
        assert await publisher.publish("$queue/orders/eu/x", b"q%d" % number) == 0
        assert await publisher.publish("$queue/orders/us/x", b"not this") == 0
        assert await publisher.publish("b/1", b"s%d" % number) == 0
    found: list[bytes] = []

    async def collect(client: Client) -> None:
        while len(found) < 4:
            message = await client.message()
            found.append(message.payload)

    tasks = [asyncio.create_task(collect(consumer)) for consumer in consumers]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    for task in tasks:
        task.cancel()
    assert sorted(found) == [b"q0", b"q1", b"s0", b"s1"]


def test_a_client_that_comes_to_another_node_takes_its_session_along(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start(), cluster.start()]
        cluster.until_balanced(*servers)
        one, two = map(port_of, servers)

        async def scenario() -> None:
            publisher = await connect(two, "publisher")
            for expiry in (60, 0):
                first = await connect(one, "client", expiry=expiry)
                await first.subscribe("a", qos=1)
                await publisher.publish("a", b"1")
                await first.message(answer=False)
                second = await connect(two, "client", clean=False, expiry=expiry)
                assert (await first.expect(mqtt5.DisconnectPacket)).reason_code == 0x8E
                assert second.connack.session_present == (expiry > 0)
                if expiry:
                    message = await second.message()
                    assert (message.payload, message.duplicate) == (b"1", True)
                await second.disconnect(expiry=0 if expiry else None)

        run(scenario)


def test_a_node_that_dies_leaves_sessions_and_wills_to_the_others(tmp_path: Path) -> None:
    with nodes(tmp_path) as cluster:
        servers = [cluster.start(), cluster.start()]
        cluster.until_balanced(*servers)
        one, two = map(port_of, servers)

        async def scenario() -> None:
            watching = await connect(one, "watching")
            await watching.subscribe("wills/#", qos=1)
            await connect(two, "dying", will=Will("wills/dying", payload=b"gone"))
            client = await connect(two, "client", expiry=600)
            await client.subscribe("a", qos=2)
            publisher = await connect(one, "publisher")
            for number in range(5):
                await publisher.publish("a", b"%d" % number, qos=1)
            for _ in range(2):
                await client.message(answer=False)
            await asyncio.to_thread(servers[1].process.kill)
            assert (await watching.message()).payload == b"gone"
            client = await connect(one, "client", clean=False, expiry=600)
            assert client.connack.session_present
            assert [(await client.message()).payload for _ in range(5)] == [b"%d" % number for number in range(5)]
            assert await publisher.publish("a", b"5") == 0
            assert (await client.message()).payload == b"5"

        run(scenario)
