"""Version 5 against the mqtt5 library: what it writes we read, what we write it reads, with the same values."""

from __future__ import annotations

from typing import Any

import mqtt5
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import (
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PublishProperties,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from tests.unit.wire.mqtt.rig import open_connection
from tests.unit.wire.mqtt.strategies import (
    CONNECTS,
    OPEN_PACKETS,
    PACKET_IDS,
    PAYLOADS,
    PUBLISH_REASONS,
    QOS,
    TEXTS,
    TOPICS,
    publishes,
)

LONG_SESSION = b"\x11\0\0\0\x0a"


def expected_properties(packet: mqtt5.PublishPacket | mqtt5.Will) -> PublishProperties:
    return PublishProperties(
        packet.payload_format_indicator or None,  # the library writes no 0
        packet.message_expiry_interval,
        packet.content_type,
        packet.response_topic,
        packet.correlation_data,
        tuple(packet.user_properties),
    )


def expected_will(will: mqtt5.Will | None) -> Will | None:
    if will is None:
        return None
    return Will(
        will.topic, will.payload or b"", int(will.qos), will.retain, will.will_delay_interval, expected_properties(will)
    )


def expected(packet: Any) -> object:
    """The event that the packet is."""
    match packet:
        case mqtt5.PublishPacket():
            return Publish(
                packet.topic,
                packet.payload,
                int(packet.qos),
                packet.retain,
                packet.duplicate,
                packet.packet_id or 0,
                expected_properties(packet),
            )
        case mqtt5.PubAckPacket() | mqtt5.PubRecPacket():
            kind = PubAck if isinstance(packet, mqtt5.PubAckPacket) else PubRec
            return kind(packet.packet_id, int(packet.reason_code))
        case mqtt5.PubRelPacket():
            return PubRel(packet.packet_id, int(packet.reason_code))
        case mqtt5.PubCompPacket():
            return PubComp(packet.packet_id, int(packet.reason_code))
        case mqtt5.SubscribePacket():
            return Subscribe(
                packet.packet_id,
                tuple(
                    Subscription(
                        entry.pattern,
                        int(entry.max_qos),
                        entry.no_local,
                        entry.retain_as_published,
                        int(entry.retain_handling),
                    )
                    for entry in packet.topic_filters
                ),
                packet.subscription_id,
                tuple(packet.user_properties),
            )
        case mqtt5.UnsubscribePacket():
            return Unsubscribe(packet.packet_id, tuple(packet.patterns), tuple(packet.user_properties))
        case mqtt5.DisconnectPacket():
            return Disconnect(
                int(packet.reason_code),
                packet.session_expiry_interval,
                packet.reason_str or "",
                tuple(packet.user_properties),
            )
    raise AssertionError(packet)


@given(CONNECTS)
def test_connect(packet: mqtt5.ConnectPacket) -> None:
    connection = ServerConnection(Limits())
    assert connection.receive(packet.write()) == [
        Connect(
            5,
            packet.client_id,
            packet.clean_start,
            packet.keep_alive,
            packet.username,
            packet.password,
            expected_will(packet.will),
            packet.session_expiry_interval,
            packet.receive_max,
            packet.max_packet_size,
            packet.topic_alias_max,
            packet.request_response_info,
            packet.request_problem_info,
            tuple(packet.user_properties),
        )
    ]
    assert connection.version == 5


@given(OPEN_PACKETS)
def test_packets_of_a_client(packet: Any) -> None:
    connection = open_connection(5, with_properties=LONG_SESSION)
    assert connection.receive(packet.write()) == [expected(packet)]
    assert connection.closed is isinstance(packet, mqtt5.DisconnectPacket)


@given(publishes(), st.lists(st.integers(1, 0x0FFFFFFF), max_size=3))
def test_deliveries_byte_for_byte(packet: mqtt5.PublishPacket, subscription_ids: list[int]) -> None:
    connection = open_connection(5)
    sent = connection.publish(
        packet.topic,
        packet.payload,
        qos=int(packet.qos),
        retain=packet.retain,
        dup=packet.duplicate,
        packet_id=packet.packet_id or 0,
        properties=expected_properties(packet),
        subscription_ids=subscription_ids,
    )
    assert sent
    ours, _ = mqtt5.read(memoryview(connection.take()))
    assert isinstance(ours, mqtt5.PublishPacket)
    assert ours.subscription_ids == subscription_ids
    assert expected(ours) == expected(packet)


@given(PACKET_IDS, st.sampled_from(PUBLISH_REASONS), TEXTS)
def test_acknowledgements(packet_id: int, reason: int, text: str) -> None:
    connection = open_connection(5)
    connection.puback(packet_id, reason, text=text)
    connection.pubrec(packet_id, reason, text=text)
    connection.pubrel(packet_id, 0x92)
    connection.pubcomp(packet_id)
    data = memoryview(connection.take())
    for packet_class in (mqtt5.PubAckPacket, mqtt5.PubRecPacket):
        packet, size = mqtt5.read(data)
        assert isinstance(packet, packet_class)
        assert (packet.packet_id, int(packet.reason_code)) == (packet_id, reason)
        assert (packet.reason_str or "") == text
        data = data[size:]
    assert bytes(data) == (
        mqtt5.PubRelPacket(packet_id, reason_code=mqtt5.PubRelReasonCode.PACKET_ID_NOT_FOUND).write()
        + mqtt5.PubCompPacket(packet_id).write()
    )


@given(PACKET_IDS, TOPICS, PAYLOADS, QOS, st.lists(st.sampled_from([0, 1, 2, 0x80, 0x8F, 0x97]), min_size=1))
def test_other_answers(packet_id: int, text: str, payload: bytes, qos: int, reasons: list[int]) -> None:
    connection = open_connection(5)
    connection.suback(packet_id, reasons, text=text)
    connection.unsuback(packet_id, [0, 0x11])
    connection.publish(text, payload, qos=qos, packet_id=packet_id if qos else 0)
    connection.disconnect(0x8E, text=text)
    data = memoryview(connection.take())
    suback, size = mqtt5.read(data)
    assert isinstance(suback, mqtt5.SubAckPacket)
    assert [int(code) for code in suback.reason_codes] == reasons
    assert suback.reason_str == text
    data = data[size:]
    unsuback, size = mqtt5.read(data)
    assert isinstance(unsuback, mqtt5.UnsubAckPacket)
    assert [int(code) for code in unsuback.reason_codes] == [0, 0x11]
    data = data[size:]
    published, size = mqtt5.read(data)
    assert isinstance(published, mqtt5.PublishPacket)
    assert bytes(data[:size]) == published.write()
    ended, size = mqtt5.read(data[size:])
    assert isinstance(ended, mqtt5.DisconnectPacket)
    assert (int(ended.reason_code), ended.reason_str) == (0x8E, text)


def test_connack_says_the_limits_and_all_that_is_given() -> None:
    connection = ServerConnection(Limits(receive_maximum=7, topic_alias_maximum=9, maximum_packet_size=12345))
    connection.receive(mqtt5.ConnectPacket("").write())
    connection.connack(
        session_present=True,
        session_expiry=60,
        assigned_client_id="made-up",
        server_keep_alive=30,
        text="welcome",
    )
    assert connection.take() == (
        mqtt5.ConnAckPacket(
            session_present=True,
            session_expiry_interval=60,
            assigned_client_id="made-up",
            server_keep_alive=30,
            reason_str="welcome",
            receive_max=7,
            topic_alias_max=9,
            max_packet_size=12345,
        ).write()
    )
