"""`penstock serve` with AMQP clients: restarts and kills, the token, other protocols, back-pressure, many clients."""

from __future__ import annotations

import base64
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ProbableAuthenticationError

from penstock.wire.amqp091.codes import PROTOCOL_HEADER
from tests.cli.servers import Server
from tests.clients.amqp.rig import ELSEWHERE, Address, count, drain, get, pump, serving, unique

pytestmark = pytest.mark.skipif(bool(ELSEWHERE), reason="these start, stop and kill servers of their own")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Address]]:
    with serving(tmp_path_factory.mktemp("own")) as served:
        yield served


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_durable_is_there_after_a_restart(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as (server, address):
        connection = address.connect()
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("orders", durable=True, arguments={"x-max-priority": 3})
        channel.queue_bind("orders", "events", "orders.#")
        channel.queue_declare("passing", durable=False)
        for index in range(10):
            channel.basic_publish("events", f"orders.{index}", str(index), PERSISTENT)
        held, _, _ = get(channel, "orders")
        done, _, _ = get(channel, "orders")
        channel.basic_ack(done.delivery_tag)
        assert count(channel, "orders") == 8
        server.signal(number)
        with pytest.raises(AMQPConnectionError):
            pump(connection, lambda: False, "the server is gone")
        server.end()
    assert held.delivery_tag == 1
    with serving(tmp_path) as (_, address), closing(address.connect()) as connection:
        channel = connection.channel()
        found = drain(channel, "orders", 9)
        assert [(body, method.redelivered) for method, _, body in found] == [
            (str(index).encode(), index == 0) for index in (0, *range(2, 10))
        ]
        assert {method.exchange for method, _, _ in found} == {"events"}
        channel.basic_publish("events", "orders.new", b"still bound")
        assert get(channel, "orders")[2] == b"still bound"
        with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            connection.channel().queue_declare("passing", passive=True)


def test_the_token_is_the_password(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "http.token=open-sesame") as (_, address):
        right = pika.PlainCredentials("anybody", "open-sesame")
        with closing(address.connect(credentials=right)) as connection:
            connection.channel().queue_declare("q")
        wrong = pika.PlainCredentials("anybody", "open-sesam")
        with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
            address.connect(credentials=wrong)


def test_a_stop_says_goodbye(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, address):
        connection = address.connect()
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None)
        server.signal(signal.SIGTERM)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            pump(connection, lambda: False, "the goodbye")
        assert caught.value.reply_code == 320
        assert server.end() == 0


def test_messages_cross_between_http_and_amqp(own: tuple[Server, Address]) -> None:
    server, address = own
    queue = unique("crossing")
    with closing(address.connect()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        properties = pika.BasicProperties(
            content_type="text/plain", correlation_id="c-1", headers={"colour": "red", "size": 5}, delivery_mode=2
        )
        channel.basic_publish("", queue, "from AMQP", properties)
        status, answer = server.request("POST", f"/v1/queues/{queue}/claim", {"max": 1, "wait": 5, "ack": True})
        assert status == 200, answer
        [claimed] = answer["messages"]
        assert claimed["payload"] in ("from AMQP", {"$base64": base64.b64encode(b"from AMQP").decode()})
        assert claimed["headers"]["colour"] == "red"
        assert claimed["headers"]["size"] == 5
        assert claimed["correlation_id"] == "c-1"
        assert claimed["content_type"] == "text/plain"
        message = {"payload": "from HTTP", "headers": {"colour": "blue"}, "correlation_id": "c-2", "key": "k"}
        status, answer = server.request("POST", f"/v1/queues/{queue}/messages", {"messages": [message]})
        assert status in (200, 201), answer
        method, got, body = get(channel, queue)
        assert body == b"from HTTP"
        assert got.headers["colour"] == "blue"
        assert got.correlation_id == "c-2"
        assert method.routing_key == "k"


def raw(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout=20)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", PROTOCOL_HEADER + b"\xff" * 1000, b"\x00" * 100_000],
    ids=["http", "amqp 1.0", "garbage after the header", "zeros"],
)
def test_garbage_is_answered_and_hurts_nobody(own: tuple[Server, Address], garbage: bytes) -> None:
    server, address = own
    with closing(address.connect()) as connection:
        channel = connection.channel()
        with raw(address) as bad:
            bad.sendall(garbage)
            bad.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while part := bad.recv(65536):
                    answer += part
            except ConnectionResetError:
                pass  # It may still have been sending when it was closed.
        assert answer.startswith(PROTOCOL_HEADER) or b"\x00\x0a\x00\x0a" in answer[:20] or not answer
        assert channel.queue_declare("", exclusive=True).method.queue
    assert server.process.poll() is None


def test_many_clients_at_once(own: tuple[Server, Address]) -> None:
    """Eight programs publish and consume on one queue: every message comes once, to somebody."""
    _, address = own
    queue = unique("many")
    found: list[bytes] = []
    problems: list[BaseException] = []
    lock = threading.Lock()
    with closing(address.connect()) as setting_up:
        setting_up.channel().queue_declare(queue, durable=True)

        def program(name: int) -> None:
            try:
                with closing(address.connect()) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    channel.basic_qos(prefetch_count=10)

                    def take(ch: Any, method: Any, _: Any, body: bytes) -> None:
                        with lock:
                            found.append(body)
                        ch.basic_ack(method.delivery_tag)

                    channel.basic_consume(queue, take)
                    for index in range(25):
                        channel.basic_publish("", queue, f"{name} {index}", PERSISTENT)
                    pump(connection, lambda: len(found) >= 200, "all messages")
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=program, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert problems == []
        assert sorted(found) == sorted(f"{name} {index}".encode() for name in range(8) for index in range(25))
        assert count(setting_up.channel(), queue) == 0


def test_messages_that_are_too_large_are_refused(tmp_path: Path) -> None:
    limit = ("--set", "amqp.max_message_bytes=100000")
    with serving(tmp_path, *limit) as (_, address), closing(address.connect()) as connection:
        channel, other = connection.channel(), connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", bytes(100_000))
        assert len(get(channel, "q", auto_ack=True)[2]) == 100_000
        channel.basic_publish("", "q", bytes(100_001))
        with pytest.raises(ChannelClosedByBroker) as caught:
            get(channel, "q")
        assert caught.value.reply_code == 311
        assert count(other, "q") == 0
