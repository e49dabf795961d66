"""AMQP: exchanges, queues and bindings, with pika."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.exceptions import ConnectionClosedByBroker

from tests.fronts.amqp091.rig import Inbox, Raw, Served, closes, served, until, waited

# Queues --------------------------------------------------------------------------------------------------


def test_counts_are_true() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        assert channel.queue_declare("q", durable=True).method.queue == "q"
        for _ in range(3):
            channel.basic_publish("", "q", b"m")
        declared = channel.queue_declare("q", passive=True).method
        assert (declared.message_count, declared.consumer_count) == (3, 0)
        channel.basic_qos(prefetch_count=1)
        inbox = Inbox(channel, "q")
        inbox.wait(1)
        declared = channel.queue_declare("q", durable=True).method
        assert (declared.message_count, declared.consumer_count) == (2, 1)
        channel.basic_cancel(inbox.tag)
        assert channel.queue_declare("q", passive=True).method.consumer_count == 0
        assert channel.queue_purge("q").method.message_count == 2
        assert channel.queue_delete("q").method.message_count == 0
        assert channel.queue_delete("q").method.message_count == 0, "deleting what is not there is fine"


def test_a_passive_declare_of_what_is_not_there() -> None:
    with served() as place:
        with closes(404, "no queue 'gone' in vhost '/'"):
            place.channel().queue_declare("gone", passive=True)
        with closes(404, "no exchange 'gone' in vhost '/'"):
            place.channel().exchange_declare("gone", passive=True)
        place.channel().exchange_declare("amq.topic", passive=True)
        place.channel().exchange_declare("", passive=True)


def test_the_server_names_a_queue_and_the_channel_remembers_it() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        name = channel.queue_declare("", exclusive=True).method.queue
        assert name.startswith("amq.gen-")
        assert channel.queue_declare("", exclusive=True).method.queue != name
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind("", "amq.direct")
        channel.basic_publish("amq.direct", name, b"bound by its own name")
        assert channel.basic_get("")[2] == b"bound by its own name"
        channel.queue_purge("")
        channel.queue_delete("")
        with closes(404):
            channel.basic_get(name)
        with closes(404, "no queue ''"):
            place.channel().basic_get("")


def test_reserved_names() -> None:
    with served() as place:
        with closes(403, "reserved prefix"):
            place.channel().queue_declare("amq.mine")
        with closes(403, "reserved prefix"):
            place.channel().exchange_declare("amq.mine")
        with closes(403, "default exchange"):
            place.channel().exchange_declare("")
        with closes(403, "cannot be deleted"):
            place.channel().exchange_delete("amq.fanout")
        with closes(403, "default exchange"):
            channel = place.channel()
            channel.queue_declare("q")
            channel.queue_bind("q", "", "k")
        with closes(403):
            place.channel().queue_declare("$mine")


DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"durable": True}, {}, "durable"),
    ({}, {"auto_delete": True}, "auto_delete"),
    ({"arguments": {"x-message-ttl": 1000}}, {"arguments": {"x-message-ttl": 2000}}, "x-message-ttl"),
    ({"arguments": {"x-message-ttl": 1000}}, {}, "x-message-ttl"),
    ({}, {"arguments": {"x-expires": 100_000}}, "x-expires"),
    ({"arguments": {"x-max-length": 5}}, {"arguments": {"x-max-length": 6}}, "x-max-length"),
    ({"arguments": {"x-max-length-bytes": 5}}, {}, "x-max-length-bytes"),
    ({"arguments": {"x-max-length": 5}},
     {"arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}}, "x-overflow"),
    ({"arguments": {"x-dead-letter-exchange": "a"}}, {"arguments": {"x-dead-letter-exchange": "b"}},
     "x-dead-letter-exchange"),
    ({"arguments": {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "k"}},
     {"arguments": {"x-dead-letter-exchange": "a"}}, "x-dead-letter-routing-key"),
    ({"arguments": {"x-max-priority": 5}}, {"arguments": {"x-max-priority": 6}}, "x-max-priority"),
    ({"arguments": {"x-single-active-consumer": True}}, {}, "x-single-active-consumer"),
    ({"durable": True, "arguments": {"x-queue-type": "stream"}}, {"durable": True}, "x-queue-type"),
    ({"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "7D"}},
     {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "8D"}}, "x-max-age"),
    ({"durable": True, "arguments": {"x-queue-type": "quorum"}}, {"durable": True}, "x-delivery-limit"),
    ({"arguments": {"x-delivery-limit": 3}}, {"arguments": {"x-delivery-limit": 4}}, "x-delivery-limit"),
]  # fmt: skip


def test_a_queue_declared_with_other_properties() -> None:
    with served() as place:
        for number, (first, second, argument) in enumerate(DIFFERENT):
            name = f"q{number}"
            channel = place.channel()
            channel.queue_declare(name, **first)
            channel.queue_declare(name, **first)
            with closes(406, f"inequivalent arg '{argument}' for queue '{name}' in vhost '/': received"):
                channel.queue_declare(name, **second)


REFUSED: list[dict[str, Any]] = [
    {"arguments": {"x-queue-mode": "lazy"}},
    {"arguments": {"x-max-length": "5"}},
    {"arguments": {"x-max-length": -1}},
    {"arguments": {"x-message-ttl": True}},
    {"arguments": {"x-expires": 0}},
    {"arguments": {"x-max-priority": 256}},
    {"arguments": {"x-overflow": "reject-publish-dlx"}},
    {"arguments": {"x-dead-letter-routing-key": "k"}},
    {"arguments": {"x-queue-type": "other"}},
    {"arguments": {"x-single-active-consumer": 1}},
    {"arguments": {"x-queue-type": "quorum"}},
    {"arguments": {"anything": 1}},
    {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "7"}},
    {"durable": True, "arguments": {"x-queue-type": "stream", "x-message-ttl": 5}},
    {"durable": True, "exclusive": True, "arguments": {"x-queue-type": "quorum"}},
]  # fmt: skip


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_an_argument_that_is_not_honoured_is_refused(options: dict[str, Any]) -> None:
    with served() as place:
        channel = place.channel()
        with closes(406):
            channel.queue_declare("q", **options)
        with closes(404):
            place.channel().queue_declare("q", passive=True)


def test_a_queue_of_another_front_is_accepted_as_it_is() -> None:
    with served() as place:
        place.call(lambda broker: broker.declare_queue("q"))
        channel = place.channel(confirms=True)
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"m")
        assert place.call(lambda broker: broker.stats("q")).messages == 1


def test_an_exclusive_queue_is_its_connections_alone_and_goes_with_it() -> None:
    with served() as place:
        mine = place.channel(confirms=True)
        mine.queue_declare("q", exclusive=True)
        mine.connection.channel().queue_declare("q", exclusive=True)
        uses: tuple[Callable[[Any], object], ...] = (
            lambda channel: channel.queue_declare("q", exclusive=True),
            lambda channel: channel.queue_declare("q", passive=True),
            lambda channel: channel.basic_consume("q", lambda *_: None),
            lambda channel: channel.basic_get("q"),
            lambda channel: channel.queue_purge("q"),
            lambda channel: channel.queue_delete("q"),
            lambda channel: channel.queue_bind("q", "amq.fanout"),
        )
        for use in uses:
            with closes(405, "exclusive"):
                use(place.channel())
        place.channel(confirms=True).basic_publish("", "q", b"anybody may publish")
        assert mine.basic_get("q")[2] == b"anybody may publish"
        mine.connection.close()
        with closes(404):
            place.channel().queue_declare("q", passive=True)


def test_a_queue_that_goes_with_its_last_consumer() -> None:
    with served() as place:
        channel = place.channel()
        channel.queue_declare("q", auto_delete=True)
        first, second = Inbox(channel, "q"), Inbox(channel, "q")
        channel.basic_cancel(first.tag)
        channel.queue_declare("q", passive=True)
        channel.basic_cancel(second.tag)
        with closes(404):
            channel.queue_declare("q", passive=True)
        channel = place.channel()
        channel.queue_declare("q", auto_delete=True)
        Inbox(channel, "q")
        channel.connection.close()
        with closes(404):
            place.channel().queue_declare("q", passive=True)


def test_delete_if_unused_and_if_empty() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"m")
        with closes(406, "not empty"):
            place.channel().queue_delete("q", if_empty=True)
        inbox = Inbox(channel, "q")
        with closes(406, "in use"):
            place.channel().queue_delete("q", if_unused=True)
        inbox.wait(1)
        channel.basic_ack(inbox.deliveries[0][0].delivery_tag)
        channel.basic_cancel(inbox.tag)
        channel.queue_delete("q", if_unused=True, if_empty=True)


def test_a_queue_that_is_not_durable_does_not_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with served(path) as place:
        channel = place.channel(confirms=True)
        channel.exchange_declare("x", "topic", durable=True)
        channel.exchange_declare("y", "topic")
        channel.queue_declare("kept", durable=True)
        channel.queue_declare("gone")
        channel.queue_bind("kept", "x", "a.*")
        channel.basic_publish("x", "a.b", b"m", pika.BasicProperties(delivery_mode=2))
    with served(path) as place:
        channel = place.channel(confirms=True)
        assert channel.queue_declare("kept", durable=True).method.message_count == 1
        channel.basic_publish("x", "a.c", b"the binding is there")
        assert channel.queue_declare("kept", passive=True).method.message_count == 2
        with closes(404):
            channel.queue_declare("gone", passive=True)
        with closes(404):
            place.channel().exchange_declare("y", passive=True)


def test_a_queue_nobody_uses_expires() -> None:
    with served() as place:
        channel = place.channel()
        channel.queue_declare("q", arguments={"x-expires": 50})
        waited(lambda: not place.broker.knows_queue("q", "browse"))


def test_vhosts_are_namespaces() -> None:
    with served(create_vhosts=True) as place:
        here, there = place.channel(confirms=True), place.channel(virtual_host="other")
        here.queue_declare("q")
        here.basic_publish("", "q", b"m")
        assert there.queue_declare("q").method.message_count == 0
        assert place.call(lambda broker: broker.stats("q")).messages == 1
        assert place.call(lambda broker: broker.in_namespace("other").stats("q")).messages == 0
        same = place.channel(virtual_host="default")
        assert same.queue_declare("q", passive=True).method.message_count == 1


# Exchanges -----------------------------------------------------------------------------------------------


def routed(place: Served, exchange: str, key: str, headers: dict[str, Any] | None = None) -> list[str]:
    """The queues, of those named a, b and c, that get a message."""
    channel = place.channel(confirms=True)
    channel.basic_publish(exchange, key, b"m", pika.BasicProperties(headers=headers))
    return [name for name in "abc" if channel.basic_get(name, auto_ack=True)[0] is not None]


def test_the_kinds_of_exchanges() -> None:
    with served() as place:
        channel = place.channel()
        for name in "abc":
            channel.queue_declare(name)
        channel.queue_bind("a", "amq.direct", "k")
        channel.queue_bind("b", "amq.direct", "k")
        assert routed(place, "amq.direct", "k") == ["a", "b"]
        assert routed(place, "amq.direct", "other") == []
        channel.queue_bind("a", "amq.topic", "*.x")
        channel.queue_bind("c", "amq.topic", "#")
        assert routed(place, "amq.topic", "y.x") == ["a", "c"]
        channel.queue_bind("b", "amq.fanout")
        assert routed(place, "amq.fanout", "whatever") == ["b"]
        channel.queue_bind("a", "amq.headers", "", {"x-match": "all", "n": 1, "s": "t"})
        channel.queue_bind("b", "amq.headers", "", {"x-match": "any", "n": 1, "s": "t"})
        assert routed(place, "amq.headers", "", {"n": 1}) == ["b"]
        assert routed(place, "amq.headers", "", {"n": 1, "s": "t", "more": True}) == ["a", "b"]
        channel.queue_bind("c", "amq.match", "", {"flag": True})
        assert routed(place, "amq.match", "", {"flag": True}) == ["c"]
        channel.queue_unbind("c", "amq.match", "", {"flag": True})
        channel.queue_unbind("c", "amq.match", "", {"flag": True})
        assert routed(place, "amq.match", "", {"flag": True}) == []


def test_exchanges_bound_to_exchanges_and_alternates() -> None:
    with served() as place:
        channel = place.channel()
        for name in "abc":
            channel.queue_declare(name)
        channel.exchange_declare("last", "fanout")
        channel.exchange_declare("first", "direct", arguments={"alternate-exchange": "last"})
        channel.exchange_declare("inner", "fanout", internal=True)
        channel.exchange_bind("inner", "first", "k")
        channel.queue_bind("a", "inner")
        channel.queue_bind("b", "last")
        assert routed(place, "first", "k") == ["a"]
        assert routed(place, "first", "else") == ["b"]
        with closes(403, "internal"):
            place.channel(confirms=True).basic_publish("inner", "k", b"m")
        channel.exchange_unbind("inner", "first", "k")
        assert routed(place, "first", "k") == ["b"]


def test_an_exchange_declared_with_other_properties() -> None:
    with served() as place:
        for number, (first, second, argument) in enumerate(
            (
                ({"exchange_type": "direct"}, {"exchange_type": "topic"}, "type"),
                ({"durable": True}, {}, "durable"),
                ({}, {"auto_delete": True}, "auto_delete"),
                ({}, {"internal": True}, "internal"),
                ({"arguments": {"alternate-exchange": "a"}}, {}, "alternate-exchange"),
            )
        ):
            channel = place.channel()
            options: Any = first
            channel.exchange_declare(f"x{number}", **options)
            channel.exchange_declare(f"x{number}", **options)
            options = second
            with closes(406, f"inequivalent arg '{argument}' for exchange"):
                channel.exchange_declare(f"x{number}", **options)
        with closes(406, "not supported"):
            place.channel().exchange_declare("y", arguments={"x-delayed-type": "direct"})
        with pytest.raises(ConnectionClosedByBroker) as caught:
            place.channel().exchange_declare("y", "x-delayed-message")
        assert caught.value.reply_code == 503
        assert "there are direct, topic" in caught.value.reply_text


def test_deleting_exchanges() -> None:
    with served() as place:
        channel = place.channel()
        channel.queue_declare("q")
        channel.exchange_declare("x", auto_delete=True)
        channel.queue_bind("q", "x", "k")
        with closes(406, "in use"):
            place.channel().exchange_delete("x", if_unused=True)
        channel.queue_unbind("q", "x", "k")
        waited(lambda: not place.broker.knows_exchange("x", "browse"))
        channel.exchange_delete("x")
        channel.exchange_declare("y")
        channel.exchange_delete("y", if_unused=True)
        with closes(404, "no exchange 'y'"):
            channel.queue_bind("q", "y", "k")


def test_without_waiting_for_answers() -> None:
    """Methods with nowait are carried out in order and say nothing."""
    with served() as place:
        channel = place.channel(confirms=True)
        raw = channel._impl
        raw._send_method(pika.spec.Exchange.Declare(exchange="x", type="fanout", nowait=True))
        raw._send_method(pika.spec.Queue.Declare(queue="q", nowait=True))
        raw._send_method(pika.spec.Queue.Bind(queue="q", exchange="x", nowait=True))
        channel.basic_publish("x", "", b"m")
        until(channel, lambda: channel.queue_declare("q", passive=True).method.message_count == 1)


def test_whoever_deletes_a_queue_hears_of_that_before_its_consumers_are_cancelled() -> None:
    with served() as place:
        client = Raw(place, properties={"capabilities": {"consumer_cancel_notify": True}})
        client.send(1, commands.Queue.Declare(0, "q"))
        client.hear(commands.Queue.DeclareOk)
        for number in range(20):
            client.send(1, commands.Basic.Consume(0, "q", f"t{number}"))
            client.hear(commands.Basic.ConsumeOk)
        client.send(1, commands.Queue.Delete(0, "q"))
        client.hear(commands.Queue.DeleteOk)
        cancelled = {client.hear(commands.Basic.Cancel).consumer_tag for _ in range(20)}
        assert cancelled == {f"t{number}" for number in range(20)}
        client.close()
