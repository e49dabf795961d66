"""The engine's rules that span packets: letting in, silence, aliases, sizes, what is unanswered, the end."""

from __future__ import annotations

import mqtt5
import pytest

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import Connect, Disconnect, Lost, Publish, PublishProperties
from penstock.wire.mqtt.reasons import Reason
from tests.unit.wire.mqtt.rig import (
    DISCONNECT,
    PINGREQ,
    PUBLISH,
    PUBREL,
    connect,
    open_connection,
    packet,
    properties,
    publish,
    refused,
)

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@VERSIONS
def test_nothing_is_read_before_connack(version: int) -> None:
    connection = ServerConnection(Limits())
    events = connection.receive(connect(version) + publish(version) + packet(PINGREQ))
    assert [type(event) for event in events] == [Connect]
    assert connection.receive(publish(version)) == []
    assert connection.take() == b""
    connection.connack()
    connection.take()
    assert [type(event) for event in connection.receive(b"")] == [Publish, Publish]
    assert connection.take() == b"\xd0\x00"


@VERSIONS
def test_what_waits_for_connack_is_limited(version: int) -> None:
    connection = ServerConnection(Limits())
    connection.receive(connect(version))
    flood = publish(version, payload=b"x" * 60000)
    events = [event for _ in range(30) for event in connection.receive(flood)]
    assert refused(connection, events) is Reason.QUOTA_EXCEEDED


@VERSIONS
def test_refused_by_connack(version: int) -> None:
    connection = ServerConnection(Limits())
    connection.receive(connect(version) + publish(version))
    connection.connack(Reason.BAD_USER_NAME_OR_PASSWORD)
    assert connection.closed
    assert connection.receive(b"") == []
    assert connection.take() in (b"\x20\x02\0\x04", b"\x20\x03\0\x86\0")


def test_connack_without_connect_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(RuntimeError, match="connack"):
        ServerConnection(Limits()).connack()
    with pytest.raises(RuntimeError, match="connack"):
        open_connection(5).connack()


@VERSIONS
def test_connect_must_come_in_time(version: int) -> None:
    connection = ServerConnection(Limits(connect_within_s=10))
    assert connection.tick(100.0) == []
    connection.receive(connect(version)[:5])
    assert connection.tick(109.9) == []
    lost = connection.tick(110.1)
    assert isinstance(lost[0], Lost)
    assert connection.closed
    assert connection.take() == b""
    assert connection.tick(200.0) == []


@VERSIONS
def test_keep_alive(version: int) -> None:
    connection = open_connection(version, keep_alive=10)
    assert connection.tick(100.0) == []
    assert connection.tick(115.0) == []
    connection.receive(packet(PINGREQ))
    assert connection.tick(116.0) == []
    assert connection.tick(131.0) == []
    connection.receive(b"\x30")  # The start of a packet is none yet.
    assert isinstance(connection.tick(131.1)[0], Lost)
    sent = connection.take()
    assert sent.startswith(b"\xd0\x00")
    assert (sent[2:] != b"") is (version == 5)
    if version == 5:
        ended, _ = mqtt5.read(memoryview(sent)[2:])
        assert isinstance(ended, mqtt5.DisconnectPacket)
        assert int(ended.reason_code) == Reason.KEEP_ALIVE_TIMEOUT


def test_no_keep_alive() -> None:
    connection = open_connection(5)
    assert connection.tick(0.0) == []
    assert connection.tick(1e9) == []


def test_a_long_packet_on_its_way_is_a_sign_of_life() -> None:
    connection = open_connection(4, keep_alive=1)
    sent = publish(4, payload=b"x" * 100_000)
    connection.tick(0.0)
    for index in range(0, len(sent), 2000):
        connection.receive(sent[index : index + 2000])
        assert connection.tick(index / 1000) == []


@pytest.mark.parametrize(("version", "lost"), [(4, False), (5, True)])
def test_the_servers_keep_alive_binds_version_5(version: int, lost: bool) -> None:
    connection = ServerConnection(Limits())
    connection.receive(connect(version, keep_alive=1000))
    connection.connack(server_keep_alive=10)
    connection.tick(0.0)
    assert bool(connection.tick(16.0)) is lost


def test_topic_aliases_of_a_client() -> None:
    connection = open_connection(5, Limits(topic_alias_maximum=2))
    alias_1, alias_2 = b"\x23\0\x01", b"\x23\0\x02"
    events = connection.receive(
        publish(5, topic="first", with_properties=alias_1)
        + publish(5, topic="", with_properties=alias_1)
        + publish(5, topic="second", with_properties=alias_2)
        + publish(5, topic="third", with_properties=alias_1)
        + publish(5, topic="", with_properties=alias_2)
        + publish(5, topic="", with_properties=alias_1)
    )
    topics = [event.topic for event in events if isinstance(event, Publish)]
    assert topics == ["first", "first", "second", "third", "second", "third"]
    assert refused(connection, connection.receive(publish(5, with_properties=b"\x23\0\x03"))) is (
        Reason.TOPIC_ALIAS_INVALID
    )


def deliveries(connection: ServerConnection) -> list[mqtt5.PublishPacket]:
    data = memoryview(connection.take())
    packets = []
    while data:
        delivered, size = mqtt5.read(data)
        assert isinstance(delivered, mqtt5.PublishPacket)
        packets.append(delivered)
        data = data[size:]
    return packets


def test_topic_aliases_towards_a_client() -> None:
    connection = open_connection(5, Limits(topic_alias_maximum=2), with_properties=b"\x22\0\x05")
    for topic in ("first", "second", "first", "third", "second", "abc"):
        connection.publish(topic, b"x")
    sent = [(delivered.topic, delivered.topic_alias) for delivered in deliveries(connection)]
    assert sent == [("first", 1), ("second", 2), ("", 1), ("third", None), ("", 2), ("abc", None)]


@VERSIONS
def test_only_what_is_acknowledged_can_come_again(version: int) -> None:
    connection = open_connection(version)
    connection.publish("a", b"x", qos=0, dup=True)
    connection.publish("a", b"x", qos=1, dup=True, packet_id=1)
    sent = connection.take()
    assert sent[0] == PUBLISH
    assert sent[sent.index(b"x") + 1] == PUBLISH | 0x0A


def test_no_aliases_for_a_client_that_did_not_ask() -> None:
    connection = open_connection(5)
    connection.publish("first", b"x")
    connection.publish("first", b"x")
    assert [(packet.topic, packet.topic_alias) for packet in deliveries(connection)] == [("first", None)] * 2


def test_a_packet_too_long_for_the_client_is_not_sent_and_sets_no_alias() -> None:
    connection = open_connection(5, with_properties=b"\x27\0\0\0\x40\x22\0\x05")
    assert not connection.publish("a/topic", b"x" * 60)
    assert connection.take() == b""
    assert connection.publish("a/topic", b"x" * 45)
    assert deliveries(connection)[0].topic == "a/topic"
    fits = 64 - 2 - 2 - len("a/top") - 1 - 3  # first byte and length, topic's length, properties' length, alias
    assert connection.publish("a/top", b"x" * fits)
    assert len(connection.take()) == 64
    assert not connection.publish("b/top", b"x" * (fits + 1))
    assert not connection.closed


def test_answers_lose_their_text_where_they_are_too_long() -> None:
    connection = open_connection(5, with_properties=b"\x27\0\0\0\x20")
    connection.puback(1, Reason.QUOTA_EXCEEDED, text="much too long for such a small client" * 2)
    connection.suback(2, [0], text="much too long for such a small client" * 2)
    assert connection.take() == b"\x40\x03\0\x01\x97" + b"\x90\x04\0\x02\0\0"
    connection.suback(3, [0] * 100)
    assert connection.closed, "an answer that cannot be given must not be left out silently"
    assert connection.take() == b""


def test_no_texts_for_a_client_that_wants_none() -> None:
    connection = open_connection(5, with_properties=b"\x17\0")
    connection.puback(1, Reason.QUOTA_EXCEEDED, text="full")
    connection.unsuback(2, [0], text="gone")
    assert connection.take() == b"\x40\x03\0\x01\x97" + b"\xb0\x04\0\x02\0\0"


def qos_publish(qos: int, packet_id: int) -> bytes:
    return publish(5, first=PUBLISH | qos << 1, packet_id=packet_id.to_bytes(2, "big"))


def test_receive_maximum() -> None:
    connection = open_connection(5, Limits(receive_maximum=3))
    assert len(connection.receive(qos_publish(1, 1) + qos_publish(2, 2) + qos_publish(2, 3) + publish(5))) == 4
    assert len(connection.receive(qos_publish(2, 2))) == 1, "the same packet again is not one more"
    connection.puback(1)
    assert len(connection.receive(qos_publish(1, 4))) == 1
    connection.pubrec(2)
    connection.pubrec(3, Reason.QUOTA_EXCEEDED)
    assert len(connection.receive(qos_publish(1, 5))) == 1
    connection.receive(packet(PUBREL, b"\0\x02"))
    connection.pubcomp(2)
    assert len(connection.receive(qos_publish(2, 6))) == 1
    assert refused(connection, connection.receive(qos_publish(1, 7))) is Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_3_1_1_has_no_receive_maximum() -> None:
    connection = open_connection(4, Limits(receive_maximum=1))
    sent = [publish(4, first=PUBLISH | 2, packet_id=number.to_bytes(2, "big")) for number in range(1, 50)]
    assert len(connection.receive(b"".join(sent))) == 49


@VERSIONS
def test_packet_sizes_at_the_limit(version: int) -> None:
    sent = publish(version, payload=b"x" * 100)
    connection = open_connection(version, Limits(maximum_packet_size=len(sent)))
    assert len(connection.receive(sent)) == 1
    connection = open_connection(version, Limits(maximum_packet_size=len(sent) - 1))
    assert refused(connection, connection.receive(sent[:3])) is Reason.PACKET_TOO_LARGE


@VERSIONS
def test_connect_has_a_limit_of_its_own(version: int) -> None:
    sent = connect(version)
    assert ServerConnection(Limits(maximum_connect_size=len(sent))).receive(sent)
    connection = ServerConnection(Limits(maximum_connect_size=len(sent) - 1))
    assert refused(connection, connection.receive(sent)) is Reason.PACKET_TOO_LARGE


def test_disconnect_of_the_client() -> None:
    connection = open_connection(5, with_properties=b"\x11\0\0\0\x0a")
    events = connection.receive(
        packet(DISCONNECT, b"\x04", properties(b"\x11\0\0\0\x14", b"\x1f\0\x03bye")) + publish(5)
    )
    assert events == [Disconnect(Reason.DISCONNECT_WITH_WILL, 20, "bye")]
    assert connection.closed
    assert connection.receive(publish(5)) == []


def test_disconnect_may_keep_a_session_at_nothing() -> None:
    connection = open_connection(5)
    assert connection.receive(packet(DISCONNECT, b"\0", properties(b"\x11\0\0\0\0"))) == [Disconnect(0, 0)]


@VERSIONS
def test_disconnect_of_the_server(version: int) -> None:
    connection = open_connection(version)
    connection.publish("a", b"x")
    connection.disconnect(Reason.SESSION_TAKEN_OVER, text="somebody else")
    connection.disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert connection.closed
    sent = connection.take()
    assert sent.startswith(bytes([PUBLISH]))
    assert (b"\x8e" in sent) is (version == 5)
    assert b"\x8b" not in sent


def test_disconnect_before_connack_is_said_by_connack() -> None:
    connection = ServerConnection(Limits())
    connection.receive(connect(5))
    connection.disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert connection.closed
    # CONNACK has no code for a shutdown: the nearest is that the server is unavailable.
    assert connection.take() == b"\x20\x03\0\x88\0"


@VERSIONS
def test_nothing_is_written_after_the_end(version: int) -> None:
    connection = open_connection(version)
    connection.disconnect()
    connection.take()
    assert connection.publish("a", b"x", qos=1, packet_id=1)
    connection.puback(1)
    connection.pubrec(1)
    connection.pubrel(1)
    connection.pubcomp(1)
    connection.suback(1, [0])
    connection.unsuback(1, [0])
    connection.connack()
    assert connection.take() == b""


@pytest.mark.parametrize("text", ["x" * 100_000, "a\0b", "\ud800", "ü" * 40_000])
def test_any_text_may_be_given_as_a_reason(text: str) -> None:
    """It says what went wrong, with whatever somebody sent in it: it must not make things worse."""
    connection = open_connection(5)
    connection.puback(1, Reason.QUOTA_EXCEEDED, text=text)
    connection.suback(1, [0], text=text)
    connection.disconnect(Reason.PROTOCOL_ERROR, text=text)
    data = memoryview(connection.take())
    for kind in (mqtt5.PubAckPacket, mqtt5.SubAckPacket, mqtt5.DisconnectPacket):
        told, size = mqtt5.read(data)
        assert isinstance(told, kind)
        assert told.reason_str
        assert len(told.reason_str) <= 1000
        assert "\0" not in told.reason_str
        data = data[size:]
    connection = ServerConnection(Limits())
    connection.receive(connect(5))
    connection.connack(Reason.NOT_AUTHORIZED, text=text)
    assert isinstance(mqtt5.read(memoryview(connection.take()))[0], mqtt5.ConnAckPacket)


def test_what_mqtt_cannot_carry_is_a_mistake_of_the_caller() -> None:
    for properties_ in (
        PublishProperties(content_type="x" * 65536),
        PublishProperties(correlation_data=b"x" * 65536),
        PublishProperties(user_properties=(("a", "x" * 65536),)),
    ):
        with pytest.raises(ValueError, match="at most 65535"):
            open_connection(5).publish("a", b"", properties=properties_)
    with pytest.raises(ValueError, match="at most 65535"):
        open_connection(5).publish("a" * 65536, b"")
