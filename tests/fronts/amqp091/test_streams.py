"""AMQP: streams, consumer groups, `$queue/…` addresses and commits, with pika."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Message
from tests.damage import FLIP
from tests.fronts.amqp091.rig import Inbox, Served, closes, quiet, served, until
from tests.nodes import node_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

STREAM: dict[str, Any] = {"durable": True, "arguments": {"x-queue-type": "stream"}}


def stream(place: Served, count: int, name: str = "s") -> BlockingChannel:
    channel = place.channel(confirms=True)
    channel.queue_declare(name, **STREAM)
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number)
    return channel


def reader(place: Served, queue: str = "s", prefetch: int = 100, **arguments: Any) -> Inbox:
    channel = place.channel()
    channel.basic_qos(prefetch_count=prefetch)
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return Inbox(channel, queue, arguments=given)


def offsets(inbox: Inbox) -> list[int]:
    return [properties.headers["x-stream-offset"] for _, properties, _ in inbox.deliveries]


def committed(place: Served, group: str, queue: str = "s") -> int:
    stats = place.call(lambda broker: broker.stats(queue))
    return next(one.oldest_offset for one in stats.groups if one.group == group)


# Readers of their own ------------------------------------------------------------------------------------


def test_each_reader_sees_everything_from_where_it_begins() -> None:
    with served() as place:
        channel = stream(place, 10)
        assert reader(place, x_stream_offset="first").wait(10)[0][2] == b"0"
        second = reader(place, x_stream_offset="first")
        second.wait(10)
        assert second.bodies == [b"%d" % number for number in range(10)]
        assert offsets(second) == list(range(10))
        for value in (7, "offset=7"):
            inbox = reader(place, x_stream_offset=value)
            inbox.wait(3)
            assert offsets(inbox) == [7, 8, 9]
        ends = [reader(place, x_stream_offset="last"), reader(place, x_stream_offset="next"), reader(place)]
        moment = round(time.time() * 1000) + 1
        time.sleep(0.003)
        channel.basic_publish("", "s", b"new")
        for inbox in [*ends, reader(place, x_stream_offset=f"timestamp={moment}")]:
            inbox.wait(1)
            assert inbox.bodies == [b"new"]
        everything = reader(place, x_stream_offset="1h")
        everything.wait(11)
        assert channel.queue_declare("s", **STREAM).method.message_count == 11, "reading removes nothing"


def test_a_prefetch_limits_a_reader() -> None:
    with served() as place:
        stream(place, 10)
        inbox = reader(place, prefetch=3, x_stream_offset="first")
        inbox.wait(3)
        quiet(inbox.channel)
        assert len(inbox.deliveries) == 3
        inbox.channel.basic_ack(1)
        inbox.channel.basic_reject(3, requeue=False)
        inbox.wait(5)
        quiet(inbox.channel)
        assert len(inbox.deliveries) == 5
        inbox.channel.basic_cancel(inbox.tag)


def test_what_cannot_be_done_with_a_stream() -> None:
    with served() as place:
        stream(place, 1)
        with closes(406, "x-stream-offset"):
            place.channel().basic_consume("s", lambda *_: None, arguments={"x-stream-offset": "middle"})
        with closes(406, "x-auto-commit"):
            place.channel().basic_consume("s", lambda *_: None, arguments={"x-auto-commit": 1})
        with closes(406, "cannot be purged"):
            place.channel().queue_purge("s")
        channel = place.channel()
        channel.queue_declare("work")
        with closes(406, "x-stream-offset"):
            channel.basic_consume("work", lambda *_: None, arguments={"x-stream-offset": "first"})


def test_retention() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream", "x-max-length": 5})
        for number in range(20):
            channel.basic_publish("", "s", b"%d" % number)
        until(channel, lambda: channel.queue_declare("s", passive=True).method.message_count <= 6)
        inbox = reader(place, x_stream_offset=0)
        inbox.wait(5)
        assert inbox.bodies[-1] == b"19"
        assert place.call(lambda broker: broker.queue_options("s"))["retain_messages"] == 5


# Groups --------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was() -> None:
    with served() as place:
        stream(place, 10)
        inbox = reader(place, x_consumer_group="g")
        inbox.wait(10)
        assert inbox.bodies[0] == b"0", "a new group begins at the beginning"
        inbox.channel.basic_ack(4, multiple=True)
        inbox.channel.connection.close()
        inbox = reader(place, x_consumer_group="g")
        inbox.wait(6)
        assert offsets(inbox) == list(range(4, 10))
        inbox.channel.basic_ack(0, multiple=True)
        until(inbox.channel, lambda: committed(place, "g") == 10)
        inbox.channel.connection.close()
        inbox = reader(place, x_consumer_group="g")
        quiet(inbox.channel)
        assert inbox.deliveries == []
        other = reader(place, x_consumer_group="other")
        other.wait(10)


def test_consumers_of_a_group_share_it_and_lose_nothing() -> None:
    with served() as place:
        stream(place, 40)
        inboxes = [reader(place, prefetch=4, x_consumer_group="g") for _ in range(2)]
        seen: list[bytes] = []
        gone = inboxes.pop()
        gone.wait(4)
        gone.channel.connection.close()
        [left] = inboxes
        done = 0
        deadline = time.monotonic() + 20
        while committed(place, "g") < 40:
            assert time.monotonic() < deadline
            left.channel.connection.process_data_events(0.01)
            for method, _, body in left.deliveries[done:]:
                left.channel.basic_ack(method.delivery_tag)
                seen.append(body)
            done = len(left.deliveries)
        assert {int(body) for body in seen} == set(range(40)), "what the other had not acknowledged came here"


def test_where_a_group_begins_and_begins_again() -> None:
    with served() as place:
        stream(place, 5)
        inbox = reader(place, x_consumer_group="g", x_stream_offset=3)
        inbox.wait(2)
        assert offsets(inbox) == [3, 4]
        inbox.channel.basic_ack(0, multiple=True)
        until(inbox.channel, lambda: committed(place, "g") == 5)
        second = reader(place, x_consumer_group="g", x_stream_offset="first")
        quiet(second.channel)
        assert second.deliveries == [], "somebody reads the group: it is not moved"
        inbox.channel.connection.close()
        second.channel.connection.close()
        again = reader(place, x_consumer_group="g", x_stream_offset="first")
        again.wait(5)
        assert offsets(again) == [0, 1, 2, 3, 4]


def test_a_commit_by_hand() -> None:
    with served() as place:
        channel = stream(place, 10)
        inbox = reader(place, x_consumer_group="g", x_auto_commit=False)
        inbox.wait(10)
        inbox.channel.basic_ack(0, multiple=True)
        quiet(inbox.channel, 0.05)
        assert committed(place, "g") == 0
        properties = pika_properties({"x-group-id": "g", "x-offset": 6})
        channel.basic_publish("", "$queue/s/$commit", b"", properties)
        assert committed(place, "g") == 7
        inbox.channel.connection.close()
        inbox = reader(place, x_consumer_group="g", x_auto_commit=False)
        inbox.wait(3)
        assert offsets(inbox) == [7, 8, 9]
        for headers in ({"x-offset": 1}, {"x-group-id": "g"}, {"x-group-id": "g", "x-offset": 99}):
            with closes(406):
                place.channel(confirms=True).basic_publish("", "$queue/s/$commit", b"", pika_properties(headers))
        with closes(404):
            wrong = pika_properties({"x-group-id": "none", "x-offset": 1})
            place.channel(confirms=True).basic_publish("", "$queue/s/$commit", b"", wrong)


def pika_properties(headers: dict[str, Any]) -> Any:
    import pika

    return pika.BasicProperties(headers=headers)


def test_marks_of_the_primary_group() -> None:
    with served() as place:
        place.call(lambda broker: broker.declare_queue("s", stream=True, primary_group="work"))
        place.call(lambda broker: broker.declare_group("s", "work"))
        place.call(lambda broker: broker.publish_many("s", [Message(b"0"), Message(b"1")]))
        claim = place.call(lambda broker: broker.claim("s", group="work"))
        place.call(lambda broker: broker.ack(claim))
        inbox = reader(place, x_stream_offset="first")
        inbox.wait(2)
        marks = [properties.headers for _, properties, _ in inbox.deliveries]
        assert [one["x-work-acked"] for one in marks] == [True, False]
        assert {one["x-work-group"] for one in marks} == {"work"}
        assert {one["x-work-committed-offset"] for one in marks} == {1}
        assert all(one["x-stream-timestamp"] > 1_600_000_000_000 for one in marks)


# $queue/… ------------------------------------------------------------------------------------------------


def test_publishing_to_and_consuming_from_a_queues_address() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "$queue/orders", b"root")
        channel.basic_publish("", "$queue/orders/eu/images", b"with a key")
        inbox = Inbox(channel, "$queue/orders/#")
        inbox.wait(2)
        assert [(body, method.routing_key) for method, _, body in inbox.deliveries] == [
            (b"root", ""),
            (b"with a key", "eu/images"),
        ]
        assert channel.queue_declare("$queue/orders", durable=True).method.consumer_count == 1
        assert channel.queue_purge("$queue/orders").method.message_count == 0
        with closes(403, "basic.ack"):
            place.channel(confirms=True).basic_publish("", "$queue/orders/$ack", b"")
        with closes(406, "names no queue"):
            place.channel(confirms=True).basic_publish("", "$queue/", b"")


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_filters_after_a_queues_name(kind: str) -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": kind})
        groups = {
            "eu/#": ["eu", "eu/images", "eu/images/png"],
            "+/images": ["eu/images", "us/images"],
            "+/images/#": ["eu/images", "eu/images/png", "us/images", "us/images/images/x"],
            "eu/+/png": ["eu/images/png"],
            "it's/100%": ["it's/100%"],
        }
        inboxes = {text: reader(place, f"$queue/orders/{text}", x_consumer_group="g") for text in groups}
        keys = [
            "eu",
            "eu/images",
            "eu/images/png",
            "us/images",
            "us/x/images/y",
            "us/images/images/x",
            "it's/100%",
            "it's/100x",
        ]
        for key in keys:
            channel.basic_publish("", f"$queue/orders/{key}", key.encode())
        for text, expected in groups.items():
            inboxes[text].wait(len(expected))
            quiet(inboxes[text].channel, 0.02)
            assert sorted(inboxes[text].bodies) == sorted(one.encode() for one in expected), text
        with closes(406, "is no filter"):
            place.channel().basic_consume("$queue/orders/a#", lambda *_: None)


def test_groups_of_a_work_queue_each_get_everything() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q", durable=True)
        first, second = reader(place, "q", x_consumer_group="a"), reader(place, "q", x_consumer_group="b")
        third = reader(place, "q", x_consumer_group="b")
        for number in range(10):
            channel.basic_publish("", "q", b"%d" % number)
        first.wait(10)
        deadline = time.monotonic() + 20
        while len(second.deliveries) + len(third.deliveries) < 10:
            assert time.monotonic() < deadline
            for inbox in (second, third):
                inbox.channel.connection.process_data_events(0.01)
        assert sorted(second.bodies + third.bodies) == sorted(first.bodies)


# Damage in the store -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["body", "meta"])
@pytest.mark.parametrize("arguments", [{}, {"x_consumer_group": "g"}])
def test_damaged_messages_are_passed_over_and_named_by_the_next(
    tmp_path: Path, part: str, arguments: dict[str, str]
) -> None:
    path = tmp_path / "x.db"
    with served(path) as place:
        stream(place, 6)
        [lane] = node_of(place.broker).catalog.queue("default", "s").lanes
    for offset in (2, 3):
        FLIP[part](path, lane, offset)
    with served(path) as place:
        inbox = reader(place, prefetch=1, x_stream_offset="first", **arguments)
        for count in range(1, 5):
            inbox.wait(count)
            inbox.channel.basic_ack(inbox.deliveries[-1][0].delivery_tag)
        assert offsets(inbox) == [0, 1, 4, 5]
        told = [properties.headers.get("x-stream-damaged") for _, properties, _ in inbox.deliveries]
        assert told == [None, None, "0:2-2,0:3-3", None]
        if arguments:
            until(inbox.channel, lambda: committed(place, "g") == 6)
