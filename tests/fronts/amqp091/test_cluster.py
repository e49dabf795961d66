"""AMQP among several nodes: clients of one node use queues that another owns, with pika, on a shared memory store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.amqp091.server import AmqpServer
from penstock.node.broker.cluster import ClusterBroker
from tests.fronts.amqp091.rig import PATIENCE_S, Inbox, until
from tests.scenarios.cluster.test_broker import reaching
from tests.scenarios.cluster.test_slots import SharedStore
from tests.scenarios.rig import until as until_true

Story = Callable[[Callable[[int], BlockingChannel]], None]


def play(story: Story) -> list[ClusterBroker]:
    """Tell a story with channels to the first and the second node; it is told in a thread."""
    brokers: list[ClusterBroker] = []

    async def scene() -> None:
        store = SharedStore()
        async with AsyncExitStack() as stack:
            servers = []
            clusters = []
            for name in ("one", "two"):
                broker, cluster = await stack.enter_async_context(reaching(store, name))
                server = AmqpServer(broker, AmqpOptions(port=0))
                await server.start()
                stack.push_async_callback(server.stop)
                servers.append(server)
                clusters.append(cluster)
                brokers.append(broker)
            await until_true(lambda: all(len(one.ownership.owned) == 32 for one in clusters))
            ports = [server.port for server in servers]
            await asyncio.to_thread(_told, story, ports)

    asyncio.run(asyncio.wait_for(scene(), 60))
    return brokers


def _told(story: Story, ports: list[int]) -> None:
    connections: list[pika.BlockingConnection] = []

    def channel(node: int) -> BlockingChannel:
        parameters = pika.ConnectionParameters("127.0.0.1", ports[node], socket_timeout=PATIENCE_S)
        connections.append(pika.BlockingConnection(parameters))
        made = connections[-1].channel()
        made.confirm_delivery()
        return made

    try:
        story(channel)
    finally:
        for connection in connections:
            if connection.is_open:
                connection.close()


def test_any_node_serves_any_queue() -> None:
    def story(channel: Callable[[int], BlockingChannel]) -> None:
        first, second = channel(0), channel(1)
        large = b"by the first" + os.urandom(200_000)
        for number in range(6):  # some are the first's, some the second's
            name = f"q{number}"
            first.queue_declare(name, durable=True)
            first.basic_publish("", name, large)
            second.basic_publish("", name, b"by the second")
            assert second.queue_declare(name, durable=True).method.message_count == 2
            inbox = Inbox(second, name)
            inbox.wait(2)
            assert sorted(inbox.bodies) == [large, b"by the second"]
            assert first.queue_declare(name, passive=True).method.consumer_count == 1
            second.basic_nack(inbox.deliveries[0][0].delivery_tag, requeue=True)
            inbox.wait(3)
            assert inbox.deliveries[2][0].redelivered
            for method, _, _ in inbox.deliveries[1:]:
                second.basic_ack(method.delivery_tag)
            second.basic_cancel(inbox.tag)
            assert first.queue_declare(name, passive=True).method.consumer_count == 0
            assert first.basic_get(name)[0] is None

    play(story)


def test_what_a_client_has_alone_is_used_by_others_and_goes_with_it() -> None:
    def story(channel: Callable[[int], BlockingChannel]) -> None:
        publisher = channel(1)
        clients = [channel(0) for _ in range(4)]
        names = [client.queue_declare("", exclusive=True).method.queue for client in clients]
        for client, name in zip(clients, names, strict=True):
            client.queue_bind(name, "amq.fanout")
        inboxes = [Inbox(client, name) for client, name in zip(clients, names, strict=True)]
        heard: list[Any] = []

        def told() -> bool:
            publisher.basic_publish("amq.fanout", "", b"m")
            for inbox in inboxes:
                inbox.channel.connection.process_data_events(0.01)
            heard[:] = [bool(inbox.deliveries) for inbox in inboxes]
            return all(heard)

        until(publisher, told)
        for client in clients:
            client.connection.close()
        for name in names:
            gone: list[int] = []
            probe = channel(1)
            try:
                probe.queue_declare(name, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                gone.append(error.reply_code)
            assert gone == [404]

    play(story)


def test_what_a_client_held_returns_to_whoever_owns_it() -> None:
    def story(channel: Callable[[int], BlockingChannel]) -> None:
        second = channel(1)
        for number in range(4):
            first = channel(0)
            name = f"q{number}"
            first.queue_declare(name, durable=True)
            first.basic_publish("", name, b"m")
            inbox = Inbox(first, name)
            inbox.wait(1)
            first.connection.close()
            method, _, _ = second.basic_get(name)
            assert method is not None
            assert method.redelivered

    play(story)
