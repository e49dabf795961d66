"""What version 5 has more: aliases, subscription ids and options, sharing, expiry, limits, properties, reason codes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import mqtt5
import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.clients.mqtt.raw import Raw
from tests.clients.mqtt.rig import MqttServerProcess, Peer, unique


def test_properties_reach_the_subscriber_as_they_are(server: MqttServerProcess) -> None:
    topic = unique("properties")
    user = [("b", "2"), ("a", "1"), ("b", "3"), ("", "empty name"), ("ü", "✓"), ("mqtt-x", "y"), ("b", "2")]
    with Peer(server) as peer:
        peer.subscribe(topic, qos=1)
        peer.publish(
            topic,
            "text",
            PayloadFormatIndicator=1,
            ContentType="text/plain; charset=utf-8",
            ResponseTopic="answers/here",
            CorrelationData=b"\x00\xff binary",
            UserProperty=user,
            MessageExpiryInterval=1000,
        )
        found = peer.next().properties
        assert found.PayloadFormatIndicator == 1
        assert found.ContentType == "text/plain; charset=utf-8"
        assert found.ResponseTopic == "answers/here"
        assert found.CorrelationData == b"\x00\xff binary"
        assert found.UserProperty == user
        assert 990 <= found.MessageExpiryInterval <= 1000
        peer.publish(topic, "plain")
        assert peer.next().properties.isEmpty()


def test_topic_aliases_of_the_client(server: MqttServerProcess) -> None:
    topic = unique("alias")
    with Raw(server) as raw, Peer(server) as peer:
        assert raw.connect().topic_alias_max > 0
        peer.subscribe(f"{topic}/#", qos=1)
        raw.send(
            mqtt5.PublishPacket(f"{topic}/one", b"1", topic_alias=1),
            mqtt5.PublishPacket("", b"2", topic_alias=1),
            mqtt5.PublishPacket(f"{topic}/two", b"3", topic_alias=1),
            mqtt5.PublishPacket("", b"4", topic_alias=1),
        )
        assert [(one.topic, one.payload) for one in peer.take(4)] == [
            (f"{topic}/one", b"1"),
            (f"{topic}/one", b"2"),
            (f"{topic}/two", b"3"),
            (f"{topic}/two", b"4"),
        ]
        raw.send(mqtt5.PublishPacket("x", b"", topic_alias=65535))
        assert int(raw.expect(mqtt5.DisconnectPacket).reason_code) == 0x94


def test_topic_aliases_towards_the_client(server: MqttServerProcess) -> None:
    topic = unique("alias-out")
    with Raw(server) as raw, Peer(server) as peer:
        raw.connect(topic_alias_max=1)
        assert raw.subscribe(f"{topic}/#") == [0]
        for name in ("one", "one", "two", "one"):
            peer.publish(f"{topic}/{name}", b"x")
        found = [raw.expect(mqtt5.PublishPacket) for _ in range(4)]
        assert [(one.topic, one.topic_alias) for one in found] == [
            (f"{topic}/one", 1),
            ("", 1),
            (f"{topic}/two", None),
            ("", 1),
        ]


def test_subscription_ids(server: MqttServerProcess) -> None:
    topic = unique("ids")
    with Peer(server) as peer:
        peer.subscribe(f"{topic}/#", qos=1, SubscriptionIdentifier=7)
        peer.subscribe(f"{topic}/a", qos=1, SubscriptionIdentifier=268435455)
        peer.subscribe(f"{topic}/+", qos=1)
        peer.publish(f"{topic}/a", b"both")
        peer.publish(f"{topic}/b", b"one")
        peer.publish(f"{topic}/end", b"end")
        ids: dict[bytes, list[int]] = {}
        while (delivery := peer.next()).payload != b"end":
            ids.setdefault(delivery.payload, []).extend(getattr(delivery.properties, "SubscriptionIdentifier", []))
        assert sorted(ids[b"both"]) == [7, 268435455]
        assert ids[b"one"] == [7]


def test_no_local(server: MqttServerProcess) -> None:
    topic = unique("local")
    with Peer(server) as peer, Peer(server) as other:
        peer.subscribe((topic, SubscribeOptions(1, noLocal=True)))
        peer.publish(topic, b"mine")
        other.publish(topic, b"theirs")
        assert peer.next().payload == b"theirs"


def test_retain_as_published(server: MqttServerProcess) -> None:
    topic = unique("published")
    with Peer(server) as peer:
        peer.subscribe((f"{topic}/a", SubscribeOptions(1, retainAsPublished=True)))
        peer.subscribe((f"{topic}/b", SubscribeOptions(1)))
        for name in ("a", "b"):
            peer.publish(f"{topic}/{name}", b"x", retain=True)
        assert {one.topic: one.retain for one in peer.take(2)} == {f"{topic}/a": True, f"{topic}/b": False}


def test_retain_handling(server: MqttServerProcess) -> None:
    topic = unique("handling")
    with Peer(server) as peer:
        peer.publish(topic, b"kept", retain=True)
        always, new, never = (SubscribeOptions(1, retainHandling=number) for number in (0, 1, 2))
        peer.subscribe((topic, never))
        peer.subscribe((topic, new))
        peer.publish(topic, b"1")
        assert peer.next().payload == b"1", "the subscription was there already"
        peer.subscribe((topic, always))
        assert peer.next().payload == b"kept"
        peer.unsubscribe(topic)
        peer.subscribe((topic, new))
        assert peer.next().payload == b"kept"
        peer.unsubscribe(topic)
        peer.subscribe((topic, never))
        peer.publish(topic, b"2")
        assert peer.next().payload == b"2"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_shared_subscriptions(server: MqttServerProcess, qos: int) -> None:
    topic = unique("shared")
    with Peer(server) as one, Peer(server) as two, Peer(server) as alone, Peer(server) as publisher:
        assert one.subscribe(f"$share/group/{topic}/#", qos=qos) == [qos]
        assert two.subscribe(f"$share/group/{topic}/#", qos=qos) == [qos]
        alone.subscribe(f"$share/other/{topic}/#", qos=qos)
        sent = [f"{number}".encode() for number in range(100)]
        for payload in sent:
            publisher.client.publish(f"{topic}/a", payload, 2)
        assert sorted(alone.payloads(100)) == sorted(sent)
        found: list[bytes] = []
        deadline = time.monotonic() + 20
        while len(found) < 100 and time.monotonic() < deadline:
            for peer in (one, two):
                while not peer.deliveries.empty():
                    found.append(peer.deliveries.get().payload)
            time.sleep(0.005)
        assert sorted(found) == sorted(sent), "each message for one of the group"


def test_a_shared_subscription_of_3_1_1_and_5(server: MqttServerProcess) -> None:
    topic = unique("shared-old")
    with Peer(server, 4) as old, Peer(server, 5) as new, Peer(server) as publisher:
        old.subscribe(f"$share/g/{topic}", qos=1)
        new.subscribe(f"$share/g/{topic}", qos=1)
        for number in range(50):
            publisher.client.publish(topic, f"{number}", 1)
        deadline = time.monotonic() + 20
        while old.deliveries.qsize() + new.deliveries.qsize() < 50:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_what_a_member_of_a_group_did_not_acknowledge_goes_to_another(server: MqttServerProcess) -> None:
    topic = unique("shared-gone")
    filter_ = f"$share/g/{topic}"
    first = Peer(server, manual_ack=True)
    first.open()
    first.subscribe(filter_, qos=1)
    with Peer(server) as publisher:
        for number in range(10):
            publisher.publish(topic, f"{number}")
        assert len(first.take(10)) == 10
        with Peer(server) as second:
            second.subscribe(filter_, qos=1)
            first.vanish()
            assert sorted(second.payloads(10)) == sorted(f"{number}".encode() for number in range(10))


def test_message_expiry(server: MqttServerProcess) -> None:
    name = unique("expiry")
    with Peer(server, client_id=name, clean=False, SessionExpiryInterval=300) as peer:
        peer.subscribe(name, qos=1)
    with Peer(server) as publisher:
        publisher.publish(name, b"short", MessageExpiryInterval=1)
        publisher.publish(name, b"long", MessageExpiryInterval=100)
        publisher.publish(name, b"for ever")
        time.sleep(1.2)
    with Peer(server, client_id=name, clean=False, SessionExpiryInterval=300) as peer:
        first, second = peer.take(2)
        assert first.payload == b"long"
        assert 90 <= first.properties.MessageExpiryInterval <= 99
        assert second.payload == b"for ever"
        assert not hasattr(second.properties, "MessageExpiryInterval")


def test_a_retained_message_expires(server: MqttServerProcess) -> None:
    topic = unique("retained-expiry")
    with Peer(server) as peer:
        peer.publish(f"{topic}/a", b"short", retain=True, MessageExpiryInterval=1)
        peer.publish(f"{topic}/b", b"long", retain=True, MessageExpiryInterval=100)
        time.sleep(1.2)
        peer.subscribe(f"{topic}/#", qos=1)
        peer.publish(f"{topic}/end", b"end")
        assert [one.payload for one in peer.take(2)] == [b"long", b"end"]


def test_receive_maximum_of_the_client(server: MqttServerProcess) -> None:
    topic = unique("receive")
    with Raw(server) as raw, Peer(server) as peer:
        raw.connect(receive_max=2)
        raw.subscribe(topic, 1)
        for number in range(5):
            peer.publish(topic, f"{number}")
        first, second = raw.expect(mqtt5.PublishPacket), raw.expect(mqtt5.PublishPacket)
        raw.nothing()
        assert first.packet_id is not None
        assert second.packet_id is not None
        raw.send(mqtt5.PubAckPacket(first.packet_id))
        third = raw.expect(mqtt5.PublishPacket)
        raw.nothing()
        assert third.packet_id is not None
        raw.send(mqtt5.PubAckPacket(second.packet_id), mqtt5.PubAckPacket(third.packet_id))
        rest = [raw.expect(mqtt5.PublishPacket).payload for _ in range(2)]
        assert [first.payload, second.payload, third.payload, *rest] == [b"0", b"1", b"2", b"3", b"4"]


def test_receive_maximum_of_the_server(server: MqttServerProcess) -> None:
    with Raw(server) as raw:
        maximum = raw.connect().receive_max
        # Released never, so they stay open however fast the server is.
        raw.send(
            *(
                mqtt5.PublishPacket("x", b"", qos=mqtt5.QoS.EXACTLY_ONCE, packet_id=number)
                for number in range(1, maximum + 2)
            )
        )
        while isinstance(packet := raw.read(), mqtt5.PubRecPacket):
            pass
        assert isinstance(packet, mqtt5.DisconnectPacket)
        assert int(packet.reason_code) == 0x93


def test_maximum_packet_size_of_the_client(server: MqttServerProcess) -> None:
    topic = unique("size")
    with Peer(server, MaximumPacketSize=200) as small, Peer(server) as peer:
        small.subscribe(topic, qos=1)
        peer.publish(topic, b"x" * 300)
        peer.publish(topic, b"fits")
        peer.publish(topic, b"x" * 300, 0)
        peer.publish(topic, b"fits too")
        assert small.payloads(2) == [b"fits", b"fits too"]


def test_maximum_packet_size_of_the_server(server: MqttServerProcess) -> None:
    with Raw(server) as raw:
        maximum = raw.connect().max_packet_size
        assert maximum is not None
        raw.send(b"\x30\xff\xff\xff\x7f")
        assert int(raw.expect(mqtt5.DisconnectPacket).reason_code) == 0x95
        assert raw.read() is None


def test_reason_codes(server: MqttServerProcess) -> None:
    topic = unique("reasons")
    with Peer(server) as peer:
        for qos in (1, 2):
            assert peer.publish(topic, b"x", qos) in (0x00, 0x10)
        peer.subscribe(topic, qos=1)
        assert peer.publish(topic, b"x") == 0
        assert peer.unsubscribe(topic, topic) == [0, 0x11]


def test_nobody_to_take_it(server: MqttServerProcess) -> None:
    topic = unique("nobody")
    with Peer(server) as peer:
        assert peer.publish(topic, b"x") == 0x10


def test_the_server_names_a_client_without_a_name(server: MqttServerProcess) -> None:
    first, second = Peer(server), Peer(server)
    names = set()
    for peer in (first, second):
        reason, answered = peer.open()
        assert reason == 0
        names.add(answered.AssignedClientIdentifier)
        peer.close()
    assert len(names) == 2
    with Peer(server, client_id=unique("named")) as peer:
        assert not peer.session_present
    named = Peer(server, client_id=unique("named"))
    _, answered = named.open()
    assert not hasattr(answered, "AssignedClientIdentifier")
    named.close()


def test_a_named_client_gets_its_session_by_the_assigned_name(server: MqttServerProcess) -> None:
    peer = Peer(server, SessionExpiryInterval=300)
    _, answered = peer.open()
    name = answered.AssignedClientIdentifier
    topic = unique("assigned")
    peer.subscribe(topic, qos=1)
    peer.close()
    with Peer(server, client_id=name, clean=False) as again:
        assert again.session_present


def test_request_and_response(server: MqttServerProcess) -> None:
    topic = unique("request")
    with Peer(server) as asking, Peer(server) as answering:
        asking.subscribe(f"{topic}/answers", qos=1)
        answering.subscribe(f"{topic}/questions", qos=1)
        asking.publish(f"{topic}/questions", b"6*7", ResponseTopic=f"{topic}/answers", CorrelationData=b"n1")
        asked = answering.next()
        answering.publish(asked.properties.ResponseTopic, b"42", CorrelationData=asked.properties.CorrelationData)
        answer = asking.next()
        assert (answer.payload, answer.properties.CorrelationData) == (b"42", b"n1")


@pytest.fixture
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttServerProcess]:
    """A server with a token and a keep-alive of its own."""
    process = MqttServerProcess(
        tmp_path_factory.mktemp("strict") / "queue.db", token="secret", max_keep_alive_seconds=30
    ).start()
    try:
        yield process
    finally:
        process.stop()


def test_passwords_and_the_servers_keep_alive(strict: MqttServerProcess) -> None:
    for version, refused in ((4, 0x86), (5, 0x86)):
        for transport in ("tcp", "websockets"):
            for password in (None, "wrong"):
                peer = Peer(strict, version, transport=transport)
                if password:
                    peer.client.username_pw_set("anybody", password)
                reason, _ = peer.open()
                assert reason == refused, (version, transport, password)
                peer.client.loop_stop()
            peer = Peer(strict, version, transport=transport, keep_alive=600)
            peer.client.username_pw_set("anybody", "secret")
            reason, answered = peer.open()
            assert reason == 0
            if version == 5:
                assert answered.ServerKeepAlive == 30
            peer.close()
