"""MQTT packets built by hand, apart from the code under test, and a connection that is let in already."""

from __future__ import annotations

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import Connect, Event, Lost
from penstock.wire.mqtt.reasons import Reason

CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x10, 0x30, 0x40, 0x50, 0x62, 0x70
SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH = 0x82, 0xA2, 0xC0, 0xE0, 0xF0


def length(value: int) -> bytes:
    encoded = b""
    while True:
        value, low = divmod(value, 128)
        if not value:
            return encoded + bytes([low])
        encoded += bytes([low | 0x80])


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([first]) + length(len(body)) + body


def properties(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return length(len(body)) + body


def connect(
    version: int,
    *,
    name: str = "MQTT",
    flags: int = 0x02,
    keep_alive: int = 0,
    with_properties: bytes = b"",
    payload: bytes | None = None,
    first: int = CONNECT,
) -> bytes:
    """A CONNECT; `with_properties` is without its length and only for version 5."""
    return packet(
        first,
        text(name),
        bytes([version, flags]),
        keep_alive.to_bytes(2, "big"),
        properties(with_properties) if version >= 5 else b"",
        text("client") if payload is None else payload,
    )


def publish(
    version: int,
    *,
    first: int = PUBLISH,
    topic: str | bytes = "a/b",
    packet_id: bytes = b"",
    with_properties: bytes = b"",
    payload: bytes = b"payload",
) -> bytes:
    return packet(first, text(topic), packet_id, properties(with_properties) if version >= 5 else b"", payload)


def open_connection(
    version: int, limits: Limits | None = None, *, keep_alive: int = 0, with_properties: bytes = b""
) -> ServerConnection:
    """A connection whose client is let in, with nothing left to write."""
    connection = ServerConnection(limits or Limits())
    events = connection.receive(connect(version, keep_alive=keep_alive, with_properties=with_properties))
    assert isinstance(events[0], Connect)
    connection.connack()
    assert connection.take()
    return connection


def refused(connection: ServerConnection, events: list[Event]) -> Reason:
    """The reason for which the connection has ended, which must be the last event."""
    assert connection.closed
    lost = events[-1]
    assert isinstance(lost, Lost)
    assert lost.text
    return lost.reason
