"""AMQP and MQTT asked of a node that owns neither the queue nor the registrar's slot: each method and packet they have.

Each story names the methods or packets that its client sends; a front's method that no story sends fails here.
`tests/scenarios/cluster/test_every_operation.py` has all of the broker's operations over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

import pika
import pytest
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx
from pamqp.commands import Channel as Flow
from pika.exceptions import ChannelClosedByBroker

from penstock.fronts.amqp091.channel import METHODS, Channel
from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.amqp091.server import AmqpServer
from penstock.fronts.mqtt.connection import Connection
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.server import MqttServer
from penstock.model import Message
from penstock.model.rows import home_slot
from penstock.node.broker import LocalBroker
from penstock.wire.amqp091 import events
from penstock.wire.mqtt import packets
from tests.fronts.amqp091.rig import PATIENCE_S, Inbox
from tests.fronts.mqtt.rig import Client, connect
from tests.nodes import node_of
from tests.scenarios.cluster.test_every_operation import two_nodes
from tests.scenarios.rig import until

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

# AMQP ----------------------------------------------------------------------------------------------------


class Channels(Protocol):
    """Opens channels to the node that is asked, each on a connection of its own."""

    def __call__(self, *, confirm: bool = True) -> BlockingChannel: ...


AmqpCase = Callable[[Channels, str], None]
AMQP: Final[dict[AmqpCase, frozenset[type]]] = {}
"""Stories, and what their clients send."""
AMQP_EXEMPT: Final = {
    Basic.CancelOk: "a client's answer to a cancel of the server's: nothing is asked of the broker",
    Basic.RecoverAsync: "recover without an answer, which pika cannot send: the same handler",
}
"""What no story sends, and why."""


def amqp(*methods: type) -> Callable[[AmqpCase], AmqpCase]:
    def add(story: AmqpCase) -> AmqpCase:
        AMQP[story] = frozenset(methods)
        return story

    return add


@amqp(Queue.Declare, Queue.Purge, Queue.Delete, Confirm.Select, events.Publish)
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


@amqp(Basic.Get, events.Ack, events.Nack, events.Reject)
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


@amqp(Basic.Consume, Basic.Cancel, Flow.Flow)
def consume(open_channel: Channels, queue: str) -> None:
    channel, other = open_channel(), open_channel()
    channel.queue_declare(queue, durable=True)
    inbox = Inbox(channel, queue)
    other.basic_publish("", queue, b"1")
    inbox.wait(1)
    channel.basic_ack(inbox.deliveries[0][0].delivery_tag)
    assert other.queue_declare(queue, passive=True).method.consumer_count == 1
    channel.flow(False)
    channel.flow(True)
    other.basic_publish("", queue, b"2")
    inbox.wait(2)
    channel.basic_ack(inbox.deliveries[1][0].delivery_tag)
    channel.basic_cancel(inbox.tag)
    assert other.queue_declare(queue, passive=True).method.consumer_count == 0


@amqp(Exchange.Declare, Exchange.Bind, Exchange.Unbind, Exchange.Delete, Queue.Bind, Queue.Unbind)
def exchanges(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True)
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind(queue, "x", "a.*")
    channel.basic_publish("x", "a.b", b"1", mandatory=True)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
    channel.exchange_declare("y", "fanout", durable=True)
    channel.exchange_bind("x", "y")
    channel.basic_publish("y", "a.c", b"2", mandatory=True)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"2"
    channel.exchange_unbind("x", "y")
    channel.queue_unbind(queue, "x", "a.*")
    channel.exchange_delete("x")
    with pytest.raises(ChannelClosedByBroker, match="404"):
        channel.exchange_declare("x", passive=True)


@amqp(Tx.Select, Tx.Commit, Tx.Rollback)
def transactions(open_channel: Channels, queue: str) -> None:
    open_channel().queue_declare(queue, durable=True)
    open_channel().basic_publish("", queue, b"task")
    channel = open_channel(confirm=False)
    channel.tx_select()
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", queue, b"result")
    channel.tx_commit()
    channel.basic_publish("", queue, b"never")
    channel.tx_rollback()
    assert channel.basic_get(queue)[2] == b"result"
    assert channel.basic_get(queue)[0] is None


@amqp(Basic.Recover)
def recover(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, b"1")
    assert channel.basic_get(queue)[2] == b"1"
    channel.basic_recover(requeue=True)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"1", True)


@amqp(Basic.Qos, Basic.Consume)
def streams(open_channel: Channels, queue: str) -> None:
    channel = open_channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body)
    channel.basic_qos(prefetch_count=10)
    inbox = Inbox(channel, queue, arguments={"x-stream-offset": "first"})
    inbox.wait(2)
    assert inbox.bodies == [b"1", b"2"]
    group = {"x-stream-offset": "first", "x-consumer-group": "readers", "x-auto-commit": False}
    readers = Inbox(channel, queue, arguments=group)
    readers.wait(2)
    commit = pika.BasicProperties(headers={"x-group-id": "readers", "x-offset": 1})
    channel.basic_publish("", f"$queue/{queue}/$commit", b"", commit)
    for channel_inbox in (inbox, readers):
        channel.basic_cancel(channel_inbox.tag)


@amqp(Queue.Declare, Basic.Get)
def exclusive(open_channel: Channels, queue: str) -> None:
    channel, other = open_channel(), open_channel()
    channel.queue_declare(queue, exclusive=True)
    other.basic_publish("", queue, b"answer")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"answer"
    with pytest.raises(ChannelClosedByBroker, match="405"):
        other.basic_get(queue)


def test_every_amqp_method_has_a_story() -> None:
    offered = {*METHODS, events.Publish, events.Ack, events.Nack, events.Reject}
    assert offered == set().union(*AMQP.values(), AMQP_EXEMPT)


@pytest.mark.parametrize("story", AMQP)
def test_amqp(story: AmqpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[type] = set()
    for name in ("publish", "settle", "method"):
        _record(monkeypatch, Channel, name, lambda event: sent.add(type(event)))

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
    assert AMQP[story] <= sent


def _record(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, note: Callable[[Any], None]) -> None:
    """Note what a method of a front is given."""
    original = getattr(kind, name)

    def noting(self: object, given: Any) -> object:
        note(given)
        return original(self, given)

    monkeypatch.setattr(kind, name, noting)


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
MQTT: Final[dict[MqttCase, frozenset[type]]] = {}
"""Stories, and the packets that their clients send."""
MQTT_EXEMPT: Final = {packets.Lost: "no packet: the connection has broken"}


def mqtt(*kinds: type) -> Callable[[MqttCase], MqttCase]:
    def add(story: MqttCase) -> MqttCase:
        MQTT[story] = frozenset(kinds)
        return story

    return add


@mqtt(packets.Connect, packets.Subscribe, packets.Publish, packets.PubAck, packets.Disconnect)
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


@mqtt(packets.Subscribe, packets.Publish, packets.Unsubscribe)
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


@mqtt(packets.Publish, packets.PubRec, packets.PubRel, packets.PubComp)
async def mqtt_exactly_once(client: Callable[[str], Awaitable[Client]], owner: LocalBroker, queue: str) -> None:
    subscriber, publisher = await client("subscriber"), await client("publisher")
    assert await subscriber.subscribe("once/#", qos=2) == [2]
    assert await publisher.publish("once/a", b"1", qos=2) == 0
    assert (await subscriber.message()).payload == b"1"
    await subscriber.silent()


@mqtt(packets.Subscribe, packets.PubAck)
async def mqtt_streams(client: Callable[[str], Awaitable[Client]], owner: LocalBroker, queue: str) -> None:
    await owner.declare_queue(queue, stream=True)
    await owner.publish_many(queue, [Message(b"1"), Message(b"2")])
    reader = await client("reader")
    given = {"consumer-group": "readers", "x-stream-offset": "first"}
    assert await reader.subscribe(f"$queue/{queue}/#", qos=1, properties=given) == [1]
    read = [await reader.message() for _ in range(2)]
    assert [message.payload for message in read] == [b"1", b"2"]
    assert await _settle(reader, read[1], queue, "$ack") == 0
    assert [group.lag for group in (await owner.stats(queue)).groups if group.group == "readers"] == [0]


def test_every_mqtt_packet_has_a_story() -> None:
    assert set(get_args(packets.Event)) == set().union(*MQTT.values(), MQTT_EXEMPT)


@pytest.mark.parametrize("story", MQTT)
def test_mqtt(story: MqttCase, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[type] = set()
    _record(monkeypatch, Connection, "take_in", lambda events: sent.update(map(type, events)))

    async def scene() -> None:
        async with two_nodes() as (asked, owner, _):
            server = MqttServer(asked, MqttOptions(port=0, websocket=False))
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
    assert MQTT[story] <= sent
