"""AMQP and MQTT asked of a node that owns neither the queue nor the registrar's slot: each operation that they have.

The operations are named after the broker's; `tests/scenarios/test_every_operation.py` has all of them over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.amqp091.server import AmqpServer
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.server import MqttServer
from penstock.model.rows import home_slot
from penstock.node.broker import LocalBroker
from tests.fronts.amqp091.rig import PATIENCE_S, Inbox
from tests.fronts.mqtt.rig import Client, connect
from tests.nodes import node_of
from tests.scenarios.rig import until
from tests.scenarios.test_every_operation import two_nodes

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

# AMQP ----------------------------------------------------------------------------------------------------


class Channels(Protocol):
    """Opens channels to the node that is asked, each on a connection of its own."""

    def __call__(self, *, confirm: bool = True) -> BlockingChannel: ...


AmqpCase = Callable[[Channels, str], None]
AMQP: Final[dict[str, AmqpCase]] = {}


def amqp(*operations: str) -> Callable[[AmqpCase], AmqpCase]:
    def add(story: AmqpCase) -> AmqpCase:
        AMQP.update(dict.fromkeys(operations, story))
        return story

    return add


@amqp("declare_queue", "queue_options", "stats", "purge", "delete_queue")
def queues(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, b"1")
    assert channel.queue_declare(queue, durable=True, passive=True).method.message_count == 1
    assert channel.queue_purge(queue).method.message_count == 1
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    channel.queue_delete(queue)
    with pytest.raises(ChannelClosedByBroker, match="404"):
        channel.queue_declare(queue, passive=True)


@amqp("publish_many", "claim", "settle", "extend")
def get(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    methods = []
    for wanted in (b"1", b"2", b"3"):
        method, _, body = channel.basic_get(queue)
        assert body == wanted
        methods.append(method)
    channel.basic_ack(methods[0].delivery_tag)
    channel.basic_nack(methods[1].delivery_tag, requeue=True)
    channel.basic_reject(methods[2].delivery_tag, requeue=False)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"2", True)
    assert channel.basic_get(queue)[0] is None


@amqp("attach", "detach", "stop_waiting")
def consume(open_channel: Channels, queue: str) -> None:
    channel, other = open_channel(), open_channel()
    channel.queue_declare(queue, durable=True)
    inbox = Inbox(channel, queue)
    other.basic_publish("", queue, b"1")
    inbox.wait(1)
    channel.basic_ack(inbox.deliveries[0][0].delivery_tag)
    assert other.queue_declare(queue, passive=True).method.consumer_count == 1
    channel.basic_cancel(inbox.tag)
    assert other.queue_declare(queue, passive=True).method.consumer_count == 0


@amqp("declare_exchange", "bind", "publish_to", "unbind", "delete_exchange")
def exchanges(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True)
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind(queue, "x", "a.*")
    channel.basic_publish("x", "a.b", b"1", mandatory=True)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
    channel.queue_unbind(queue, "x", "a.*")
    channel.exchange_delete("x")
    with pytest.raises(ChannelClosedByBroker, match="404"):
        channel.exchange_declare("x", passive=True)


@amqp("transaction")
def transactions(open_channel: Channels, queue: str) -> None:
    open_channel().queue_declare(queue, durable=True)
    open_channel().basic_publish("", queue, b"task")
    channel = open_channel(confirm=False)
    channel.tx_select()
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", queue, b"result")
    channel.tx_commit()
    assert channel.basic_get(queue)[2] == b"result"


@amqp("read_from")
def streams(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body)
    channel.basic_qos(prefetch_count=10)
    inbox = Inbox(channel, queue, arguments={"x-stream-offset": "first"})
    inbox.wait(2)
    assert inbox.bodies == [b"1", b"2"]


@amqp("session")
def exclusive(open_channel: Channels, queue: str) -> None:
    channel, other = open_channel(), open_channel()
    channel.queue_declare(queue, exclusive=True)
    other.basic_publish("", queue, b"answer")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"answer"
    with pytest.raises(ChannelClosedByBroker, match="405"):
        other.basic_get(queue)


@pytest.mark.parametrize("story", list(dict.fromkeys(AMQP.values())))
def test_amqp(story: AmqpCase) -> None:
    async def scene() -> None:
        async with two_nodes() as (asked, owner, _):
            server = AmqpServer(asked, AmqpOptions(port=0))
            await server.start()
            try:
                before = asked._forwarder.forwarded
                await asyncio.to_thread(_told, story, server.port, _foreign(owner._local))
                assert asked._forwarder.forwarded > before
            finally:
                await server.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))


def _foreign(owner: LocalBroker) -> str:
    """The name of a queue that the owner will own."""
    owned = node_of(owner).ownership.owned
    return next(name for name in map("q{}".format, range(999)) if home_slot("default", name) in owned)


def _told(story: AmqpCase, port: int, queue: str) -> None:
    connections: list[pika.BlockingConnection] = []

    def channel(*, confirm: bool = True) -> BlockingChannel:
        parameters = pika.ConnectionParameters("127.0.0.1", port, socket_timeout=PATIENCE_S)
        connections.append(pika.BlockingConnection(parameters))
        made = connections[-1].channel()
        if confirm:
            made.confirm_delivery()
        return made

    try:
        story(channel, queue)
    finally:
        for connection in connections:
            if connection.is_open:
                connection.close()


# MQTT ----------------------------------------------------------------------------------------------------

MqttCase = Callable[[Callable[[str], Awaitable[Client]], LocalBroker, str], Awaitable[None]]
MQTT: Final[dict[str, MqttCase]] = {}


def mqtt(*operations: str) -> Callable[[MqttCase], MqttCase]:
    def add(story: MqttCase) -> MqttCase:
        MQTT.update(dict.fromkeys(operations, story))
        return story

    return add


@mqtt("publish_many", "declare_group", "groups", "claim", "settle", "attach", "detach")
async def mqtt_queues(client: Callable[[str], Awaitable[Client]], owner: LocalBroker, queue: str) -> None:
    await owner.declare_queue(queue, max_attempts=2, backoff_ms=0)
    consumer, producer = await client("consumer"), await client("producer")
    assert await consumer.subscribe(f"$queue/{queue}/#", qos=1, properties={"consumer-group": "workers"}) == [1]
    for payload in (b"1", b"2", b"3"):
        assert await producer.publish(f"$queue/{queue}/key", payload) == 0
    actions = {b"1": "$ack", b"2": "$reject", b"3": "$nack"}
    for _ in range(3):
        message = await consumer.message()
        assert await _settle(consumer, message, queue, actions[message.payload]) == 0
    again = await consumer.message()
    assert again.payload == b"3"
    assert await _settle(consumer, again, queue, "$ack") == 0
    assert [letter.received.payload for letter in await owner.dead(queue, "workers")] == [b"2"]
    await consumer.disconnect()
    await until(lambda: _has_consumers(owner, queue, 0))


async def _has_consumers(owner: LocalBroker, queue: str, count: int) -> bool:
    return (await owner.stats(queue)).consumers == count


async def _settle(client: Client, message: Any, queue: str, action: str) -> int:
    given = dict(message.user_properties)
    properties = {name: given[name] for name in ("message-id", "group-id") if name in given}
    return await client.publish(f"$queue/{queue}/{action}", b"because", properties=properties)


@mqtt("publish_to", "declare_queue", "bind", "unbind", "delete_queue", "marks", "put_mark", "delete_mark")
async def mqtt_topics(client: Callable[[str], Awaitable[Client]], owner: LocalBroker, queue: str) -> None:
    subscribers = [await client(f"subscriber-{number}") for number in range(4)]  # of both nodes, by their names
    for subscriber in subscribers:
        assert await subscriber.subscribe("a/#", qos=1) == [1]
    publisher = await client("publisher")
    assert await publisher.publish("a/b", b"1", qos=1) == 0
    assert await publisher.publish("a/r", b"2", qos=1, retain=True) == 0
    for subscriber in subscribers:
        assert [(await subscriber.message()).payload for _ in range(2)] == [b"1", b"2"]
        await subscriber.unsubscribe("a/#")
    late = await client("late")
    await late.subscribe("a/r", qos=0)
    assert (await late.message()).payload == b"2"


@pytest.mark.parametrize("story", list(dict.fromkeys(MQTT.values())))
def test_mqtt(story: MqttCase) -> None:
    async def scene() -> None:
        async with two_nodes() as (asked, owner, _):
            server = MqttServer(asked, MqttOptions(port=0))
            await server.start()
            clients: list[Client] = []

            async def client(name: str) -> Client:
                clients.append(await connect(server.port, name))
                return clients[-1]

            try:
                before = asked._forwarder.forwarded
                await story(client, owner._local, _foreign(owner._local))
                assert asked._forwarder.forwarded > before
            finally:
                for one in clients:
                    one.cut()
                await server.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))
