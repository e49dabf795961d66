"""pika's asynchronous connection: everything pipelined, confirms and deliveries as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pika
from pika.adapters.select_connection import SelectConnection

from tests.clients.amqp.rig import DEADLINE_SECONDS, Address, unique

MESSAGES: Final = 3000


class Program:
    """Publishes with confirms on one channel and consumes on another, on one connection, without ever waiting."""

    def __init__(self, address: Address) -> None:
        self.queue = unique("select")
        self.confirmed = 0
        self.confirm_frames = 0
        self.refused = 0
        self.bodies: list[bytes] = []
        self.reason: Any = None
        self.connection = SelectConnection(
            address.parameters(), on_open_callback=self.on_open, on_close_callback=self.on_close
        )

    def run(self) -> None:
        self.connection.ioloop.call_later(DEADLINE_SECONDS, self.connection.ioloop.stop)
        self.connection.ioloop.start()
        self.connection.ioloop.close()

    def on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self.on_publisher)

    def on_publisher(self, channel: Any) -> None:
        self.publisher = channel
        channel.confirm_delivery(self.on_confirm)
        channel.queue_declare(self.queue, durable=True, callback=lambda _: self.publish())

    def publish(self) -> None:
        for number in range(MESSAGES):
            self.publisher.basic_publish("", self.queue, str(number), pika.BasicProperties(delivery_mode=2))
        self.connection.channel(on_open_callback=self.on_consumer)

    def on_consumer(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=200, callback=lambda _: channel.basic_consume(self.queue, self.on_message))

    def on_confirm(self, frame: Any) -> None:
        self.confirm_frames += 1
        if type(frame.method).__name__ != "Ack":
            self.refused += 1
        elif frame.method.multiple:
            self.confirmed = frame.method.delivery_tag
        else:
            self.confirmed += 1
        self.end_if_done()

    def on_message(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        self.bodies.append(body)
        if len(self.bodies) % 100 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        self.end_if_done()

    def end_if_done(self) -> None:
        if self.confirmed == MESSAGES and len(self.bodies) == MESSAGES and self.connection.is_open:
            self.publisher.queue_delete(self.queue, callback=lambda _: self.connection.close())

    def on_close(self, connection: Any, reason: Any) -> None:
        self.reason = reason
        connection.ioloop.stop()


def test_publishing_and_consuming_without_waiting(address: Address) -> None:
    program = Program(address)
    program.run()
    assert (program.confirmed, program.refused) == (MESSAGES, 0)
    assert program.bodies == [str(number).encode() for number in range(MESSAGES)]
    assert program.reason.reply_code == 200


def closing_code(address: Address, misuse: Callable[[Any], None]) -> int:
    """What the broker closes the connection with when a client misuses it so."""
    reasons: list[Any] = []

    def on_close(connection: Any, reason: Any) -> None:
        reasons.append(reason)
        connection.ioloop.stop()

    def on_open(connection: Any) -> None:
        connection.channel(on_open_callback=misuse)

    connection = SelectConnection(address.parameters(), on_open_callback=on_open, on_close_callback=on_close)
    connection.ioloop.call_later(DEADLINE_SECONDS, connection.ioloop.stop)
    connection.ioloop.start()
    connection.ioloop.close()
    [reason] = reasons
    code = reason.reply_code
    assert isinstance(code, int)
    return code


def test_misuse_costs_the_connection_with_the_right_code(address: Address) -> None:
    unopened = pika.frame.Method(999, pika.spec.Basic.Qos(prefetch_count=1))
    assert closing_code(address, lambda channel: channel.connection._send_frame(unopened)) == 504
    body = pika.frame.Body(1, b"x")
    assert closing_code(address, lambda channel: channel.connection._send_frame(body)) == 505
    answer = pika.frame.Method(1, pika.spec.Queue.DeclareOk("q", 0, 0))
    assert closing_code(address, lambda channel: channel.connection._send_frame(answer)) in (503, 540)
