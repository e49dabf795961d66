"""Messages past 16 MiB, and deliveries to clients that do not read: in bounded memory, and in their turn."""

from __future__ import annotations

import os
import socket

import pytest
from pamqp import commands
from pamqp.body import ContentBody
from pika.exceptions import ChannelClosedByBroker

from penstock import Message
from penstock.fronts.answers import Answers
from penstock.node.broker import LocalBroker
from tests.fronts.amqp091.rig import Raw, Served, served, waited

MIB = 1024 * 1024


def consume(place: Served, *queues: str) -> Raw:
    """A client that asks for messages of each queue on a channel of its own, and then reads nothing more."""
    client = Raw(place, opens=len(queues))
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    for channel, queue in enumerate(queues, 1):
        client.send(channel, commands.Basic.Consume(0, queue, "", no_ack=False))
        client.hear(commands.Basic.ConsumeOk)
    return client


def fill(place: Served, queue: str, size: int, count: int = 1) -> bytes:
    """Declare a queue, and publish messages to it."""
    payload = os.urandom(size)

    async def publish(broker: LocalBroker) -> None:
        await broker.declare_queue(queue)
        await broker.declare_group(queue, "default")
        for _ in range(count):
            await broker.publish(queue, Message(payload))

    place.call(publish)
    return payload


def is_ready(place: Served, queue: str, count: int) -> bool:
    """Whether a queue has so many messages that nobody holds."""

    async def look(broker: LocalBroker) -> bool:
        return (await broker.stats(queue)).groups[0].ready == count

    return place.call(look)


def test_a_message_as_large_as_is_configured_goes_through_and_one_byte_more_does_not() -> None:
    most = 20 * MIB
    with served(message_bytes=most) as place:
        channel = place.connect().channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for payload in (os.urandom(MIB) * 20, bytes(most)):
            channel.basic_publish("", "q", payload)
            _, _, body = channel.basic_get("q", auto_ack=True)
            assert body == payload
        with pytest.raises(ChannelClosedByBroker, match=f"{most + 1} bytes; at most {most}"):
            channel.basic_publish("", "q", bytes(most + 1))


def test_the_frame_limit_does_not_bound_a_message() -> None:
    payload = os.urandom(3 * MIB)
    with served(message_bytes=4 * MIB, max_frame_bytes=8 * 1024) as place:
        channel = place.connect().channel()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", payload)
        place.call(lambda broker: broker.publish("q", Message(payload)))
        received = [body for _, _, body in [channel.basic_get("q", auto_ack=True) for _ in range(2)]]
        assert received == [payload, payload]


def test_large_deliveries_wait_for_a_client_that_does_not_read_its_own() -> None:
    answers = Answers(8 * MIB)
    with served(answers=answers) as place:
        fill(place, "one", 7 * MIB)
        fill(place, "two", 7 * MIB)
        fill(place, "small", 10)
        slow = consume(place, "one")
        waited(lambda: answers.bytes > 0)
        waiting = consume(place, "two")
        waited(lambda: answers.waiting == 1)
        quick = consume(place, "small")
        quick.hear(commands.Basic.Deliver)
        quick.close()
        slow.close()
        waited(lambda: answers.waiting == 0)
        waiting.close()
        waited(lambda: answers.bytes == 0)
        waited(lambda: is_ready(place, "one", 1) and is_ready(place, "two", 1))


def test_a_client_that_goes_leaves_the_line_and_gives_its_message_back() -> None:
    answers = Answers(8 * MIB)
    with served(answers=answers) as place:
        fill(place, "one", 7 * MIB)
        payload = fill(place, "two", 7 * MIB)
        slow = consume(place, "one")
        waited(lambda: answers.bytes > 0)
        waiting = consume(place, "two")
        waited(lambda: answers.waiting == 1)
        waiting.close()
        waited(lambda: answers.waiting == 0 and is_ready(place, "two", 1))
        slow.close()
        assert place.connect().channel().basic_get("two", auto_ack=True)[2] == payload


def test_a_client_that_takes_nothing_is_closed_and_its_message_comes_back() -> None:
    answers = Answers(8 * MIB, seconds=1.0)
    with served(answers=answers) as place:
        payload = fill(place, "q", 7 * MIB)
        slow = consume(place, "q")
        waited(lambda: answers.bytes > 0)
        waited(lambda: not place.server.connections)
        assert answers.bytes == 0
        assert place.connect().channel().basic_get("q", auto_ack=True)[2] == payload
        slow.close()


def test_what_is_claimed_for_a_connection_that_is_full_goes_back() -> None:
    with served() as place:
        fill(place, "first", 900 * 1024, 0)
        fill(place, "second", 900 * 1024, 0)
        slow = consume(place, "first", "second")
        fill(place, "first", 900 * 1024, 40)
        [connection] = place.server.connections
        waited(lambda: connection.is_full)
        fill(place, "second", 900 * 1024, 40)
        waited(lambda: is_ready(place, "second", 40))
        assert connection._transport.get_write_buffer_size() < 20 * MIB
        slow.close()


def test_what_is_claimed_and_acknowledged_for_a_connection_that_is_full_waits() -> None:
    answers = Answers()
    with served(answers=answers) as place:
        fill(place, "q", 900 * 1024, 40)
        client = Raw(place)
        client.send(1, commands.Basic.Consume(0, "q", "", no_ack=True))
        client.hear(commands.Basic.ConsumeOk)
        bodies = [one for _ in range(40) for one in client.hear_until(commands.Basic.Deliver)]
        assert len([one for one in bodies if isinstance(one, commands.Basic.Deliver)]) == 40
        client.hear_until(ContentBody)
        waited(lambda: (answers.bytes, answers.waiting) == (0, 0))
        client.close()
