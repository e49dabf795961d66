"""Every packet that the standard forbids ends the connection with the reason that it names."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import Lost
from penstock.wire.mqtt.reasons import Reason
from tests.unit.wire.mqtt.rig import (
    AUTH,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    connect,
    open_connection,
    packet,
    properties,
    publish,
    refused,
    text,
)

ID = b"\0\x01"
NO_ID = b"\0\0"
NONE = b"\0"
MALFORMED = Reason.MALFORMED_PACKET
PROTOCOL = Reason.PROTOCOL_ERROR
ALIAS = Reason.TOPIC_ALIAS_INVALID
WILL = 0x02 | 0x04

BAD_CONNECTS: dict[str, tuple[dict[str, Any], Reason]] = {
    "reserved flag": ({"flags": 0x03}, MALFORMED),
    "flags of the first byte": ({"first": 0x11}, MALFORMED),
    "QoS of a will without a will": ({"flags": 0x02 | 0x08}, MALFORMED),
    "retain of a will without a will": ({"flags": 0x02 | 0x20}, MALFORMED),
    "QoS 3 of the will": ({"flags": WILL | 0x18}, MALFORMED),
    "no client id": ({"payload": b""}, MALFORMED),
    "client id cut": ({"payload": b"\0\x09abc"}, MALFORMED),
    "client id not UTF-8": ({"payload": text(b"\xff")}, MALFORMED),
    "client id with a surrogate": ({"payload": text(b"\xed\xa0\x80")}, MALFORMED),
    "client id with U+0000": ({"payload": text("a\0b")}, MALFORMED),
    "more than it needs": ({"payload": text("a") + b"x"}, MALFORMED),
    "user name missing": ({"flags": 0x82}, MALFORMED),
}
BAD_CONNECTS_5: dict[str, tuple[dict[str, Any], Reason]] = {
    "wildcard in the will's topic": ({"flags": WILL, "payload": text("c") + NONE + text("a/#") + text("p")}, MALFORMED),
    "empty topic of the will": ({"flags": WILL, "payload": text("c") + NONE + text("") + text("p")}, MALFORMED),
    "a property twice": ({"with_properties": b"\x11\0\0\0\x01\x11\0\0\0\x01"}, PROTOCOL),
    "receive maximum 0": ({"with_properties": b"\x21\0\0"}, PROTOCOL),
    "maximum packet size 0": ({"with_properties": b"\x27\0\0\0\0"}, PROTOCOL),
    "request problem information 2": ({"with_properties": b"\x17\x02"}, PROTOCOL),
    "request response information 2": ({"with_properties": b"\x19\x02"}, PROTOCOL),
    "property of another packet": ({"with_properties": b"\x23\0\x01"}, PROTOCOL),
    "property of another packet, cut": ({"with_properties": b"\x23\0"}, MALFORMED),
    "property that does not exist": ({"with_properties": b"\x7f\0\x01"}, MALFORMED),
    "property cut": ({"with_properties": b"\x11\0"}, MALFORMED),
    "authentication data alone": ({"with_properties": b"\x16" + text("x")}, PROTOCOL),
    "extended authentication": ({"with_properties": b"\x15" + text("x")}, Reason.BAD_AUTHENTICATION_METHOD),
    "user property not UTF-8": ({"with_properties": b"\x26" + text("a") + text(b"\xc3")}, MALFORMED),
    "user property with U+0000": ({"with_properties": b"\x26" + text("a\0") + text("b")}, MALFORMED),
    "will property of another packet": (
        {"flags": WILL, "payload": text("c") + properties(b"\x23\0\x01") + text("t") + text("p")},
        PROTOCOL,
    ),
}
BAD_CONNECTS_3: dict[str, tuple[dict[str, Any], Reason]] = {
    "wildcard in the will's topic": ({"flags": WILL, "payload": text("c") + text("a/#") + text("p")}, MALFORMED),
    "password without a user name": ({"flags": 0x42, "payload": text("c") + text("p")}, MALFORMED),
}


@pytest.mark.parametrize("case", BAD_CONNECTS | BAD_CONNECTS_5)
def test_a_bad_connect_of_version_5_is_refused_by_connack(case: str) -> None:
    arguments, reason = (BAD_CONNECTS | BAD_CONNECTS_5)[case]
    connection = ServerConnection(Limits())
    events = connection.receive(connect(5, **arguments))
    assert refused(connection, events) is reason
    assert len(events) == 1
    sent = connection.take()
    if case == "flags of the first byte":
        # Not even the version is read of such a packet.
        assert sent == b""
        return
    answer, size = mqtt5.read(memoryview(sent))
    assert size == len(sent)
    assert isinstance(answer, mqtt5.ConnAckPacket)
    assert int(answer.reason_code) == reason
    assert answer.reason_str
    assert not answer.session_present


@pytest.mark.parametrize("case", BAD_CONNECTS | BAD_CONNECTS_3)
def test_a_bad_connect_of_3_1_1_is_only_closed(case: str) -> None:
    arguments, reason = (BAD_CONNECTS | BAD_CONNECTS_3)[case]
    connection = ServerConnection(Limits())
    events = connection.receive(connect(4, **arguments))
    assert refused(connection, events) is reason
    assert connection.take() == b""


@pytest.mark.parametrize(
    ("packet_of", "answer"),
    [
        (connect(3, name="MQIsdp"), b"\x20\x02\0\x01"),
        (connect(3), b"\x20\x02\0\x01"),
        (connect(0x84), b"\x20\x02\0\x01"),
        (connect(6), b"\x20\x03\0\x84\0"),
        (connect(4, name="MQXX"), b""),
        (connect(4, flags=0, payload=text("")), b"\x20\x02\0\x02"),
    ],
    ids=["3.1", "level 3", "bridge", "level 6", "other name", "no client id without clean session"],
)
def test_a_version_that_is_not_spoken_is_answered_in_its_own_words(packet_of: bytes, answer: bytes) -> None:
    connection = ServerConnection(Limits())
    refused(connection, connection.receive(packet_of))
    assert connection.take() == answer


def test_the_first_packet_must_be_connect() -> None:
    for first in (publish(5), packet(PINGREQ), packet(SUBSCRIBE, ID, NONE, text("a"), NONE), b"GET / HTTP/1.1\r\n"):
        connection = ServerConnection(Limits())
        assert refused(connection, connection.receive(first)) is PROTOCOL
        assert connection.take() == b""


QOS_1 = PUBLISH | 0x02
BAD_PACKETS = {
    "second CONNECT": (connect(5), connect(4), PROTOCOL),
    "kind 0": (packet(0x00), packet(0x00), MALFORMED),
    "CONNACK": (packet(0x20, b"\0\0\0"), packet(0x20, b"\0\0"), PROTOCOL),
    "SUBACK": (packet(0x90, ID, b"\0\0"), packet(0x90, ID, b"\0"), PROTOCOL),
    "UNSUBACK": (packet(0xB0, ID, b"\0\0"), packet(0xB0, ID), PROTOCOL),
    "PINGRESP": (packet(0xD0), packet(0xD0), PROTOCOL),
    "PINGREQ with a body": (packet(PINGREQ, b"x"), packet(PINGREQ, b"x"), MALFORMED),
    "PINGREQ with flags": (packet(PINGREQ | 1), packet(PINGREQ | 1), MALFORMED),
    "AUTH": (packet(AUTH, b"\x18\x04\x15" + text("a")), packet(AUTH), PROTOCOL),
    "QoS 3": (publish(5, first=PUBLISH | 6, packet_id=ID), publish(4, first=PUBLISH | 6, packet_id=ID), MALFORMED),
    "QoS 0 again": (publish(5, first=PUBLISH | 8), publish(4, first=PUBLISH | 8), MALFORMED),
    "packet id 0": (publish(5, first=QOS_1, packet_id=NO_ID), publish(4, first=QOS_1, packet_id=NO_ID), PROTOCOL),
    "topic #": (publish(5, topic="a/#"), publish(4, topic="a/#"), MALFORMED),
    "topic +": (publish(5, topic="+/b"), publish(4, topic="+/b"), MALFORMED),
    "topic not UTF-8": (publish(5, topic=b"\xff"), publish(4, topic=b"\xff"), MALFORMED),
    "topic with a surrogate": (publish(5, topic=b"\xed\xbf\xbf"), publish(4, topic=b"\xed\xbf\xbf"), MALFORMED),
    "topic with U+0000": (publish(5, topic="a\0"), publish(4, topic="a\0"), MALFORMED),
    "topic cut": (packet(PUBLISH, b"\0\x09a"), packet(PUBLISH, b"\0\x09a"), MALFORMED),
    "PUBLISH empty": (packet(PUBLISH), packet(PUBLISH), MALFORMED),
    "PUBLISH of one byte": (packet(PUBLISH, b"\0"), packet(PUBLISH, b"\0"), MALFORMED),
    "packet id cut": (packet(QOS_1, text("a"), b"\0"), packet(QOS_1, text("a"), b"\0"), MALFORMED),
    **{
        f"packet id 0 of 0x{first:02x}": (packet(first, NO_ID), packet(first, NO_ID), PROTOCOL)
        for first in (PUBACK, PUBREC, PUBREL, PUBCOMP)
    },
    **{
        f"flags of 0x{first:02x}": (packet(first ^ 1, ID), packet(first ^ 1, ID), MALFORMED)
        for first in (PUBACK, PUBREC, PUBREL, PUBCOMP)
    },
    **{
        f"0x{first:02x} cut": (packet(first, b"\0"), packet(first, b"\0"), MALFORMED)
        for first in (PUBACK, PUBREC, PUBREL, PUBCOMP)
    },
    "SUBSCRIBE without flags": (
        packet(0x80, ID, NONE, text("a"), NONE),
        packet(0x80, ID, text("a"), NONE),
        MALFORMED,
    ),
    "SUBSCRIBE of nothing": (packet(SUBSCRIBE, ID, NONE), packet(SUBSCRIBE, ID), PROTOCOL),
    "SUBSCRIBE with packet id 0": (
        packet(SUBSCRIBE, NO_ID, NONE, text("a"), NONE),
        packet(SUBSCRIBE, NO_ID, text("a"), NONE),
        PROTOCOL,
    ),
    "SUBSCRIBE without options": (packet(SUBSCRIBE, ID, NONE, text("a")), packet(SUBSCRIBE, ID, text("a")), MALFORMED),
    "filter not UTF-8": (
        packet(SUBSCRIBE, ID, NONE, text(b"\xc0"), NONE),
        packet(SUBSCRIBE, ID, text(b"\xc0"), NONE),
        MALFORMED,
    ),
    "UNSUBSCRIBE of nothing": (packet(UNSUBSCRIBE, ID, NONE), packet(UNSUBSCRIBE, ID), PROTOCOL),
    "UNSUBSCRIBE without flags": (packet(0xA0, ID, NONE, text("a")), packet(0xA0, ID, text("a")), MALFORMED),
    "UNSUBSCRIBE with packet id 0": (
        packet(UNSUBSCRIBE, NO_ID, NONE, text("a")),
        packet(UNSUBSCRIBE, NO_ID, text("a")),
        PROTOCOL,
    ),
    "DISCONNECT with flags": (packet(DISCONNECT | 1), packet(DISCONNECT | 1), MALFORMED),
    "needless byte of the length": (
        b"\x30\x87\x00" + text("a/b") + NONE + b"x",
        b"\x30\x87\x00" + text("a/b") + b"xy",
        MALFORMED,
    ),
    "length of 5 bytes": (b"\x30\xff\xff\xff\xff\x01", b"\x30\xff\xff\xff\xff\x01", MALFORMED),
    "too long": (b"\x30\xff\xff\xff\x7f", b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
}
BAD_PACKETS_5 = {
    "neither topic nor alias": (publish(5, topic=""), PROTOCOL),
    "neither, with a property": (publish(5, topic="", with_properties=b"\x01\x01"), PROTOCOL),
    "alias 0": (publish(5, with_properties=b"\x23\0\0"), ALIAS),
    "alias above the maximum": (publish(5, with_properties=b"\x23\x01\0"), ALIAS),
    "alias never set": (publish(5, topic="", with_properties=b"\x23\0\x05"), PROTOCOL),
    "alias twice": (publish(5, with_properties=b"\x23\0\x05\x23\0\x05"), PROTOCOL),
    "payload format 2": (publish(5, with_properties=b"\x01\x02"), PROTOCOL),
    "wildcard in the response topic": (publish(5, with_properties=b"\x08" + text("a/#")), PROTOCOL),
    "empty response topic": (publish(5, with_properties=b"\x08" + text("")), PROTOCOL),
    "subscription id": (publish(5, with_properties=b"\x0b\x01"), PROTOCOL),
    "subscription id 0": (publish(5, with_properties=b"\x0b\x00"), PROTOCOL),
    "no properties at all": (packet(PUBLISH, text("a")), MALFORMED),
    "properties longer than the packet": (packet(PUBLISH, text("a"), b"\x7fx"), MALFORMED),
    "property within the payload": (packet(PUBLISH, text("a"), b"\x02\x03\0\x01x"), MALFORMED),
    "needless byte of the properties' length": (packet(PUBLISH, text("a"), b"\x80\0x"), MALFORMED),
    "properties' length of 5 bytes": (packet(PUBLISH, text("a"), b"\x80\x80\x80\x80\0x"), MALFORMED),
    "subscription of QoS 3": (packet(SUBSCRIBE, ID, NONE, text("a"), b"\x03"), PROTOCOL),
    "retain handling 3": (packet(SUBSCRIBE, ID, NONE, text("a"), b"\x30"), PROTOCOL),
    "reserved options": (packet(SUBSCRIBE, ID, NONE, text("a"), b"\x40"), MALFORMED),
    "no local and shared": (packet(SUBSCRIBE, ID, NONE, text("$share/g/a"), b"\x04"), PROTOCOL),
    "subscription with id 0": (packet(SUBSCRIBE, ID, properties(b"\x0b\0"), text("a"), NONE), PROTOCOL),
    "subscription with two ids": (packet(SUBSCRIBE, ID, properties(b"\x0b\x01\x0b\x02"), text("a"), NONE), PROTOCOL),
    "reason of PUBACK": (packet(PUBACK, ID, b"\x55"), PROTOCOL),
    "reason of PUBREL": (packet(PUBREL, ID, b"\x80"), PROTOCOL),
    "PUBACK with more than it needs": (packet(PUBACK, ID, b"\0\0\0"), MALFORMED),
    "property of PUBACK": (packet(PUBACK, ID, b"\0\x03\x23\0\x01"), PROTOCOL),
    **{
        f"property 0x{value[0]:02x} of a CONNACK": (publish(5, with_properties=value), PROTOCOL)
        for value in (
            *(b"\x12" + text("a"), b"\x1a" + text("a"), b"\x13\0\x05"),
            *(bytes((one, 0)) for one in (0x24, 0x25, 0x28, 0x29, 0x2A)),
        )
    },
    "property that does not exist": (publish(5, with_properties=b"\x04\x01"), MALFORMED),
    "reason of DISCONNECT": (packet(DISCONNECT, b"\x05"), PROTOCOL),
    "a server's reason": (packet(DISCONNECT, b"\x8b"), PROTOCOL),
    "a server's property": (packet(DISCONNECT, b"\0", properties(b"\x1c" + text("a"))), PROTOCOL),
    "expiry for a session without": (packet(DISCONNECT, b"\0", properties(b"\x11\0\0\0\x01")), PROTOCOL),
}


@pytest.mark.parametrize("case", [*BAD_PACKETS, *BAD_PACKETS_5])
def test_a_bad_packet_of_version_5_is_answered_by_disconnect(case: str) -> None:
    sent, reason = BAD_PACKETS_5[case] if case in BAD_PACKETS_5 else (BAD_PACKETS[case][0], BAD_PACKETS[case][2])
    connection = open_connection(5)
    events = connection.receive(sent + publish(5))
    assert refused(connection, events) is reason
    assert len(events) == 1, "what follows a fault must not count"
    answer, _ = mqtt5.read(memoryview(connection.take()))
    assert isinstance(answer, mqtt5.DisconnectPacket)
    assert int(answer.reason_code) == reason
    assert answer.reason_str


@pytest.mark.parametrize("case", BAD_PACKETS)
def test_a_bad_packet_of_3_1_1_closes(case: str) -> None:
    _, sent, reason = BAD_PACKETS[case]
    connection = open_connection(4)
    events = connection.receive(sent + publish(4))
    assert refused(connection, events) is reason
    assert len(events) == 1
    assert connection.take() == b""
    assert connection.receive(publish(4)) == []


@pytest.mark.parametrize("sent", [packet(SUBSCRIBE, ID, text("a"), b"\x03"), packet(SUBSCRIBE, ID, text("a"), b"\x04")])
def test_options_of_a_3_1_1_subscription_are_a_qos_and_nothing_else(sent: bytes) -> None:
    connection = open_connection(4)
    assert refused(connection, connection.receive(sent)) is MALFORMED


def test_a_3_1_1_packet_with_more_than_it_needs() -> None:
    for sent in (packet(PUBACK, ID, b"\0"), packet(DISCONNECT, b"\0"), packet(UNSUBSCRIBE, ID, text("a"), b"x")):
        connection = open_connection(4)
        assert refused(connection, connection.receive(sent)) is MALFORMED


def test_a_fault_without_an_answer_is_told_once() -> None:
    connection = open_connection(5)
    assert isinstance(connection.receive(packet(0x00))[-1], Lost)
    assert connection.receive(packet(0x00)) == []
    assert connection.tick(1e9) == []
