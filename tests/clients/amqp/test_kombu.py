"""kombu on py-amqp: the library under Celery, and its own patterns."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from amqp.exceptions import NotFound, PreconditionFailed
from kombu import Connection, Consumer, Exchange, Producer, Queue

from tests.clients.amqp.rig import DEADLINE_SECONDS, Address, unique


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    with Connection(address.url, transport_options={"confirm_publish": True}) as connection:
        yield connection


def receive(connection: Connection, found: list[Any], number: int) -> None:
    while len(found) < number:
        connection.drain_events(timeout=DEADLINE_SECONDS)


def test_producers_and_consumers(connection: Connection) -> None:
    exchange = Exchange(unique("tasks"), "topic", durable=True)
    queue = Queue(unique("video"), exchange, routing_key="video.#", durable=True)
    producer = Producer(connection, serializer="json")
    for number in range(20):
        producer.publish(
            {"number": number},
            exchange=exchange,
            routing_key="video.new",
            declare=[queue],
            headers={"n": number},
            retry=True,
        )
    found: list[Any] = []

    def on_message(body: Any, message: Any) -> None:
        found.append((body["number"], message.headers["n"], message.delivery_info["routing_key"]))
        message.ack()

    with Consumer(connection, [queue], callbacks=[on_message], accept=["json"], prefetch_count=5):
        receive(connection, found, 20)
    assert found == [(number, number, "video.new") for number in range(20)]
    bound = queue(connection.channel())
    assert bound.queue_declare(passive=True).message_count == 0
    bound.delete()
    exchange(connection.channel()).delete()


def test_simple_queues_with_compression(connection: Connection) -> None:
    name = unique("simple")
    with connection.SimpleQueue(name) as queue:
        queue.put({"text": "ünï" * 1000}, compression="zlib")
        message = queue.get(timeout=DEADLINE_SECONDS)
        assert message.payload == {"text": "ünï" * 1000}
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)
    connection.channel().queue_delete(name)


def test_requeue_and_reject(connection: Connection) -> None:
    channel = connection.channel()
    queue = Queue(unique("q"), exclusive=True)(channel)
    queue.declare()
    Producer(channel).publish("hello", routing_key=queue.name)
    message = queue.get()
    assert message is not None
    assert not message.delivery_info["redelivered"]
    message.requeue()
    again = queue.get()
    assert again is not None
    assert again.delivery_info["redelivered"]
    again.reject()
    assert queue.get() is None


def test_errors_are_the_ones_of_the_protocol(connection: Connection) -> None:
    with pytest.raises(NotFound):
        connection.channel().queue_declare(unique("missing"), passive=True)
    name = unique("q")
    connection.channel().queue_declare(name, durable=True, auto_delete=False)
    with pytest.raises(PreconditionFailed):
        connection.channel().queue_declare(name, durable=False, auto_delete=False)
    connection.channel().queue_delete(name)


def test_heartbeats(address: Address) -> None:
    with Connection(address.url, heartbeat=2) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 2
        for _ in range(3):
            connection.heartbeat_check(rate=1)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.2)
        assert connection.connected


def test_what_the_server_says_of_itself(connection: Connection) -> None:
    connection.connect()
    # With this, kombu and so Celery know what `global` means in basic.qos.
    assert not connection.qos_semantics_matches_spec
    capabilities = connection.connection.server_capabilities
    assert capabilities["publisher_confirms"]
    assert capabilities["consumer_cancel_notify"]
