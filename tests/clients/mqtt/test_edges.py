"""At the limits and past them: what a client may not do is refused with a reason, and nobody else notices."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mqtt5
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as websocket
from websockets.typing import Origin

import penstock
from penstock import Message
from penstock.wire.mqtt.websocket import SUBPROTOCOL
from tests.clients.mqtt.raw import Raw
from tests.clients.mqtt.rig import PATIENCE_S, MqttServerProcess, Peer, unique, until
from tests.unit.wire.mqtt.test_fuzz import conversation

QOS_1 = mqtt5.QoS.AT_LEAST_ONCE


@pytest.fixture
def http(server: MqttServerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(server.url) as client:
        yield client


@pytest.mark.parametrize(
    "client_id", ["a b", "a/b", "#", "+", "$share/x", "ü✓", "x" * 200, "'; drop", "%00", "..", ".", "a\\b", "~"]
)
@pytest.mark.parametrize("version", [4, 5])
def test_client_ids(server: MqttServerProcess, client_id: str, version: int) -> None:
    options: dict[str, Any] = {"SessionExpiryInterval": 100} if version == 5 else {}
    topic = unique("id")
    with Peer(server, version, client_id, clean=False, **options) as peer:
        peer.subscribe(topic, qos=1)
    with Peer(server, version, client_id, clean=False, **options) as peer:
        assert peer.session_present
        peer.publish(topic, b"x")
        assert peer.next().payload == b"x"
    with Peer(server, version, client_id) as peer:
        assert not peer.session_present


def test_a_client_id_that_is_too_long_is_refused(server: MqttServerProcess) -> None:
    for client_id in ("x" * 201, "x" * 60000):
        with Raw(server) as raw:
            assert int(raw.connect(client_id).reason_code) == 0x85
        peer = Peer(server, 4, client_id)
        assert peer.open()[0] == 0x85
        peer.client.loop_stop()


@pytest.mark.parametrize("client_id", ["a\x01b", "\x7f", "\x9f"])
def test_a_client_id_with_a_control_character_is_a_protocol_error(server: MqttServerProcess, client_id: str) -> None:
    with Raw(server) as raw:
        assert int(raw.connect(client_id).reason_code) == 0x82
        assert raw.read() is None


@pytest.mark.parametrize(
    "packet", [mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("")]), mqtt5.UnsubscribePacket(1, [""])]
)
def test_an_empty_filter_closes_the_connection(server: MqttServerProcess, packet: Any) -> None:
    with Raw(server) as raw:
        raw.connect()
        raw.send(packet)
        assert int(raw.expect(mqtt5.DisconnectPacket).reason_code) == 0x81
        assert raw.read() is None


@pytest.mark.parametrize(
    ("qos", "answer"),
    [(1, mqtt5.PubRecPacket), (1, mqtt5.PubCompPacket), (2, mqtt5.PubAckPacket), (2, mqtt5.PubCompPacket)],
)
def test_an_answer_of_another_qos_is_a_protocol_error(server: MqttServerProcess, qos: int, answer: Any) -> None:
    topic = unique("answers")
    with Raw(server) as raw, Peer(server) as peer:
        raw.connect()
        raw.subscribe(topic, qos)
        peer.publish(topic, b"x", qos=qos)
        raw.send(answer(raw.expect(mqtt5.PublishPacket).packet_id))
        assert int(raw.expect(mqtt5.DisconnectPacket).reason_code) == 0x82
        assert raw.read() is None


def test_topics_and_filters_that_are_too_long(server: MqttServerProcess) -> None:
    with Raw(server) as raw:
        raw.connect()
        for length, granted in ((200, 1), (5000, 0x8F), (65000, 0x8F)):
            assert raw.subscribe("a" * length, 1) == [granted]
        for length, reason in ((5000, 0x90), (65000, 0x90)):
            raw.send(mqtt5.PublishPacket("b" * length, b"x", qos=QOS_1, packet_id=1))
            assert int(raw.expect(mqtt5.PubAckPacket).reason_code) == reason
        raw.nothing()


@pytest.mark.parametrize("topic", ["x" * 5000, "$SYS/x", "$queue/", "$queue/wills/$ack"])
def test_a_will_that_cannot_be_published_harms_nobody(server: MqttServerProcess, topic: str) -> None:
    name = unique("bad-will")
    with Raw(server) as raw:
        raw.connect(name, will=mqtt5.Will(topic, payload=b"x", qos=QOS_1))
    with Raw(server) as raw:
        assert int(raw.connect(name).reason_code) == 0
        raw.nothing()


def test_a_payload_at_the_limit_and_past_it(server: MqttServerProcess) -> None:
    topic = unique("payload")
    limit = 16 * 1024 * 1024
    with Raw(server) as raw:
        raw.connect()
        raw.subscribe(topic, 0)
        raw.send(mqtt5.PublishPacket(topic, bytes(limit), qos=QOS_1, packet_id=1))
        packets = [raw.read(), raw.read()]
        assert {type(packet) for packet in packets} == {mqtt5.PubAckPacket, mqtt5.PublishPacket}
        assert next(one for one in packets if isinstance(one, mqtt5.PublishPacket)).payload == bytes(limit)
        raw.send(mqtt5.PublishPacket(topic, bytes(limit + 1), qos=QOS_1, packet_id=2))
        assert int(raw.expect(mqtt5.PubAckPacket).reason_code) >= 0x80
        raw.nothing()


def test_odd_properties_come_through_or_are_refused(server: MqttServerProcess) -> None:
    topic = unique("odd")
    with Raw(server) as raw:
        raw.connect()
        raw.subscribe(topic, 0)
        cases: list[dict[str, object]] = [
            {"correlation_data": b""},
            {"content_type": ""},
            {"content_type": "x" * 60000},
            {"correlation_data": bytes(60000)},
            {"response_topic": "x" * 60000},
            {"message_expiry_interval": 300_000_000},
            {"payload_format_indicator": 1},
            {"user_properties": [("a", "x" * 60000)]},
            {"user_properties": [("x" * 60000, "a")]},
            {"user_properties": [(f"{number}", "x" * 1000) for number in range(60)]},
            {"user_properties": [("a", f"{number}") for number in range(2000)]},
            {"user_properties": [("mqtt", "a"), ("amqp", "b"), ("amqp-x", "c"), ("mqtt-retained", "d"), ("", "")]},
            {"user_properties": [("traceparent", "nonsense"), ("message-id", "x"), ("a", "1"), ("b", "2"), ("a", "3")]},
        ]
        for number, given in enumerate(cases, 1):
            raw.send(mqtt5.PublishPacket(topic, b"x", qos=QOS_1, packet_id=number, **given))  # type: ignore[arg-type]
            packets = [raw.read()]
            answer = packets[0]
            if isinstance(answer, mqtt5.PublishPacket) or int(answer.reason_code) < 0x80:
                packets.append(raw.read())
            answers = [one for one in packets if isinstance(one, mqtt5.PubAckPacket)]
            deliveries = [one for one in packets if isinstance(one, mqtt5.PublishPacket)]
            assert len(answers) == 1
            assert answers[0].packet_id == number
            if int(answers[0].reason_code) >= 0x80:
                assert answers[0].reason_str, "a refusal says why"
                continue
            for name, value in given.items():
                assert getattr(deliveries[0], name) == value, name


def test_a_message_expiry_of_0(server: MqttServerProcess) -> None:
    topic = unique("expired")
    with Raw(server) as raw:
        raw.connect()
        raw.subscribe(topic, 0)
        raw.send(mqtt5.PublishPacket(topic, b"x", qos=QOS_1, packet_id=1, message_expiry_interval=0))
        while not isinstance(packet := raw.read(), mqtt5.PubAckPacket):
            assert isinstance(packet, mqtt5.PublishPacket)
        assert int(packet.reason_code) < 0x80 or packet.reason_str
        raw.send(mqtt5.PublishPacket(topic, b"end", qos=QOS_1, packet_id=2))
        payloads = []
        while b"end" not in payloads:
            if isinstance(packet := raw.read(), mqtt5.PublishPacket):
                payloads.append(packet.payload)


FOREIGN = {
    "wildcard #": Message(b"x", key="a/#"),
    "wildcard +": Message(b"x", key="+"),
    "key with U+0000": Message(b"x", key="a\x00b"),
    "long text": Message(b"x", headers={"a": "y" * 65_000}),
    "U+0000": Message(b"x", headers={"a": "\x00"}),
    "long value": Message(b"x", headers={"a": ["y" * 30_000, 1, {"b": b"y" * 30_000}]}),
    "empty origin": Message(b"x", headers={"mqtt": b""}),
    "strange origin": Message(b"x", headers={"mqtt": b"\xff\xff\xff"}),
    "strange response topic": Message(
        b"x", headers={"mqtt": "text", "mqtt-user-properties": ["odd"], "mqtt-response-topic": "a/#"}
    ),
    "strange properties": Message(
        b"x", headers={"mqtt-user-properties": ["a", "y\x00"], "mqtt-correlation-data": "text"}
    ),
    "empty response topic": Message(b"x", headers={"mqtt-response-topic": "", "mqtt-payload-format": 7}),
    "nobody's subscription": Message(b"x", headers={"mqtt-subscription": "nobody's", "mqtt-retained": True}),
    "content type with U+0000": Message(b"x", content_type="a\x00b"),
    "correlation with U+0000": Message(b"x", correlation_id="a\x00b", content_type="y" * 200),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_other_protocols_publish_stops_no_subscriber(
    server: MqttServerProcess, http: penstock.Client, case: str
) -> None:
    """Delivered as far as MQTT can say it, or left out; what follows comes in any case."""
    topic = unique("foreign")
    message = FOREIGN[case]
    with Raw(server) as raw, Peer(server, 4) as old:
        raw.connect()
        raw.subscribe("#", 1)
        old.subscribe(f"{topic}/#", "a/#", "+", qos=1)
        with suppress(penstock.PenstockError):  # then there is nothing to deliver
            http.publish_to("mqtt", [message if message.key else _with_key(message, topic)])
        http.publish_to("mqtt", [Message(b"end", key=f"{topic}/end")])
        while (delivery := old.next()).payload != b"end":
            assert "#" not in delivery.topic
            assert delivery.topic
        while (packet := raw.expect(mqtt5.PublishPacket)).topic != f"{topic}/end":
            assert "#" not in packet.topic
            assert packet.response_topic is None or "#" not in packet.response_topic
            assert packet.packet_id is not None
            raw.send(mqtt5.PubAckPacket(packet.packet_id))


def _with_key(message: Message, topic: str) -> Message:
    return Message(
        message.payload,
        key=f"{topic}/x",
        headers=message.headers,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
    )


def test_shared_subscriptions_get_no_retained_messages(server: MqttServerProcess) -> None:
    topic = unique("shared-retained")
    with Peer(server) as peer:
        peer.publish(topic, b"kept", retain=True)
        peer.subscribe(f"$share/g/{topic}", qos=1)
        peer.publish(topic, b"live")
        assert peer.next().payload == b"live"


def test_a_client_too_small_for_anything(server: MqttServerProcess) -> None:
    with Raw(server) as raw:
        raw.send(mqtt5.ConnectPacket("", clean_start=True, max_packet_size=3))
        assert raw.read() is None, "not even the CONNACK fits"


def test_packets_behind_connect_are_carried_out(server: MqttServerProcess) -> None:
    topic = unique("eager")
    with Raw(server) as raw:
        raw.send(
            mqtt5.ConnectPacket("", clean_start=True),
            mqtt5.SubscribePacket(1, [mqtt5.TopicFilter(topic)]),
            mqtt5.PublishPacket(topic, b"x", qos=QOS_1, packet_id=2),
        )
        raw.expect(mqtt5.ConnAckPacket)
        raw.expect(mqtt5.SubAckPacket)
        assert {type(raw.read()), type(raw.read())} == {mqtt5.PubAckPacket, mqtt5.PublishPacket}


def test_what_was_sent_before_disconnect_is_published(server: MqttServerProcess) -> None:
    topic = unique("parting")
    with Peer(server) as witness:
        witness.subscribe(topic, qos=1)
        with Raw(server) as raw:
            raw.send(
                mqtt5.ConnectPacket("", clean_start=True),
                *(mqtt5.PublishPacket(topic, f"{number}".encode()) for number in range(100)),
                mqtt5.DisconnectPacket(),
            )
            while raw.read() is not None:
                pass
        assert witness.payloads(100) == [f"{number}".encode() for number in range(100)]


def test_a_client_that_does_not_read_holds_up_nobody(server: MqttServerProcess) -> None:
    topic = unique("slow")
    payload = bytes(100_000)
    with Raw(server) as slow, Peer(server) as quick, Peer(server) as publisher:
        slow.connect()
        slow.subscribe(topic, 0)
        quick.subscribe(topic, qos=1)
        before = memory(server)
        for _ in range(600):
            publisher.publish(topic, payload)
        assert len(quick.take(600)) == 600
        assert memory(server) - before < 200_000_000
        slow.send(mqtt5.PingReqPacket())
        while not isinstance(slow.read(), mqtt5.PingRespPacket):
            pass


def memory(server: MqttServerProcess) -> int:
    """Bytes that the server has in memory."""
    fields = Path(f"/proc/{server.process_id}/statm").read_text().split()
    return int(fields[1]) * 4096


def test_of_many_connections_with_one_name_one_stays(server: MqttServerProcess) -> None:
    name = unique("crowd")
    crowd = [Raw(server) for _ in range(20)]
    try:
        for raw in crowd:
            raw.send(mqtt5.ConnectPacket(name, session_expiry_interval=300), mqtt5.PingReqPacket())
        staying = []
        for raw in crowd:
            assert isinstance(raw.read(), mqtt5.ConnAckPacket)
            last = raw.expect(mqtt5.PingRespPacket | mqtt5.DisconnectPacket)  # type: ignore[arg-type]
            if isinstance(last, mqtt5.PingRespPacket):
                raw.send(mqtt5.PingReqPacket())
                last = raw.read()
            if isinstance(last, mqtt5.PingRespPacket):
                staying.append(raw)
            elif last is not None:
                assert int(last.reason_code) == 0x8E
        assert len(staying) == 1
        assert staying[0].subscribe(name, 1) == [1]
    finally:
        for raw in crowd:
            raw.__exit__()


def test_thousands_of_retained_messages(server: MqttServerProcess) -> None:
    topic = unique("kept")
    count = 1_000
    with Peer(server) as publisher:
        numbers = [
            publisher.client.publish(f"{topic}/{number}", f"{number}", number % 3, retain=True).mid
            for number in range(count)
        ]
        for number in numbers:
            publisher.answer(number)
        with Peer(server, 4) as old, Peer(server, 5, ReceiveMaximum=5) as new:
            old.subscribe(f"{topic}/+", qos=1)
            new.subscribe(f"{topic}/+", qos=2)
            for peer in (old, new):
                found = peer.take(count)
                assert {one.topic for one in found} == {f"{topic}/{number}" for number in range(count)}
                assert all(one.retain for one in found)


def test_a_shared_and_an_ordinary_subscription_are_two(server: MqttServerProcess) -> None:
    topic = unique("two")
    with Peer(server) as peer:
        peer.subscribe(topic, qos=1, SubscriptionIdentifier=1)
        peer.subscribe(f"$share/g/{topic}", qos=1, SubscriptionIdentifier=2)
        peer.publish(topic, b"x")
        assert sorted(one.properties.SubscriptionIdentifier for one in peer.take(2)) == [[1], [2]]
        assert peer.unsubscribe(f"$share/g/{topic}") == [0]
        peer.publish(topic, b"y")
        peer.publish(topic, b"z")
        assert peer.payloads(2) == [b"y", b"z"]


def test_noise_on_sockets_disturbs_nobody(server: MqttServerProcess) -> None:
    topic = unique("noise")
    chance = random.Random(7)
    with Peer(server) as peer:
        peer.subscribe(topic, qos=1)
        for number in range(150):
            data = bytearray(b"".join(conversation(4 + number % 2)))
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as noisy:
                noisy.sendall(data[: chance.randrange(1, len(data))])
                if number % 3 == 0:
                    noisy.shutdown(socket.SHUT_WR)
                    while noisy.recv(65536):
                        pass
            with socket.create_connection(("127.0.0.1", server.websocket_port), PATIENCE_S) as noisy:
                noisy.sendall(bytes(data))
        peer.publish(topic, b"still here")
        assert peer.next().payload == b"still here"


def test_what_a_client_still_sends_after_a_disconnect_does_not_reset_the_connection(server: MqttServerProcess) -> None:
    """The reason that the server gives is heard, whatever was on its way to it."""
    with Raw(server) as client:
        client.connect()
        client.send(mqtt5.ConnectPacket("again"))
        assert client.expect(mqtt5.DisconnectPacket).reason_code == 0x82
        for _ in range(100):
            client.send(mqtt5.PingReqPacket())
        assert client.read() is None
        client.send(mqtt5.PingReqPacket())


def test_short_connections_leave_nothing(server: MqttServerProcess, http: penstock.Client) -> None:
    def queues() -> int:
        return sum(name.startswith("mqtt/") for name in http.queues())

    before = queues()
    for number in range(40):
        with Raw(server) as raw:
            raw.connect(will=mqtt5.Will("w", payload=b"x"))
            raw.subscribe(f"short/{number}", 1)
            raw.subscribe(f"$share/short{number}/x", 1)
    until(lambda: queues() <= before, "the queues of sessions that are over are gone")


@pytest.fixture
def open_to_pages(tmp_path: Path) -> Iterator[MqttServerProcess]:
    process = MqttServerProcess(tmp_path / "queue.db", token="secret").start()
    try:
        yield process
    finally:
        process.stop()


def test_pages_of_other_sites_only_with_a_password(server: MqttServerProcess, open_to_pages: MqttServerProcess) -> None:
    def open_as(place: MqttServerProcess, origin: str) -> None:
        address = f"ws://127.0.0.1:{place.websocket_port}/mqtt"
        with websocket(address, subprotocols=[SUBPROTOCOL], origin=Origin(origin)):
            pass

    open_as(server, "http://localhost:3000")
    with pytest.raises(InvalidStatus, match="403"):
        open_as(server, "https://example.com")
    open_as(open_to_pages, "https://example.com")


def test_the_log_says_who_was_turned_away_and_why(tmp_path: Path) -> None:
    process = MqttServerProcess(tmp_path / "queue.db", token="secret").start()
    try:
        with Raw(process) as raw:
            assert int(raw.connect("stranger", username="mallory", password=b"guessed").reason_code) == 0x86
        with Raw(process) as raw:
            raw.send(b"GET / HTTP/1.1\r\n\r\n")
            assert raw.read() is None
        until(lambda: "mallory" in process.log, "the login in the log")
        until(lambda: "CONNECT" in process.log, "the garbage in the log")
        assert "guessed" not in process.log
    finally:
        process.stop()


def test_the_log_says_which_publish_was_refused(server: MqttServerProcess) -> None:
    topic = unique("$SYS/refused")
    with Raw(server) as raw:
        raw.connect()
        raw.send(mqtt5.PublishPacket(topic, payload=b"x", qos=QOS_1, packet_id=1))
        assert int(raw.read().reason_code) == 0x90
    until(lambda: repr(topic) in server.log, "the refusal in the log")
