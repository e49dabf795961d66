"""paho with both versions, over TCP and WebSocket: publishing, subscribing, retained messages, wildcards."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

import penstock
from penstock import Message
from tests.clients.mqtt.raw import Raw
from tests.clients.mqtt.rig import MqttServerProcess, Peer, unique

EVERYWHERE = pytest.mark.parametrize(
    ("version", "transport"), [(4, "tcp"), (5, "tcp"), (4, "websockets"), (5, "websockets")]
)
VERSIONS = pytest.mark.parametrize("version", [4, 5])


@EVERYWHERE
def test_every_quality_of_service(server: MqttServerProcess, version: int, transport: str) -> None:
    topic = unique("qos")
    with (
        Peer(server, version, transport=transport) as publisher,
        Peer(server, version, transport=transport) as subscriber,
    ):
        assert subscriber.subscribe(f"{topic}/0", qos=0) == [0]
        assert subscriber.subscribe(f"{topic}/1", qos=1) == [1]
        assert subscriber.subscribe(f"{topic}/2", qos=2) == [2]
        for granted in (0, 1, 2):
            for published in (0, 1, 2):
                payload = f"{published} to {granted}".encode()
                assert publisher.publish(f"{topic}/{granted}", payload, published) == 0
        found = {delivery.payload: delivery.qos for delivery in subscriber.take(9)}
        assert found == {
            f"{published} to {granted}".encode(): min(published, granted)
            for granted in (0, 1, 2)
            for published in (0, 1, 2)
        }


@EVERYWHERE
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_messages_in_order(server: MqttServerProcess, version: int, transport: str, qos: int) -> None:
    topic = unique("many")
    with (
        Peer(server, version, transport=transport) as publisher,
        Peer(server, version, transport=transport) as subscriber,
    ):
        subscriber.subscribe(topic, qos=qos)
        sent = [f"{number}".encode() for number in range(500)]
        numbers = [publisher.client.publish(topic, payload, qos).mid for payload in sent]
        assert subscriber.payloads(500) == sent
        for number in numbers:
            publisher.answer(number)


@EVERYWHERE
def test_a_large_message(server: MqttServerProcess, version: int, transport: str) -> None:
    topic = unique("large")
    payload = bytes(range(256)) * 8192
    with Peer(server, version, transport=transport) as peer:
        peer.subscribe(topic, qos=1)
        assert peer.publish(topic, payload) == 0
        assert peer.next().payload == payload


@EVERYWHERE
def test_retained_messages(server: MqttServerProcess, version: int, transport: str) -> None:
    topic = unique("retained")
    with Peer(server, version, transport=transport) as publisher:
        with Peer(server, version) as early:
            early.subscribe(f"{topic}/#", qos=1)
            publisher.publish(f"{topic}/a", b"old", retain=True)
            publisher.publish(f"{topic}/a", b"new", retain=True)
            publisher.publish(f"{topic}/b", b"other", 0, retain=True)
            publisher.publish(f"{topic}/c", b"not kept")
            live = {(one.topic, one.payload): one.retain for one in early.take(4)}
            assert not any(live.values()), "to those who were there it is a message like any other"
        with Peer(server, version, transport=transport) as late:
            late.subscribe(f"{topic}/+", qos=1)
            found = {(one.topic, one.payload, one.qos, one.retain) for one in late.take(2)}
            assert found == {(f"{topic}/a", b"new", 1, True), (f"{topic}/b", b"other", 0, True)}
            publisher.publish(f"{topic}/a", b"", retain=True)
            assert late.next().payload == b""
        with Peer(server, version) as latest:
            latest.subscribe(f"{topic}/#", qos=1)
            assert latest.next().topic == f"{topic}/b"
            publisher.publish(f"{topic}/end")
            assert latest.next().topic == f"{topic}/end"


@VERSIONS
def test_wildcards(server: MqttServerProcess, version: int) -> None:
    base = unique("wild")
    filters = {
        f"{base}/#": [base, f"{base}/", f"{base}/a", f"{base}/a/b"],
        f"{base}/+": [f"{base}/", f"{base}/a"],
        f"{base}/+/b": [f"{base}/a/b"],
        f"+/{base}": [f"/{base}"],
        f"{base}/a": [f"{base}/a"],
    }
    topics = [base, f"{base}/", f"{base}/a", f"{base}/a/b", f"/{base}", f"{base}x", f"x/{base}/a"]
    with Peer(server, version) as publisher:
        for pattern, expected in filters.items():
            with Peer(server, version) as subscriber:
                assert subscriber.subscribe(pattern, f"{base}-end", qos=1) == [1, 1]
                for topic in topics:
                    publisher.publish(topic, b"x")
                publisher.publish(f"{base}-end")
                found = []
                while (delivery := subscriber.next()).topic != f"{base}-end":
                    found.append(delivery.topic)
                assert found == expected, pattern


@VERSIONS
def test_dollar_topics_are_hidden_from_wildcards(server: MqttServerProcess, version: int) -> None:
    base = unique("dollar")
    with (
        Peer(server, version) as everything,
        Peer(server, version) as named,
        penstock.Client(server.url) as publisher,
    ):
        everything.subscribe("#", "+/x", qos=1)
        named.subscribe(f"${base}/#", qos=1)
        publisher.publish_to("mqtt", [Message(b"hidden", key=f"${base}/x")])
        publisher.publish_to("mqtt", [Message(b"seen", key=f"{base}/x")])
        assert named.next().payload == b"hidden"
        while (delivery := everything.next()).topic != f"{base}/x":
            assert not delivery.topic.startswith("$")


def test_clients_do_not_publish_to_dollar_topics(server: MqttServerProcess) -> None:
    with Peer(server, 5) as peer:
        assert peer.publish("$SYS/x", b"x") == 0x90
    with Raw(server) as raw:  # paho does not look at what PUBREC says
        raw.connect()
        raw.send(mqtt5.PublishPacket("$SYS/x", b"x", qos=mqtt5.QoS.EXACTLY_ONCE, packet_id=1))
        assert int(raw.expect(mqtt5.PubRecPacket).reason_code) == 0x90
    peer = Peer(server, 4)
    peer.open()
    peer.client.publish("$SYS/x", b"x", 1)
    peer.wait_gone()


@VERSIONS
def test_unsubscribe(server: MqttServerProcess, version: int) -> None:
    topic = unique("unsubscribe")
    with Peer(server, version) as peer:
        peer.subscribe(f"{topic}/a", f"{topic}/b", qos=1)
        reasons = peer.unsubscribe(f"{topic}/a", f"{topic}/never")
        assert reasons == ([0, 0x11] if version == 5 else [])
        peer.publish(f"{topic}/a", b"no")
        peer.publish(f"{topic}/b", b"yes")
        assert peer.next().payload == b"yes"


@VERSIONS
def test_subscribing_again_replaces(server: MqttServerProcess, version: int) -> None:
    topic = unique("again")
    with Peer(server, version) as peer:
        peer.subscribe(topic, qos=0)
        peer.subscribe(topic, qos=2)
        peer.publish(topic, b"1", 2)
        peer.publish(topic, b"2", 2)
        assert [(one.payload, one.qos) for one in peer.take(2)] == [(b"1", 2), (b"2", 2)]


@VERSIONS
def test_overlapping_subscriptions_deliver_with_the_best_quality(server: MqttServerProcess, version: int) -> None:
    topic = unique("overlap")
    with Peer(server, version) as peer:
        peer.subscribe(f"{topic}/#", qos=0)
        peer.subscribe(f"{topic}/a", qos=2)
        peer.subscribe(f"{topic}/+", qos=1)
        peer.publish(f"{topic}/a", b"x", 2)
        peer.publish(f"{topic}/a", b"end", 2)
        found = peer.take(2)
        assert [(one.payload, one.qos) for one in found] == [(b"x", 2), (b"end", 2)]


@VERSIONS
def test_an_invalid_filter_is_refused_and_the_others_granted(server: MqttServerProcess, version: int) -> None:
    topic = unique("invalid")
    # paho checks filters itself, so it is told that all is well.
    with Peer(server, version) as peer:
        peer.client._filter_wildcard_len_check = staticmethod(lambda _: 0)  # type: ignore[method-assign,assignment]
        refused = 0x8F if version == 5 else 0x80
        entry: Any = SubscribeOptions(1) if version == 5 else 1
        _, number = peer.client.subscribe([(f"{topic}/a#", entry), (topic, entry), (f"{topic}/#/b", entry)])
        assert peer.answer(number)[0] == [refused, 1, refused]
        peer.publish(topic, b"fine")
        assert peer.next().payload == b"fine"


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_versions_meet(server: MqttServerProcess, transport: str) -> None:
    topic = unique("meet")
    with Peer(server, 4, transport=transport) as old, Peer(server, 5, transport=transport) as new:
        old.subscribe(topic, qos=2)
        new.subscribe(topic, qos=2)
        old.publish(topic, b"from old", 2)
        new.publish(topic, b"from new", 2, ContentType="text/plain", UserProperty=("a", "b"))
        assert sorted(old.payloads(2)) == [b"from new", b"from old"]
        assert sorted(new.payloads(2)) == [b"from new", b"from old"]
