"""aiomqtt, as its documentation shows it: connect, subscribe, publish, iterate; both versions, TCP and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes

from tests.clients.mqtt.rig import PATIENCE_S, MqttServerProcess, properties, unique


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def client(
    server: MqttServerProcess, version: int, transport: Literal["tcp", "websockets"] = "tcp", **options: Any
) -> aiomqtt.Client:
    return aiomqtt.Client(
        "127.0.0.1",
        server.websocket_port if transport == "websockets" else server.port,
        protocol=aiomqtt.ProtocolVersion.V5 if version == 5 else aiomqtt.ProtocolVersion.V311,
        transport=transport,
        websocket_path="/mqtt" if transport == "websockets" else None,
        **options,
    )


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_publish_and_subscribe(
    server: MqttServerProcess, version: int, transport: Literal["tcp", "websockets"]
) -> None:
    topic = unique("aiomqtt")

    async def work() -> None:
        async with client(server, version, transport) as subscriber, client(server, version, transport) as publisher:
            await subscriber.subscribe(f"{topic}/#", qos=2)
            for number in range(60):
                await publisher.publish(f"{topic}/{number % 3}", f"{number}", qos=number % 3)
            found: dict[str, list[int]] = {}
            async for message in subscriber.messages:
                assert isinstance(message.payload, bytes)
                found.setdefault(str(message.topic), []).append(int(message.payload))
                if sum(map(len, found.values())) == 60:
                    break
            assert found == {f"{topic}/{rest}": list(range(rest, 60, 3)) for rest in range(3)}
            await subscriber.unsubscribe(f"{topic}/#")

    run(work())


def test_many_clients_at_once(server: MqttServerProcess) -> None:
    topic = unique("fan-out")

    async def subscriber(ready: asyncio.Semaphore) -> list[bytes]:
        found: list[bytes] = []
        async with client(server, 5) as one:
            await one.subscribe(topic, qos=1)
            ready.release()
            async for message in one.messages:
                assert isinstance(message.payload, bytes)
                found.append(message.payload)
                if len(found) == 20:
                    break
        return found

    async def work() -> None:
        ready = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(subscriber(ready)) for _ in range(30)]
        for _ in tasks:
            await ready.acquire()
        async with client(server, 4) as publisher:
            for number in range(20):
                await publisher.publish(topic, f"{number}", qos=1)
        expected = [f"{number}".encode() for number in range(20)]
        for found in await asyncio.gather(*tasks):
            assert found == expected

    run(work())


def test_properties_and_a_retained_message(server: MqttServerProcess) -> None:
    topic = unique("aiomqtt-retained")

    async def work() -> None:
        given = properties(PacketTypes.PUBLISH, UserProperty=[("a", "b")], ContentType="text/plain")
        async with client(server, 5) as publisher:
            await publisher.publish(topic, "kept", qos=1, retain=True, properties=given)
        async with client(server, 5, identifier=unique("aio")) as late:
            await late.subscribe(topic, qos=1)
            message = await anext(aiter(late.messages))
            assert (message.payload, message.retain, message.qos) == (b"kept", True, 1)
            assert message.properties is not None
            found = message.properties.json()  # type: ignore[no-untyped-call]
            assert found == {"UserProperty": [("a", "b")], "ContentType": "text/plain"}

    run(work())
