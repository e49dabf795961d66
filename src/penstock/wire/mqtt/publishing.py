"""PUBLISH towards subscribers: encoded once, sent to many.

The parts of a packet that are the same for all subscribers are made when the first one needs them; what differs (the
packet id, subscription ids, a topic alias) is put between them. The payload is never copied before the final join.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.wire.mqtt.packets import NO_PROPERTIES, PublishProperties
from penstock.wire.mqtt.properties import publish_parts
from penstock.wire.mqtt.reader import encode_length, encode_text

PUBLISH: Final = 0x30
DUP: Final = 0x08
QOS_SHIFT: Final = 1
RETAIN: Final = 0x01


class Parts(NamedTuple):
    """A packet without its packet id and payload."""

    head: bytes
    """Up to the topic, which it includes."""
    middle: bytes
    """What stands between packet id and payload: the properties."""
    size: int
    """Bytes of the whole packet."""


class EncodedPublish:
    """A message as it goes to subscribers, encoded when the first needs it and kept for the next.

    ValueError where a text has more than 65,535 bytes: MQTT cannot carry that.
    """

    __slots__ = ("_parts", "_properties", "payload", "topic", "topic_bytes")

    def __init__(self, topic: str, payload: bytes, properties: PublishProperties = NO_PROPERTIES) -> None:
        self.topic = topic
        self.payload = payload
        self.topic_bytes = encode_text(topic)
        self._properties = b"" if properties is NO_PROPERTIES else b"".join(publish_parts(properties))
        self._parts: dict[int, Parts] = {}

    def parts(self, version: int, first: int) -> Parts:
        """The packet with this first byte for a subscriber without subscription ids and aliases."""
        key = version << 8 | first
        known = self._parts.get(key)
        if known is None:
            middle = b"" if version < 5 else encode_length(len(self._properties)) + self._properties
            known = self._parts[key] = self._assemble(first, self.topic_bytes, middle)
        return known

    def special_parts(self, first: int, topic_bytes: bytes, more_properties: bytes) -> Parts:
        """The packet for a subscriber of version 5 with properties of its own, or with an alias for the topic."""
        properties = more_properties + self._properties
        return self._assemble(first, topic_bytes, encode_length(len(properties)) + properties)

    def _assemble(self, first: int, topic_bytes: bytes, middle: bytes) -> Parts:
        length = len(topic_bytes) + len(middle) + len(self.payload) + (2 if first & 0x06 else 0)
        encoded = encode_length(length)
        return Parts(bytes((first,)) + encoded + topic_bytes, middle, 1 + len(encoded) + length)
