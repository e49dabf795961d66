"""PUBLISH towards a subscriber: the packet in parts, so that the payload is not copied before the final join."""

from __future__ import annotations

from typing import Final

from penstock.wire.mqtt.packets import NO_PROPERTIES, PublishProperties
from penstock.wire.mqtt.properties import publish_parts
from penstock.wire.mqtt.reader import encode_length, encode_text

PUBLISH: Final = 0x30
DUP: Final = 0x08
RETAIN: Final = 0x01


class Delivery:
    """A message on its way to one subscriber.

    ValueError where a text has more than 65,535 bytes: MQTT cannot carry that.
    """

    __slots__ = ("_packet_id", "first", "payload", "properties", "topic", "topic_bytes")

    def __init__(self, topic: str, payload: bytes, properties: PublishProperties, first: int, packet_id: int) -> None:
        self.topic = topic
        self.payload = payload
        self.topic_bytes = encode_text(topic)
        self.properties = b"" if properties is NO_PROPERTIES else b"".join(publish_parts(properties))
        self.first = first
        self._packet_id = packet_id.to_bytes(2, "big") if first & 0x06 else b""

    def parts(self, topic_bytes: bytes, middle: bytes) -> tuple[bytes, ...]:
        """The whole packet; `middle` stands between packet id and payload."""
        length = len(topic_bytes) + len(self._packet_id) + len(middle) + len(self.payload)
        head = bytes((self.first,)) + encode_length(length) + topic_bytes
        return head, self._packet_id, middle, self.payload
