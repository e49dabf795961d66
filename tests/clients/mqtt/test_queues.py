"""`$queue/…`: the broker's queues for MQTT clients, and MQTT topics for the clients of other protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock import Message
from tests.clients.mqtt.rig import Delivery, MqttServerProcess, Peer, unique, until


@pytest.fixture
def http(server: MqttServerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(server.url) as client:
        yield client


def settle(peer: Peer, action: str, delivery: Delivery, payload: bytes = b"", **more: str) -> int:
    given = [("message-id", delivery.user_property("message-id")), ("group-id", delivery.user_property("group-id"))]
    name = delivery.user_property("queue")
    return peer.publish(f"$queue/{name}/${action}", payload, UserProperty=given + list(more.items()))


def left(http: penstock.Client, name: str, group: str) -> int:
    """Messages that the group has not settled."""
    return next(found.lag for found in http.stats(name).groups if found.group == group)


def test_a_work_queue_of_version_5(server: MqttServerProcess, http: penstock.Client) -> None:
    name = unique("orders")
    with Peer(server) as worker, Peer(server) as producer:
        assert worker.subscribe(f"$queue/{name}/#", qos=1, UserProperty=("consumer-group", "workers")) == [1]
        assert producer.publish(f"$queue/{name}/eu/books", b"1", ContentType="text/plain", UserProperty=("a", "b")) == 0
        first = worker.next()
        assert (first.topic, first.payload) == (f"$queue/{name}/eu/books", b"1")
        assert first.properties.ContentType == "text/plain"
        assert first.user_property("a") == "b"
        assert first.user_property("group-id") == "workers"
        assert first.user_property("queue") == name
        assert first.user_property("offset") == "0"
        assert first.user_property("message-id")
        assert left(http, name, "workers") == 1, "PUBACK only says that the client has it"
        assert settle(worker, "ack", first) == 0
        assert left(http, name, "workers") == 0


def test_nack_brings_it_again_and_reject_does_not(server: MqttServerProcess, http: penstock.Client) -> None:
    name = unique("failing")
    http.declare_queue(name, backoff_ms=0)
    with Peer(server) as worker:
        worker.subscribe(f"$queue/{name}/#", qos=1, UserProperty=("consumer-group", "workers"))
        worker.publish(f"$queue/{name}/a", b"bad")
        first = worker.next()
        assert not first.dup
        assert settle(worker, "nack", first, b"try again") == 0
        second = worker.next()
        assert (second.payload, second.dup) == (b"bad", True)
        assert settle(worker, "reject", second, error="never") == 0
        worker.publish(f"$queue/{name}/a", b"good")
        third = worker.next()
        assert third.payload == b"good"
        assert settle(worker, "ack", third) == 0
        dead = http.dead(name, "workers")
        assert [(one.received.message.payload, one.error) for one in dead] == [(b"bad", "never")]


def test_settling_what_is_not_there_is_refused(server: MqttServerProcess) -> None:
    name = unique("wrong")
    with Peer(server) as worker:
        worker.subscribe(f"$queue/{name}/#", qos=1)
        worker.publish(f"$queue/{name}/a", b"x")
        delivery = worker.next()
        assert settle(worker, "ack", delivery) == 0
        assert settle(worker, "ack", delivery) in (0, *range(0x80, 0x100)), "again does no harm"
        assert worker.publish(f"$queue/{name}/$ack", b"") >= 0x80
        assert worker.publish(f"$queue/{name}/$ack", b"", UserProperty=("message-id", "nonsense")) >= 0x80
        assert worker.publish("$queue/", b"x") == 0x90


def test_a_key_that_looks_like_a_command_is_refused(server: MqttServerProcess, http: penstock.Client) -> None:
    name = unique("typo")
    with Peer(server) as worker:
        worker.publish(f"$queue/{name}/a", b"x")
        for level in ("$akc", "$commit", "a/$nak"):
            assert worker.publish(f"$queue/{name}/{level}", b"") == 0x90, "nobody wants that as a message"
    assert http.stats(name).messages == 1


def test_consumers_of_one_group_share_and_groups_do_not(server: MqttServerProcess) -> None:
    name = unique("groups")
    with Peer(server) as one, Peer(server) as two, Peer(server) as other, Peer(server) as producer:
        for peer in (one, two):
            peer.subscribe(f"$queue/{name}/#", qos=1, UserProperty=("consumer-group", "workers"))
        other.subscribe(f"$queue/{name}/#", qos=1, UserProperty=("consumer-group", "audit"))
        sent = sorted(f"{number}".encode() for number in range(40))
        for payload in sent:
            producer.publish(f"$queue/{name}/x", payload)
        assert sorted(other.payloads(40)) == sent
        until(lambda: one.deliveries.qsize() + two.deliveries.qsize() == 40, "all are delivered")
        found = sorted(one.payloads(one.deliveries.qsize()) + two.payloads(two.deliveries.qsize()))
        assert found == sent


def test_what_a_consumer_did_not_settle_returns_when_it_goes(server: MqttServerProcess) -> None:
    name = unique("returns")
    group = ("consumer-group", "workers")
    first = Peer(server)
    first.open()
    first.subscribe(f"$queue/{name}/#", qos=1, UserProperty=group)
    with Peer(server) as producer:
        for number in range(5):
            producer.publish(f"$queue/{name}/x", f"{number}")
    deliveries = first.take(5)
    assert settle(first, "ack", deliveries[0]) == 0
    first.vanish()
    with Peer(server) as second:
        second.subscribe(f"$queue/{name}/#", qos=1, UserProperty=group)
        again = second.take(4)
        assert sorted(one.payload for one in again) == [b"1", b"2", b"3", b"4"]
        assert all(one.dup for one in again)


def test_puback_of_3_1_1_settles(server: MqttServerProcess, http: penstock.Client) -> None:
    name, client_id = unique("old"), unique("worker")
    with Peer(server, 4, client_id) as worker:
        assert worker.subscribe(f"$queue/{name}/#", qos=1) == [1]
        worker.publish(f"$queue/{name}/a", b"1")
        assert worker.next().payload == b"1"
        until(lambda: left(http, name, client_id) == 0, "the PUBACK has settled it")


def test_without_puback_of_3_1_1_it_comes_again(server: MqttServerProcess, http: penstock.Client) -> None:
    name, client_id = unique("old"), unique("worker")
    worker = Peer(server, 4, client_id, manual_ack=True)
    worker.open()
    worker.subscribe(f"$queue/{name}/#", qos=1)
    worker.publish(f"$queue/{name}/a", b"1")
    assert worker.next().payload == b"1"
    worker.vanish()
    assert left(http, name, client_id) == 1
    with Peer(server, 4, client_id) as worker:
        worker.subscribe(f"$queue/{name}/#", qos=1)
        again = worker.next()
        assert (again.payload, again.dup) == (b"1", True)


def test_quality_0_is_done_as_it_is_handed_out(server: MqttServerProcess, http: penstock.Client) -> None:
    name = unique("zero")
    with Peer(server) as worker:
        worker.subscribe(f"$queue/{name}/#", qos=0, UserProperty=("consumer-group", "g"))
        worker.publish(f"$queue/{name}/a", b"1")
        assert worker.next().payload == b"1"
        until(lambda: left(http, name, "g") == 0, "it is settled")


def test_a_filter_after_the_name(server: MqttServerProcess) -> None:
    name = unique("filtered")
    with Peer(server) as books, Peer(server) as everything:
        books.subscribe(f"$queue/{name}/+/books/#", qos=1, UserProperty=("consumer-group", "books"))
        everything.subscribe(f"$queue/{name}/#", qos=1, UserProperty=("consumer-group", "all"))
        for key in ("eu/books/1", "eu/music", "us/books", "books", "eu/books"):
            everything.publish(f"$queue/{name}/{key}", key)
        assert books.payloads(3) == [b"eu/books/1", b"us/books", b"eu/books"]
        assert len(everything.take(5)) == 5


def test_a_stream(server: MqttServerProcess, http: penstock.Client) -> None:
    name = unique("stream")
    http.declare_queue(name)
    for number in range(5):
        http.publish(name, Message(f"{number}".encode(), key="k"))
    group = [("consumer-group", "readers"), ("x-stream-offset", "first")]
    with Peer(server) as reader:
        assert reader.subscribe(f"$queue/{name}/#", qos=1, UserProperty=group) == [1]
        found = reader.take(5)
        assert [one.payload for one in found] == [b"0", b"1", b"2", b"3", b"4"]
        assert [one.user_property("x-stream-offset") for one in found] == ["0", "1", "2", "3", "4"]
        assert all(one.user_property("x-stream-timestamp").isdigit() for one in found)
        assert settle(reader, "ack", found[2]) == 0
    with Peer(server) as reader:
        reader.subscribe(f"$queue/{name}/#", qos=1, UserProperty=group[:1])
        assert [one.payload for one in reader.take(2)] == [b"3", b"4"], "acknowledging is committing"
    with Peer(server) as reader:
        offset = [("consumer-group", "others"), ("x-stream-offset", "offset=4")]
        reader.subscribe(f"$queue/{name}/#", qos=1, UserProperty=offset)
        assert reader.next().payload == b"4"


# Other protocols -----------------------------------------------------------------------------------------


def test_http_to_mqtt_and_back(server: MqttServerProcess, http: penstock.Client) -> None:
    topic = unique("http")
    with Peer(server) as peer:
        peer.subscribe(f"{topic}/#", qos=1)
        message = Message(b"from http", key=f"{topic}/a", headers={"n": 7, "s": "text"}, content_type="text/plain")
        http.publish_to("mqtt", [message])
        found = peer.next()
        assert (found.topic, found.payload) == (f"{topic}/a", b"from http")
        assert sorted(found.user_properties) == [("n", "7"), ("s", "text")]
        assert found.properties.ContentType == "text/plain"

        http.declare_queue(f"{topic}-captured")
        http.bind("mqtt", f"{topic}-captured", f"{topic}/+/temperature")
        peer.publish(
            f"{topic}/kitchen/temperature",
            b"21.5",
            UserProperty=("unit", "C"),
            ContentType="text/plain",
            CorrelationData=b"c1",
        )
        claim = http.claim(f"{topic}-captured", wait=10)
        captured = claim.messages[0].message
        assert (captured.payload, captured.key) == (b"21.5", f"{topic}/kitchen/temperature")
        assert captured.content_type == "text/plain"
        assert captured.correlation_id == "c1"
        assert captured.headers is not None
        assert captured.headers["unit"] == "C"


def test_mqtt_publishes_into_a_queue_of_http(server: MqttServerProcess, http: penstock.Client) -> None:
    name = unique("queue")
    http.declare_queue(name)
    with Peer(server, 4) as old:
        old.publish(f"$queue/{name}/key/of/it", b"1", 2)
        old.publish(f"$queue/{name}", b"2")
    claim = http.claim(name, max=2, wait=10)
    assert [(one.message.payload, one.message.key) for one in claim.messages] == [(b"1", "key/of/it"), (b"2", None)]
