"""A message that is being received: basic.publish, its content header, and its body so far."""

from __future__ import annotations

from typing import Final

from penstock.wire.amqp091.events import Publish
from penstock.wire.amqp091.properties import NONE, locate


class Content:
    """Collects a message's parts; its feeder enforces the limits."""

    __slots__ = ("exchange", "routing_key", "bits", "size", "properties", "body")

    def __init__(self, exchange: bytes, routing_key: bytes, bits: int) -> None:
        self.exchange: Final = exchange
        self.routing_key: Final = routing_key
        self.bits: Final = bits
        self.size = -1
        """Bytes of the body, as its header announces; -1 before that."""
        self.properties = NONE
        self.body = bytearray()

    def whole(self, channel: int, body: bytes) -> Publish:
        """The event, with all of the body."""
        bits = self.bits
        return Publish(channel, self.exchange, self.routing_key, bits & 1 == 1, bits & 2 == 2, self.properties, body)


MAX_REMEMBERED: Final = 1024
MAX_REMEMBERED_BYTES: Final = 128


_good: Final[set[bytes]] = {NONE}
"""Properties that were found good: those of most programs repeat."""


def check_properties(properties: bytes) -> None:
    """Raises Malformed where they are not well formed."""
    if properties in _good:
        return
    locate(properties)
    if len(properties) <= MAX_REMEMBERED_BYTES:
        if len(_good) >= MAX_REMEMBERED:
            _good.clear()
        _good.add(properties)
