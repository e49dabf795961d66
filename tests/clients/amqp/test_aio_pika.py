"""aio-pika: the robust connection and its patterns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError
from aio_pika.patterns import RPC

from tests.clients.amqp.rig import DEADLINE_SECONDS, Address, unique


def run(address: Address, scenario: Callable[[Any], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            connection = await aio_pika.connect_robust(address.url)
            async with connection:
                await scenario(connection)

    asyncio.run(connected())


def test_publishing_and_consuming(address: Address) -> None:
    async def scenario(connection: Any) -> None:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=50)
        queue = await channel.declare_queue(unique("q"), durable=True, arguments={"x-max-priority": 3})
        exchange = await channel.declare_exchange(unique("e"), ExchangeType.TOPIC, auto_delete=True)
        await queue.bind(exchange, "orders.*")
        messages = [
            Message(str(number).encode(), delivery_mode=DeliveryMode.PERSISTENT, headers={"number": number})
            for number in range(200)
        ]
        await asyncio.gather(*(exchange.publish(message, "orders.new") for message in messages))
        found = []
        async with queue.iterator() as incoming:
            async for message in incoming:
                async with message.process():
                    found.append((int(message.body), message.headers["number"], message.routing_key))
                if len(found) == 200:
                    break
        assert sorted(found) == [(number, number, "orders.new") for number in range(200)]
        await queue.delete(if_unused=False, if_empty=False)

    run(address, scenario)


def test_errors(address: Address) -> None:
    async def scenario(connection: Any) -> None:
        channel = await connection.channel()
        with pytest.raises(ChannelNotFoundEntity):
            await channel.declare_queue(unique("missing"), passive=True)
        channel = await connection.channel(on_return_raises=True)
        with pytest.raises(PublishError):
            await channel.default_exchange.publish(Message(b"lost"), unique("nowhere"), mandatory=True)
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        full = await channel.declare_queue(unique("full"), exclusive=True, arguments=arguments)
        await channel.default_exchange.publish(Message(b"a"), full.name)
        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(Message(b"b"), full.name)

    run(address, scenario)


def test_rejected_messages_are_dead_letters(address: Address) -> None:
    async def scenario(connection: Any) -> None:
        channel = await connection.channel()
        graves = await channel.declare_queue(unique("graves"), exclusive=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graves.name}
        queue = await channel.declare_queue(unique("q"), exclusive=True, arguments=arguments)
        await channel.default_exchange.publish(Message(b"bad", correlation_id="7"), queue.name)
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        await graves.consume(arrived.put)
        message = await queue.get(timeout=5)
        await message.reject(requeue=False)
        dead = await arrived.get()
        assert (dead.body, dead.correlation_id) == (b"bad", "7")
        assert dead.headers["x-death"][0]["reason"] == "rejected"
        await dead.ack()

    run(address, scenario)


def test_rpc(address: Address) -> None:
    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def scenario(connection: Any) -> None:
        channel = await connection.channel()
        rpc = await RPC.create(channel)
        name = unique("multiply")
        await rpc.register(name, multiply, auto_delete=True)
        assert await asyncio.gather(*(rpc.call(name, {"x": x, "y": 3}) for x in range(10))) == [
            x * 3 for x in range(10)
        ]
        await rpc.close()

    run(address, scenario)


def test_transactions(address: Address) -> None:
    async def scenario(connection: Any) -> None:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(unique("q"), exclusive=True)
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"kept"), queue.name)
        transaction = channel.transaction()
        await transaction.select()
        await channel.default_exchange.publish(Message(b"dropped"), queue.name)
        await transaction.rollback()
        other = await connection.channel()
        counted = await other.declare_queue(queue.name, passive=True)
        assert counted.declaration_result.message_count == 1

    run(address, scenario)
