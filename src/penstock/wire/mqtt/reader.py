"""The parts of MQTT packets as bytes: numbers, texts and lengths, read with every check of the standard and written.

Shared by both versions. What cannot be read is `Refused` as malformed; nothing is read past the packet's end.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.wire.mqtt.reasons import Reason, Refused

TEXT_BYTES_MAX: Final = 0xFFFF
"""Texts and binary values carry their length in two bytes."""
LENGTH_MAX: Final = 0x0FFFFFFF
"""The greatest number that a variable byte integer holds."""


CONTROLS: Final = re.compile("[\\0-\\x1f\\x7f-\\x9f]")


class Reader:
    """Reads one packet's body, from `position` to `end` of `data`."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    @property
    def left(self) -> int:
        return self.end - self.position

    def _advance(self, count: int, what: str) -> int:
        """Where a part of `count` bytes starts; the position is then past it."""
        start = self.position
        if start + count > self.end:
            raise Refused(
                Reason.MALFORMED_PACKET, f"{what} needs {count} bytes, but the packet has {self.left} bytes left"
            )
        self.position = start + count
        return start

    def byte(self, what: str) -> int:
        return self.data[self._advance(1, what)]

    def short(self, what: str) -> int:
        start = self._advance(2, what)
        return self.data[start] << 8 | self.data[start + 1]

    def integer(self, what: str) -> int:
        start = self._advance(4, what)
        return int.from_bytes(self.data[start : start + 4], "big")

    def binary(self, what: str) -> bytes:
        length = self.short(what)
        start = self._advance(length, what)
        return self.data[start : start + length]

    def text(self, what: str) -> str:
        return decode_text(self.binary(what), what)

    def topic_filter(self) -> str:
        text = self.text("a topic filter")
        if not text:
            raise Refused(Reason.MALFORMED_PACKET, "a topic filter has at least one character")
        return check_controls(text, "a topic filter")

    def client_id(self) -> str:
        text = self.text("the client id")
        if CONTROLS.search(text):
            raise Refused(Reason.PROTOCOL_ERROR, f"the client id {text[:64]!r} holds a control character")
        return text

    def packet_id(self) -> int:
        packet_id = self.short("the packet id")
        if not packet_id:
            raise Refused(Reason.PROTOCOL_ERROR, "a packet id must not be 0")
        return packet_id

    def length(self, what: str) -> int:
        """A variable byte integer, in as few bytes as it needs."""
        value = shift = 0
        while True:
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift == 28:
                raise Refused(Reason.MALFORMED_PACKET, f"{what} is a variable byte integer of more than 4 bytes")
        if not byte and shift:
            raise Refused(Reason.MALFORMED_PACKET, f"{what} is a variable byte integer with a needless last byte")
        return value

    def finish(self) -> None:
        """The packet must be read to its end."""
        if self.left:
            raise Refused(Reason.MALFORMED_PACKET, f"the packet has {self.left} bytes more than it needs")


def decode_text(data: bytes, what: str) -> str:
    """Text as the standard has it: UTF-8 without surrogates and without U+0000."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refused(Reason.MALFORMED_PACKET, f"{what} is not UTF-8: {error.reason}") from None
    if "\0" in text:
        raise Refused(Reason.MALFORMED_PACKET, f"{what} holds the character U+0000")
    return text


def check_controls(text: str, what: str) -> str:
    """A topic or filter without control characters, which the standard lets a receiver refuse, and nobody means."""
    if not text.isprintable() and CONTROLS.search(text):
        raise Refused(Reason.MALFORMED_PACKET, f"{what} {text[:64]!r} holds a control character")
    return text


def encode_length(value: int) -> bytes:
    """A variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value > LENGTH_MAX:
        raise ValueError(f"MQTT cannot say a length of {value} bytes; at most {LENGTH_MAX}")
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def encode_binary(value: bytes) -> bytes:
    if len(value) > TEXT_BYTES_MAX:
        raise ValueError(f"MQTT cannot carry a text or binary value of {len(value)} bytes; at most {TEXT_BYTES_MAX}")
    return len(value).to_bytes(2, "big") + value


def encode_text(text: str) -> bytes:
    return encode_binary(text.encode())


def packet(first: int, body: bytes) -> bytes:
    """A whole packet: its first byte (kind and flags), its length and its body."""
    return bytes((first,)) + encode_length(len(body)) + body


def publish_packet(first: int, topic: bytes, packet_id: int, middle: bytes, payload: bytes) -> tuple[bytes, ...]:
    """A PUBLISH in parts, so that the payload is not copied before the final join; none where it is too long for MQTT.

    `middle` stands between packet id and payload: the properties of version 5.
    """
    id_bytes = packet_id.to_bytes(2, "big") if first & 0x06 else b""
    length = len(topic) + len(id_bytes) + len(middle) + len(payload)
    if length > LENGTH_MAX:
        return ()
    return bytes((first,)) + encode_length(length) + topic, id_bytes, middle, payload
