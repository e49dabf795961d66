"""3.1.1 against packets built by hand, and against those of paho, taken from its queue before a socket sees them."""

from __future__ import annotations

import socket
from typing import Any

import paho.mqtt.client as paho
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import (
    NEVER,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from penstock.wire.mqtt.reasons import Reason
from tests.unit.wire.mqtt.rig import (
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
    publish,
    text,
)
from tests.unit.wire.mqtt.strategies import CLIENT_IDS, FILTERS, PACKET_IDS, PAYLOADS, QOS, TEXTS, TOPICS

WILLS = st.none() | st.tuples(TOPICS, PAYLOADS, QOS, st.booleans())


@given(CLIENT_IDS.filter(bool), st.booleans(), st.integers(0, 65535), st.none() | TEXTS, st.none() | PAYLOADS, WILLS)
def test_connect(
    client_id: str,
    clean: bool,
    keep_alive: int,
    username: str | None,
    password: bytes | None,
    will: tuple[str, bytes, int, bool] | None,
) -> None:
    if username is None:
        password = None
    flags = clean << 1 | (username is not None) << 7 | (password is not None) << 6
    payload = text(client_id)
    if will is not None:
        flags |= 0x04 | will[2] << 3 | will[3] << 5
        payload += text(will[0]) + text(will[1])
    payload += text(username) if username is not None else b""
    payload += text(password) if password is not None else b""
    connection = ServerConnection(Limits())
    assert connection.receive(connect(4, flags=flags, keep_alive=keep_alive, payload=payload)) == [
        Connect(
            4,
            client_id,
            clean,
            keep_alive,
            username,
            password,
            None if will is None else Will(*will),
            session_expiry=0 if clean else NEVER,
        )
    ]
    assert connection.version == 4


@given(TOPICS, PAYLOADS, QOS, st.booleans(), st.booleans(), PACKET_IDS)
def test_publish_both_ways(topic: str, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int) -> None:
    dup = dup and qos > 0
    packet_id = packet_id if qos else 0
    first = PUBLISH | retain | qos << 1 | dup << 3
    encoded = publish(
        4, first=first, topic=topic, payload=payload, packet_id=packet_id.to_bytes(2, "big") if qos else b""
    )
    connection = open_connection(4)
    assert connection.receive(encoded) == [Publish(topic, payload, qos, retain, dup, packet_id)]
    assert connection.publish(topic, payload, qos=qos, retain=retain, dup=dup, packet_id=packet_id)
    assert connection.take() == encoded


@given(PACKET_IDS)
def test_acknowledgements_both_ways(packet_id: int) -> None:
    number = packet_id.to_bytes(2, "big")
    connection = open_connection(4)
    encoded = b"".join(packet(first, number) for first in (PUBACK, PUBREC, PUBREL, PUBCOMP))
    assert connection.receive(encoded) == [
        PubAck(packet_id),
        PubRec(packet_id),
        PubRel(packet_id),
        PubComp(packet_id),
    ]
    connection.puback(packet_id, 0x10)
    connection.pubrec(packet_id)
    connection.pubrel(packet_id)
    connection.pubcomp(packet_id, Reason.PACKET_ID_NOT_FOUND)
    assert connection.take() == encoded


@given(PACKET_IDS, st.lists(st.tuples(FILTERS | st.just("a#"), QOS), min_size=1, max_size=4))
def test_subscribe_and_unsubscribe(packet_id: int, filters: list[tuple[str, int]]) -> None:
    number = packet_id.to_bytes(2, "big")
    connection = open_connection(4)
    sent = packet(SUBSCRIBE, number, *(text(name) + bytes([qos]) for name, qos in filters))
    assert connection.receive(sent) == [Subscribe(packet_id, tuple(Subscription(name, qos) for name, qos in filters))]
    names = tuple(name for name, _ in filters)
    assert connection.receive(packet(UNSUBSCRIBE, number, *map(text, names))) == [Unsubscribe(packet_id, names)]
    connection.suback(packet_id, [qos for _, qos in filters] + [Reason.TOPIC_FILTER_INVALID])
    connection.unsuback(packet_id, [0 for _ in filters])
    granted = bytes([qos for _, qos in filters] + [0x80])
    assert connection.take() == packet(0x90, number, granted) + packet(0xB0, number)


def test_one_message_to_subscribers_of_both_versions() -> None:
    for version, expected in ((4, b""), (5, b"\0")):
        connection = open_connection(version)
        for packet_id in (1, 2, 65535):
            assert connection.publish("a/b", b"payload", qos=1, packet_id=packet_id)
            assert connection.take() == packet(
                PUBLISH | 2, text("a/b"), packet_id.to_bytes(2, "big"), expected, b"payload"
            )
        assert connection.publish("a/b", b"payload", retain=True)
        assert connection.take() == packet(PUBLISH | 1, text("a/b"), expected, b"payload")


def test_what_3_1_1_cannot_say_closes() -> None:
    for refuse in ("puback", "pubrec"):
        connection = open_connection(4)
        getattr(connection, refuse)(1, Reason.QUOTA_EXCEEDED, text="full")
        assert connection.closed
        assert connection.take() == b""


def test_return_codes_of_connack() -> None:
    for reason, code in (
        (Reason.BAD_USER_NAME_OR_PASSWORD, 4),
        (Reason.NOT_AUTHORIZED, 5),
        (Reason.CLIENT_ID_NOT_VALID, 2),
        (Reason.SERVER_BUSY, 3),
        (Reason.QUOTA_EXCEEDED, 3),
    ):
        connection = ServerConnection(Limits())
        connection.receive(connect(4))
        connection.connack(reason, session_present=True)
        assert connection.take() == bytes([0x20, 2, 0, code])
        assert connection.closed


class QueuedPaho(paho.Client):
    """paho as it is, but its packets are kept instead of sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311, **options)
        self.packets: list[bytes] = []
        # It publishes only with a socket at hand; nothing is written to this one.
        self._sock = socket.socket()

    def _packet_queue(
        self, command: int, packet: bytes | bytearray, mid: int, qos: int, info: paho.MQTTMessageInfo | None = None
    ) -> MQTTErrorCode:
        self.packets.append(bytes(packet))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def taken(self) -> bytes:
        data = b"".join(self.packets)
        self.packets.clear()
        return data


def test_pahos_packets() -> None:
    client = QueuedPaho(client_id="paho", clean_session=False)
    client.username_pw_set("user", "secret")
    client.will_set("gone/paho", b"bye", qos=2, retain=True)
    client._send_connect(60)
    connection = ServerConnection(Limits())
    assert connection.receive(client.taken()) == [
        Connect(
            4,
            "paho",
            False,
            60,
            "user",
            b"secret",
            Will("gone/paho", b"bye", 2, True),
            session_expiry=NEVER,
        )
    ]
    connection.connack()
    client._send_publish(5, b"a/\xc3\xbc", b"x" * 200, 1, retain=True)
    client._send_publish(6, b"a", b"", 2, dup=True)
    client._send_puback(7)
    client._send_pubrec(8)
    client._send_pubrel(9)
    client._send_pubcomp(10)
    client._send_subscribe(False, [(b"a/#", 1), (b"+", 2)])
    client._send_unsubscribe(False, [b"a/#", b"+"])
    client._send_pingreq()
    client._send_disconnect()
    connection.take()
    events = connection.receive(client.taken())
    subscribe, unsubscribe = events[6], events[7]
    assert isinstance(subscribe, Subscribe)
    assert isinstance(unsubscribe, Unsubscribe)
    assert events[:6] == [
        Publish("a/ü", b"x" * 200, 1, True, False, 5),
        Publish("a", b"", 2, False, True, 6),
        PubAck(7),
        PubRec(8),
        PubRel(9),
        PubComp(10),
    ]
    assert subscribe.subscriptions == (Subscription("a/#", 1), Subscription("+", 2))
    assert unsubscribe.filters == ("a/#", "+")
    assert events[8:] == [Disconnect()]
    assert connection.take() == b"\xd0\x00"
    assert connection.closed
