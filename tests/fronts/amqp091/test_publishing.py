"""AMQP: publishing, confirms, returns, transactions, properties bit by bit, with pika."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pika
import pytest
from pika.exceptions import NackError, UnroutableError

from penstock import Message
from tests.fronts.amqp091.rig import Inbox, Served, closed_with, closes, quiet, served, until

# Confirms ------------------------------------------------------------------------------------------------


class Confirmed:
    """What a publisher that does not wait hears."""

    def __init__(self, place: Served) -> None:
        self.channel = place.channel()
        self.channel._impl.confirm_delivery(self._heard, callback=lambda _: None)
        self.heard: list[tuple[str, int, bool]] = []
        self.returned: list[bytes] = []
        self.channel._impl.add_on_return_callback(lambda _c, _m, _p, body: self.returned.append(body))
        quiet(self.channel, 0.05)

    def _heard(self, frame: Any) -> None:
        method = frame.method
        self.heard.append((method.NAME.partition(".")[2], method.delivery_tag, method.multiple))

    def publish(self, key: str, body: bytes = b"m", exchange: str = "", **options: Any) -> None:
        self.channel._impl.basic_publish(exchange, key, body, **options)

    def wait(self, count: int) -> dict[int, str]:
        """The answer to each of the first so many messages."""
        until(self.channel, lambda: len(self.answers()) >= count)
        return self.answers()

    def answers(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for name, tag, multiple in self.heard:
            first = max(found, default=0) + 1 if multiple else tag
            for number in range(first, tag + 1):
                assert number not in found, self.heard
                found[number] = name
        return found


def test_every_message_is_confirmed_once_and_many_at_a_time() -> None:
    with served() as place:
        publisher = Confirmed(place)
        publisher.channel.queue_declare("q")
        for number in range(500):
            publisher.publish("q", b"%d" % number)
        assert publisher.wait(500) == dict.fromkeys(range(1, 501), "Ack")
        assert len(publisher.heard) < 250, "most were confirmed together"
        inbox = Inbox(publisher.channel, "q")
        assert [body for _, _, body in inbox.wait(500)] == [b"%d" % number for number in range(500)]


def test_a_full_queue_refuses_exactly_what_it_cannot_take() -> None:
    with served() as place:
        publisher = Confirmed(place)
        publisher.channel.queue_declare("full", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
        publisher.channel.queue_declare("free")
        for number in range(10):
            publisher.publish("full", b"%d" % number)
            publisher.publish("free", b"%d" % number)
        answers = publisher.wait(20)
        assert [tag for tag, name in answers.items() if name == "Nack"] == [7, 9, 11, 13, 15, 17, 19]
        assert publisher.channel.queue_declare("full", passive=True).method.message_count == 3
        assert publisher.channel.queue_declare("free", passive=True).method.message_count == 10
        with pytest.raises(NackError):
            place.channel(confirms=True).basic_publish("", "full", b"m")


def test_a_queue_that_drops_its_oldest() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q", arguments={"x-max-length": 2})
        for number in range(5):
            channel.basic_publish("", "q", b"%d" % number)
        assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(3)] == [b"3", b"4", None]


def test_returns_come_before_the_confirm() -> None:
    with served() as place:
        publisher = Confirmed(place)
        publisher.channel.queue_declare("q")
        publisher.publish("nowhere", b"lost")
        publisher.publish("nowhere", b"returned", mandatory=True)
        publisher.publish("q", b"kept", mandatory=True)
        publisher.publish("nowhere", b"from an exchange", "amq.direct", mandatory=True)
        assert publisher.wait(4) == dict.fromkeys((1, 2, 3, 4), "Ack")
        assert publisher.returned == [b"returned", b"from an exchange"]
        with pytest.raises(UnroutableError) as caught:
            place.channel(confirms=True).basic_publish("", "nowhere", b"m", mandatory=True)
        [returned] = caught.value.messages
        assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")


def test_publishing_to_an_exchange_that_is_not_there() -> None:
    with served() as place:
        publisher = Confirmed(place)
        publisher.channel.queue_declare("q")
        other = publisher.channel.connection.channel()
        publisher.publish("q", b"before")
        publisher.publish("k", b"m", "gone")
        publisher.publish("q", b"after")
        until(publisher.channel, lambda: publisher.channel.is_closed)
        assert publisher.heard == [("Ack", 1, False)], "what came before is confirmed, what came after is not"
        assert other.queue_declare("q", passive=True).method.message_count == 1, "other channels go on"


def test_immediate_is_not_known() -> None:
    with served() as place:
        channel = place.channel()
        method = pika.spec.Basic.Publish(exchange="", routing_key="q", immediate=True)
        assert closed_with(channel, method, (pika.BasicProperties(), b"m")) == 540


def test_what_a_publisher_sent_before_closing_is_stored() -> None:
    with served() as place:
        place.channel().queue_declare("q")
        channel = place.channel()
        for number in range(100):
            channel._impl.basic_publish("", "q", b"%d" % number)
        channel.connection.close()
        assert place.channel().queue_declare("q", passive=True).method.message_count == 100
        channel = place.channel()
        for number in range(100):
            channel._impl.basic_publish("", "q", b"%d" % number)
        channel.close()
        assert channel.connection.channel().queue_declare("q", passive=True).method.message_count == 200


def test_order_over_several_exchanges() -> None:
    with served() as place:
        publisher = Confirmed(place)
        publisher.channel.queue_declare("q")
        publisher.channel.exchange_declare("x", "fanout")
        publisher.channel.queue_bind("q", "x")
        publisher.channel.queue_bind("q", "amq.topic", "#")
        for number in range(90):
            publisher.publish("q", b"%d" % number, ("", "x", "amq.topic")[number % 3])
        publisher.wait(90)
        inbox = Inbox(publisher.channel, "q")
        assert [body for _, _, body in inbox.wait(90)] == [b"%d" % number for number in range(90)]


# Transactions --------------------------------------------------------------------------------------------


def test_a_transaction_is_all_or_nothing() -> None:
    with served() as place:
        setup = place.channel(confirms=True)
        setup.queue_declare("q")
        setup.queue_declare("r")
        for number in range(3):
            setup.basic_publish("", "q", b"%d" % number)

        def counts() -> tuple[int, int]:
            methods = [setup.queue_declare(name, passive=True).method for name in ("q", "r")]
            return methods[0].message_count, methods[1].message_count

        channel = place.channel()
        channel.tx_select()
        taken = [channel.basic_get("q")[0].delivery_tag for _ in range(3)]
        channel.basic_publish("", "r", b"a")
        channel.basic_publish("amq.fanout", "", b"b")
        channel.basic_ack(taken[0])
        assert counts() == (0, 0)
        channel.tx_rollback()
        assert counts() == (0, 0)
        channel.basic_publish("", "r", b"c")
        channel.basic_publish("", "r", b"d")
        channel.basic_ack(taken[0])
        channel.basic_nack(taken[1], requeue=True)
        channel.tx_commit()
        assert counts() == (1, 2)
        channel.connection.close()
        assert counts() == (2, 2), "the third was never settled"
        assert setup.basic_get("q")[2] == b"1"


def test_transactions_and_confirms_do_not_mix() -> None:
    with served() as place:
        channel = place.channel()
        channel.tx_select()
        with closes(406):
            channel.confirm_delivery()
        with closes(406):
            place.channel(confirms=True).tx_select()
        with closes(406, "not transactional"):
            place.channel().tx_commit()
        channel = place.channel()
        channel.tx_select()
        with closes(404):
            channel.basic_publish("gone", "k", b"m")
            channel.queue_declare("q")


def test_a_transaction_returns_what_is_mandatory() -> None:
    with served() as place:
        channel = place.channel()
        returned: list[bytes] = []
        channel._impl.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
        channel.tx_select()
        channel._impl.basic_publish("", "nowhere", b"1", mandatory=True)
        channel._impl.basic_publish("", "$queue/nowhere/k", b"2", mandatory=True)
        quiet(channel, 0.05)
        assert returned == []
        channel.tx_commit()
        quiet(channel, 0.05)
        assert sorted(returned) == [b"1", b"2"]


# Properties ----------------------------------------------------------------------------------------------

ALL = pika.BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={
        "text": "ü",
        "bytes": b"\x00\xff",
        "int": 5,
        "long": 2**40,
        "negative": -7,
        "yes": True,
        "nothing": None,
        "time": dt.datetime(2020, 1, 2, 3, 4, 5),  # noqa: DTZ001 - pika's
        "decimal": decimal.Decimal("3.14"),
        "list": [1, "a", [2]],
        "table": {"inner": {"deep": 1}},
        "amqp": "a name of our own",
    },
    delivery_mode=2,
    priority=7,
    correlation_id="correlation",
    reply_to="reply",
    expiration="3600000",
    message_id="id",
    timestamp=1_600_000_000,
    type="kind",
    user_id="guest",
    app_id="application",
    cluster_id="cluster",
)


def test_properties_come_out_as_they_went_in() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        channel.queue_bind("q", "amq.topic", "#")
        channel.basic_publish("amq.topic", "a.ü", b"body", ALL)
        method, properties, body = channel.basic_get("q")
        assert body == b"body"
        assert (method.exchange, method.routing_key, method.redelivered) == ("amq.topic", "a.ü", False)
        assert properties.headers["amqp"] == "a name of our own"
        assert properties.encode() == ALL.encode(), "bit by bit"


def test_a_message_as_other_protocols_see_it() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"body", ALL)
        [received] = place.call(lambda broker: broker.claim("q")).messages
        message = received.message
        assert (message.payload, message.key, message.priority, message.ttl_ms) == (b"body", "q", 7, 3_600_000)
        assert (message.content_type, message.correlation_id) == ("text/plain", "correlation")
        headers = received.headers
        assert (headers["text"], headers["bytes"], headers["long"]) == ("ü", b"\x00\xff", 2**40)
        assert (headers["decimal"], headers["table"]) == ("3.14", {"inner": {"deep": 1}})
        assert headers["time"] == dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
        assert headers["amqp-reply-to"] == "reply"
        assert headers["amqp-message-id"] == "id"
        assert headers["amqp-type"] == "kind"
        assert headers["amqp-delivery-mode"] == 2
        assert isinstance(headers["amqp"], bytes)


def test_a_message_of_another_protocol() -> None:
    message = Message(
        b"body",
        key="a/b",
        headers={"n": 5, "amqp-reply-to": "there", "amqp": b"\x05garbage", "s": ["x", {"y": None}]},
        content_type="text/plain",
        correlation_id="c",
        priority=3,
        ttl_ms=60_000,
    )
    with served() as place:
        channel = place.channel()
        channel.queue_declare("q")
        place.call(lambda broker: broker.publish("q", message))
        method, properties, body = channel.basic_get("q")
        assert (method.exchange, method.routing_key, body) == ("", "a/b", b"body")
        assert properties.headers == {"n": 5, "s": ["x", {"y": None}]}
        assert (properties.content_type, properties.correlation_id, properties.priority) == ("text/plain", "c", 3)
        assert (properties.reply_to, properties.expiration, properties.delivery_mode) == ("there", "60000", 2)


def test_headers_that_only_amqp_can_hold() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        deep: Any = 1
        for _ in range(20):
            deep = [deep]
        many = {f"h{number}": number for number in range(1000)}
        for headers in ({"deep": deep}, many):
            channel.basic_publish("", "q", b"m", pika.BasicProperties(headers=headers))
            assert channel.basic_get("q", auto_ack=True)[1].headers == headers
        with closes(406, "too large"):
            channel.basic_publish("", "q", b"m", pika.BasicProperties(headers={"large": "x" * 70_000}))


def test_properties_that_cannot_be_honoured() -> None:
    with served() as place:
        place.channel().queue_declare("q")
        for properties, text in (
            (pika.BasicProperties(expiration="soon"), "invalid expiration 'soon'"),
            (pika.BasicProperties(expiration="-1"), "invalid expiration"),
            (pika.BasicProperties(user_id="somebody else"), "authenticated user was 'guest'"),
        ):
            with closes(406, text):
                place.channel(confirms=True).basic_publish("", "q", b"m", properties)
        assert place.channel().queue_declare("q", passive=True).method.message_count == 0


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_more_routing_keys_in_headers_are_refused_and_not_forgotten(name: str) -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("one")
        channel.queue_declare("two")
        with closes(406, "publish it once for each routing key"):
            channel.basic_publish("", "one", b"m", pika.BasicProperties(headers={name: ["two"]}))
        assert place.channel().basic_get("one")[0] is None


def test_large_and_empty_bodies() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        for body in (b"", b"x", b"y" * 131_072, b"z" * (3 * 1024 * 1024 + 1)):
            channel.basic_publish("", "q", body)
            assert channel.basic_get("q", auto_ack=True)[2] == body


def test_a_message_larger_than_the_server_takes() -> None:
    with served(max_message_bytes=2048) as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        with closes(311):
            channel.basic_publish("", "q", b"x" * 2049)
        assert place.channel().queue_declare("q", passive=True).method.message_count == 0


def test_back_pressure_loses_nothing_and_lets_others_work() -> None:
    with served(max_pending_bytes=64 * 1024) as place:
        publisher, other = Confirmed(place), place.channel(confirms=True)
        publisher.channel.queue_declare("q")
        for number in range(600):
            publisher.publish("q", b"%5d" % number + b"x" * 3000)
        other.basic_publish("", "q", b"other")
        publisher.wait(600)
        inbox = Inbox(other, "q")
        bodies = [body for _, _, body in inbox.wait(601) if body != b"other"]
        assert [int(body[:5]) for body in bodies] == list(range(600))
