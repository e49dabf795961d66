"""Frames of the fast path, written without detours: deliveries, answers to get, returns, confirms.

Each function appends to a list of bytes that are joined before they are written, so that a large body is copied once.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.codes import BASIC, BASIC_DELIVER, BODY, FRAME_END, HEADER, METHOD

_END: Final = bytes((codes.FRAME_END,))
_FRAME: Final = Struct(">BHI")
_START: Final = Struct(">BHIIB")
"""A method frame up to the length of its first text."""
_START_TAGGED: Final = Struct(">BHIIQBB")
"""A method frame with a delivery tag, an octet of bits, and the length of a text."""
_START_CODED: Final = Struct(">BHIIHB")
"""A method frame with a reply code, and the length of a text."""
_TAG: Final = Struct(">QBB")
"""A delivery tag, an octet of bits, and the length of a text."""
_SETTLED: Final = Struct(">BHIIQBB")
"""basic.ack or basic.nack, whole."""
_CONTENT: Final = Struct(">BHIHHQ")
"""A content header up to its properties."""
_BETWEEN: Final = Struct(">BBHI")
"""One frame's end and the next one's beginning."""
_COUNT: Final = Struct(">IB")
"""A message count and the frame's end."""

HEARTBEAT: Final = _FRAME.pack(codes.HEARTBEAT, 0, 0) + _END


def method(channel: int, payload: bytes) -> bytes:
    """A method frame."""
    return _FRAME.pack(codes.METHOD, channel, len(payload)) + payload + _END


def settled(index: int, channel: int, delivery_tag: int, bits: int) -> bytes:
    """basic.ack or basic.nack."""
    return _SETTLED.pack(codes.METHOD, channel, 13, index, delivery_tag, bits, codes.FRAME_END)


def deliver(
    channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, exchange: bytes, routing_key: bytes
) -> bytes:
    """basic.deliver without its content."""
    tagged, named, keyed = len(consumer_tag), len(exchange), len(routing_key)
    return b"%b%b%b%b%c%b\xce" % (
        _START.pack(METHOD, channel, 16 + tagged + named + keyed, BASIC_DELIVER, tagged),
        consumer_tag,
        _TAG.pack(delivery_tag, redelivered, named),
        exchange,
        keyed,
        routing_key,
    )


def get_ok(
    channel: int, delivery_tag: int, redelivered: bool, exchange: bytes, routing_key: bytes, message_count: int
) -> bytes:
    """basic.get-ok without its content."""
    size = 19 + len(exchange) + len(routing_key)
    start = _START_TAGGED.pack(
        codes.METHOD, channel, size, codes.BASIC_GET_OK, delivery_tag, redelivered, len(exchange)
    )
    end = _COUNT.pack(message_count, codes.FRAME_END)
    return b"%b%b%c%b%b" % (start, exchange, len(routing_key), routing_key, end)


def returned(channel: int, code: int, text: bytes, exchange: bytes, routing_key: bytes) -> bytes:
    """basic.return without its content."""
    size = 9 + len(text) + len(exchange) + len(routing_key)
    start = _START_CODED.pack(codes.METHOD, channel, size, codes.BASIC_RETURN, code, len(text))
    return b"%b%b%c%b%c%b\xce" % (start, text, len(exchange), exchange, len(routing_key), routing_key)


def content(out: list[bytes | memoryview], channel: int, properties: bytes, body: bytes, most: int) -> None:
    """Appends the content header, and the body in frames with at most that many bytes of payload."""
    size = len(body)
    out += (_CONTENT.pack(HEADER, channel, 12 + len(properties), BASIC, 0, size), properties)
    if not size:
        out.append(_END)
    elif size <= most:
        out += (_BETWEEN.pack(FRAME_END, BODY, channel, size), body, _END)
    else:
        view = memoryview(body)
        for start in range(0, size, most):
            part = view[start : start + most]
            out += (_BETWEEN.pack(codes.FRAME_END, codes.BODY, channel, len(part)), part)
        out.append(_END)
