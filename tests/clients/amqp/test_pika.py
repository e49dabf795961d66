"""pika's blocking connection: what a program does with a broker, line by line as RabbitMQ answers it."""

from __future__ import annotations

import datetime as dt
import decimal
import socket
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.clients.amqp.rig import Address, count, drain, get, pump, unique, until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def refused(code: int, ask: Callable[[], Any]) -> str:
    """The broker closes the channel with this code; its text."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        ask()
    assert caught.value.reply_code == code
    return str(caught.value.reply_text)


def declared(channel: BlockingChannel, prefix: str = "q", **options: Any) -> str:
    queue = unique(prefix)
    channel.queue_declare(queue, **options)
    return queue


def send(channel: BlockingChannel, queue: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def test_what_is_confirmed_can_be_got(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    queue = declared(channel, durable=True)
    send(channel, queue, "one", "two")
    assert count(channel, queue) == 2
    method, _, body = get(channel, queue)
    assert (body, method.message_count, method.redelivered, method.routing_key) == (b"one", 1, False, queue)
    channel.basic_ack(method.delivery_tag)
    assert get(channel, queue, auto_ack=True)[2] == b"two"
    assert channel.basic_get(queue) == (None, None, None)


def test_properties_and_headers_come_back_as_they_went(channel: BlockingChannel) -> None:
    queue = declared(channel, durable=True)
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={
            "text": "ünï",
            "number": 5,
            "big": 2**40,
            "negative": -7,
            "yes": True,
            "nothing": None,
            "bytes": b"\x00\xff",
            "price": decimal.Decimal("12.50"),
            "at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
            "list": [1, "two", {"three": 3}],
            "table": {"nested": {"deep": "value"}},
            "amqp": "a name that the broker uses itself",
        },
        delivery_mode=2,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="id-1",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="tests",
        cluster_id="",
    )
    channel.basic_publish("", queue, b"\x00\x01\xff", sent)
    _, got, body = get(channel, queue)
    assert body == b"\x00\x01\xff"
    for name in vars(sent):
        assert getattr(got, name) == getattr(sent, name), name


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3_000_000])
def test_bodies_of_all_sizes(channel: BlockingChannel, size: int) -> None:
    queue = declared(channel)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    channel.basic_publish("", queue, body)
    assert get(channel, queue)[2] == body


@pytest.mark.parametrize("name", ["ünï q?*", "x" * 255, "with spaces / and # slashes", "💧" * 20])
def test_names_that_are_any_text(channel: BlockingChannel, name: str) -> None:
    channel.queue_delete(name)
    assert channel.queue_declare(name).method.queue == name
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.queue_bind(name, name, routing_key="#")
    channel.basic_publish(name, name, b"hello")
    [(method, _, body)] = drain(channel, name, 1)
    assert (method.exchange, method.routing_key, body) == (name, name, b"hello")
    channel.queue_delete(name)


def test_unroutable_and_mandatory_is_returned(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", unique("nowhere"), b"lost", PERSISTENT, mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text, returned.body) == (312, "NO_ROUTE", b"lost")
    channel.basic_publish("", unique("nowhere"), b"lost", PERSISTENT)


def test_errors_cost_the_channel_and_only_it(connection: BlockingConnection) -> None:
    other = connection.channel()
    queue = declared(other, durable=True)
    missing = unique("missing")
    problems: list[tuple[int, Callable[[BlockingChannel], Any]]] = [
        (404, lambda channel: channel.queue_declare(missing, passive=True)),
        (404, lambda channel: channel.exchange_declare(missing, passive=True)),
        (404, lambda channel: channel.basic_get(missing)),
        (404, lambda channel: channel.basic_consume(missing, lambda *_: None)),
        (404, lambda channel: channel.queue_bind(queue, missing)),
        (406, lambda channel: channel.queue_declare(queue, durable=False)),
        (406, lambda channel: channel.queue_declare(queue, durable=True, arguments={"x-max-length": 5})),
        (406, lambda channel: channel.exchange_declare("amq.topic", "direct", durable=True)),
        (403, lambda channel: channel.exchange_declare("amq.mine", "direct")),
        (403, lambda channel: channel.queue_declare("amq.mine")),
        (403, lambda channel: channel.exchange_delete("amq.topic")),
        (406, lambda channel: channel.queue_declare(unique("q"), arguments={"x-message-ttl": "soon"})),
        (406, lambda channel: channel.queue_declare(unique("q"), arguments={"x-message-ttl": -1})),
    ]
    for code, ask in problems:
        channel = connection.channel()
        refused(code, lambda ask=ask, channel=channel: ask(channel))  # type: ignore[misc]
        assert other.is_open
    channel = connection.channel()
    channel.basic_publish(missing, "key", b"x")
    refused(404, lambda: channel.basic_get(queue))
    channel = connection.channel()
    channel.basic_ack(77)
    refused(406, lambda: channel.basic_get(queue))
    assert count(other, queue) == 0


def test_requeued_comes_again_in_its_place(channel: BlockingChannel) -> None:
    queue = declared(channel)
    send(channel, queue, "a", "b", "c")
    first, _, _ = get(channel, queue)
    assert not first.redelivered
    channel.basic_nack(first.delivery_tag, requeue=True)
    again, _, body = get(channel, queue)
    assert (body, again.redelivered) == (b"a", True)
    channel.basic_reject(again.delivery_tag, requeue=True)
    tags = [get(channel, queue)[0].delivery_tag for _ in range(3)]
    assert channel.basic_get(queue)[0] is None
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert [body for _, _, body in drain(channel, queue, 3)] == [b"a", b"b", b"c"]


def test_acking_many_at_once(channel: BlockingChannel) -> None:
    queue = declared(channel)
    send(channel, queue, *"abcde")
    tags = [get(channel, queue)[0].delivery_tag for _ in range(5)]
    channel.basic_ack(tags[2], multiple=True)
    channel.basic_recover(requeue=True)
    assert [body for _, _, body in drain(channel, queue, 2)] == [b"d", b"e"]


def test_what_a_closed_channel_held_comes_back_at_once(connection: BlockingConnection, address: Address) -> None:
    first, second = connection.channel(), connection.channel()
    queue = declared(second)
    send(second, queue, "a", "b")
    for _ in range(2):
        get(first, queue)
    first.close()
    method, _, body = get(second, queue)
    assert (body, method.redelivered) == (b"a", True)
    second.basic_ack(method.delivery_tag)
    other = address.connect()
    get(other.channel(), queue)
    # As if its process had died: without a word.
    other._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pump(other, lambda: False, "it notices that it is gone")
    method, _, body = get(second, queue)
    assert (body, method.redelivered) == (b"b", True)


def test_prefetch_one_is_fair(connection: BlockingConnection) -> None:
    channel = connection.channel()
    queue = declared(channel)
    got: dict[str, list[tuple[BlockingChannel, int, bytes]]] = {"slow": [], "fast": []}

    def consume(name: str) -> None:
        own = connection.channel()
        own.basic_qos(prefetch_count=1)
        own.basic_consume(queue, lambda ch, method, _, body: got[name].append((ch, method.delivery_tag, body)))

    consume("slow")
    send(channel, queue, "a")
    pump(connection, lambda: got["slow"], "the first message")
    consume("fast")
    send(channel, queue, "b", "c", "d")
    for number in range(1, 4):
        pump(connection, lambda number=number: len(got["fast"]) == number, f"message {number}")  # type: ignore[misc]
        own, tag, _ = got["fast"][-1]
        own.basic_ack(tag)
    assert [body for _, _, body in got["slow"]] == [b"a"]
    assert [body for _, _, body in got["fast"]] == [b"b", b"c", b"d"]


def test_global_prefetch_is_of_all_consumers_together(connection: BlockingConnection) -> None:
    channel = connection.channel()
    queues = [declared(channel), declared(channel)]
    got: list[int] = []
    own = connection.channel()
    own.basic_qos(prefetch_count=3, global_qos=True)
    for queue in queues:
        send(channel, queue, *"abc")
        own.basic_consume(queue, lambda _, method, __, ___: got.append(method.delivery_tag))
    pump(connection, lambda: len(got) == 3, "three messages")
    # A round trip later there are still no more.
    count(channel, queues[0])
    connection.process_data_events(time_limit=0.1)
    assert len(got) == 3
    own.basic_ack(got[-1], multiple=True)
    pump(connection, lambda: len(got) == 6, "the other three")


def test_exclusive_queues(address: Address, channel: BlockingChannel) -> None:
    other = address.connect()
    queue = other.channel().queue_declare("", exclusive=True).method.queue
    assert queue.startswith("amq.gen-")
    refused(405, lambda: channel.queue_declare(queue, passive=True))
    other.close()
    with address.connect() as again:

        def is_gone() -> bool:
            try:
                again.channel().queue_declare(queue, passive=True)
            except ChannelClosedByBroker as closed:
                return bool(closed.reply_code == 404)
            return False

        until(is_gone, "the queue is gone with its connection")


def test_exclusive_consumers(connection: BlockingConnection) -> None:
    first, second = connection.channel(), connection.channel()
    queue = declared(first)
    tag = first.basic_consume(queue, lambda *_: None, exclusive=True)
    refused(403, lambda: second.basic_consume(queue, lambda *_: None))
    first.basic_cancel(tag)
    connection.channel().basic_consume(queue, lambda *_: None)


def test_auto_delete_queues_go_with_their_last_consumer(connection: BlockingConnection) -> None:
    channel = connection.channel()
    queue = declared(channel, auto_delete=True)
    assert count(channel, queue) == 0
    tag = channel.basic_consume(queue, lambda *_: None)
    channel.basic_cancel(tag)
    refused(404, lambda: channel.queue_declare(queue, passive=True))


def test_deleting_a_queue_tells_its_consumers(connection: BlockingConnection) -> None:
    channel = connection.channel()
    queue = declared(channel)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    refused(406, lambda: connection.channel().queue_delete(queue, if_unused=True))
    connection.channel().queue_delete(queue)
    pump(connection, lambda: cancelled == [tag], "the cancellation")


def test_counts(channel: BlockingChannel, connection: BlockingConnection) -> None:
    queue = declared(channel)
    send(channel, queue, *"abcde")
    assert count(channel, queue) == 5  # what one channel publishes has no order with what another asks
    refused(406, lambda: connection.channel().queue_delete(queue, if_empty=True))
    assert channel.queue_purge(queue).method.message_count == 5
    send(channel, queue, *"ab")
    tag = channel.basic_consume(queue, lambda *_: None)
    declared_again = channel.queue_declare(queue).method
    assert (declared_again.message_count, declared_again.consumer_count) == (0, 1)
    channel.basic_cancel(tag)
    channel.basic_recover(requeue=True)
    assert channel.queue_delete(queue).method.message_count == 2
    assert channel.queue_delete(queue).method.message_count == 0


def test_exchanges(channel: BlockingChannel) -> None:
    names = {kind: unique(kind) for kind in ("direct", "topic", "fanout", "headers")}
    queues = {kind: declared(channel, kind) for kind in names}
    for kind, name in names.items():
        channel.exchange_declare(name, kind, auto_delete=True)
    channel.queue_bind(queues["direct"], names["direct"], "red")
    channel.queue_bind(queues["topic"], names["topic"], "*.red.#")
    channel.queue_bind(queues["fanout"], names["fanout"])
    matching = {"x-match": "all", "colour": "red", "size": 5}
    channel.queue_bind(queues["headers"], names["headers"], arguments=matching)
    for kind, key, headers in [
        ("direct", "red", {}),
        ("direct", "blue", {}),
        ("topic", "deep.red.rose", {}),
        ("topic", "red", {}),
        ("fanout", "anything", {}),
        ("headers", "", {"colour": "red", "size": 5, "more": True}),
        ("headers", "", {"colour": "red"}),
    ]:
        channel.basic_publish(names[kind], key, f"{kind} {key}", pika.BasicProperties(headers=headers))
    for kind, body in [
        ("direct", b"direct red"),
        ("topic", b"topic deep.red.rose"),
        ("fanout", b"fanout anything"),
        ("headers", b"headers "),
    ]:
        assert get(channel, queues[kind], auto_ack=True)[2] == body
        assert count(channel, queues[kind]) == 0
        channel.queue_unbind(
            queues[kind],
            names[kind],
            {"direct": "red", "topic": "*.red.#"}.get(kind, ""),
            matching if kind == "headers" else None,
        )
    # Their last binding is gone, and so are they.
    refused(404, lambda: channel.exchange_declare(names["direct"], passive=True))


def test_exchanges_bound_to_exchanges_and_alternates(channel: BlockingChannel) -> None:
    source, middle, alternate = unique("source"), unique("middle"), unique("alternate")
    first, rest = declared(channel), declared(channel)
    channel.exchange_declare(alternate, "fanout")
    channel.exchange_declare(source, "topic", arguments={"alternate-exchange": alternate})
    channel.exchange_declare(middle, "direct")
    channel.exchange_bind(middle, source, "orders.#")
    channel.queue_bind(first, middle, "orders.new")
    channel.queue_bind(rest, alternate)
    channel.basic_publish(source, "orders.new", b"routed")
    channel.basic_publish(source, "other", b"not routed")
    assert get(channel, first)[2] == b"routed"
    method, _, body = get(channel, rest)
    assert (body, method.exchange) == (b"not routed", source)
    channel.exchange_unbind(middle, source, "orders.#")
    channel.basic_publish(source, "orders.new", b"again")
    assert get(channel, rest)[2] == b"again"


def test_dead_letters_tell_their_history(channel: BlockingChannel) -> None:
    dead_exchange = unique("dead")
    dead = declared(channel, "graves")
    channel.exchange_declare(dead_exchange, "fanout")
    channel.queue_bind(dead, dead_exchange)
    arguments = {"x-dead-letter-exchange": dead_exchange, "x-dead-letter-routing-key": "late"}
    queue = declared(channel, arguments=arguments)
    send(channel, queue, "rejected", headers={"mine": 1}, message_id="7")
    channel.basic_reject(get(channel, queue)[0].delivery_tag, requeue=False)
    method, properties, body = get(channel, dead)
    assert (body, method.routing_key, method.exchange) == (b"rejected", "late", dead_exchange)
    assert properties.message_id == "7"
    assert properties.headers["mine"] == 1
    assert properties.headers["x-first-death-queue"] == queue
    assert properties.headers["x-first-death-reason"] == "rejected"
    [death] = properties.headers["x-death"]
    assert death["queue"] == queue
    assert death["reason"] == "rejected"
    assert death["count"] == 1
    assert death["exchange"] == ""
    assert death["routing-keys"] == [queue]
    assert isinstance(death["time"], dt.datetime)
    send(channel, queue, "expired", expiration="1")
    _, properties, body = get(channel, dead)
    assert body == b"expired"
    assert properties.headers["x-death"][0]["reason"] == "expired"
    assert properties.headers["x-death"][0]["original-expiration"] == "1"
    assert properties.expiration is None


def test_times_and_limits(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    short = declared(channel, arguments={"x-message-ttl": 1})
    channel.basic_publish("", short, b"gone soon")
    until(lambda: count(channel, short) == 0, "the message expires")
    oldest = declared(channel, arguments={"x-max-length": 2})
    send(channel, oldest, *"abc")
    assert [body for _, _, body in drain(channel, oldest, 2)] == [b"b", b"c"]
    full = declared(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", full, b"a")
    with pytest.raises(NackError):
        channel.basic_publish("", full, b"b")
    unused = declared(channel, arguments={"x-expires": 50})
    started = time.monotonic()

    def is_gone() -> bool:
        with channel.connection.channel() as probe:
            try:
                probe.queue_declare(unused, passive=True)
            except ChannelClosedByBroker:
                return True
        return time.monotonic() - started > 10

    time.sleep(0.2)  # A probe would be a use: nobody may look for so long.
    until(is_gone, "the unused queue is gone")


def test_priorities(channel: BlockingChannel) -> None:
    queue = declared(channel, arguments={"x-max-priority": 5})
    for priority in (0, 3, 9, 1):
        send(channel, queue, str(priority), priority=priority)
    send(channel, queue, "none")
    assert [body for _, _, body in drain(channel, queue, 5)] == [b"9", b"3", b"1", b"0", b"none"]


def test_transactions(connection: BlockingConnection) -> None:
    channel, other = connection.channel(), connection.channel()
    queue = declared(other)
    channel.tx_select()
    send(channel, queue, "a", "b")
    assert count(other, queue) == 0
    channel.tx_commit()
    assert count(other, queue) == 2
    send(channel, queue, "c")
    method, _, _ = get(channel, queue)
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    assert [body for _, _, body in drain(other, queue, 1)] == [b"b"]
    assert count(other, queue) == 0


def test_published_and_closed_is_published(address: Address, channel: BlockingChannel) -> None:
    """A program that publishes, closes and ends, without confirms: the next one finds its messages."""
    queue = declared(channel, durable=True)
    for number in range(5):
        with address.connect() as connection:
            own = connection.channel()
            for index in range(20):
                own.basic_publish("", queue, f"{number} {index}", PERSISTENT)
        assert count(channel, queue) == 20 * (number + 1)


def test_a_thousand_in_order(channel: BlockingChannel) -> None:
    queue = declared(channel)
    bodies = [str(number).encode() for number in range(1000)]
    for body in bodies:
        channel.basic_publish("", queue, body)
    channel.basic_qos(prefetch_count=100)
    found: list[bytes] = []

    def take(_: Any, method: Any, __: Any, body: bytes) -> None:
        found.append(body)
        if len(found) % 50 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)

    channel.basic_consume(queue, take)
    pump(channel.connection, lambda: len(found) == 1000, "all of them")
    assert found == bodies


def test_heartbeats_keep_an_idle_connection(address: Address) -> None:
    with address.connect(heartbeat=1) as connection:
        channel = connection.channel()
        connection.sleep(2.5)
        assert channel.is_open
        declared(channel, auto_delete=True)


def test_a_wrong_vhost_is_refused(address: Address) -> None:
    parameters = address.parameters(virtual_host="\x00 no such place")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        BlockingConnection(parameters)
