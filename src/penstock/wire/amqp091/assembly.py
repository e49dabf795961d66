"""Receiving messages: basic.publish, its content header and its body, however they are cut.

A message whose three frames come at once, as nearly all do, is read in one go; any other is collected in a `Content`. A
body's room grows with what has come, not with what is announced.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.amqp091 import codes, events
from penstock.wire.amqp091.codes import BASIC, BODY, FRAME_END, HEADER
from penstock.wire.amqp091.events import Event, Publish
from penstock.wire.amqp091.properties import check_properties
from penstock.wire.amqp091.sending import Content, Sender
from penstock.wire.amqp091.tables import Malformed, Wrong, check_utf8

_FRAME: Final = Struct(">BHI")
_CONTENT: Final = Struct(">BHIHHQ")
_CONTENT_PAYLOAD: Final = Struct(">HHQ")


class Assembler(Sender):
    """Turns frames of content into `Publish` events; raises Wrong or Malformed."""

    def _publish(self, channel: int, data: bytes, start: int, after: int, found: list[Event]) -> int:
        """Reads basic.publish, and its content where all of it is there in two frames; the position after that."""
        stop = after - 1
        name_end = start + 3 + data[start + 2]
        if name_end >= stop:
            raise Malformed("Basic.Publish ends in the middle of its fields")
        key_end = name_end + 1 + data[name_end]
        if key_end + 1 != stop:
            raise Malformed("Basic.Publish is not as long as its fields")
        exchange = data[start + 3 : name_end]
        routing_key = data[name_end + 1 : key_end]
        if not exchange.isascii():
            check_utf8(exchange, "the exchange's name")
        if not routing_key.isascii():
            check_utf8(routing_key, "the routing key")
        bits = data[key_end]
        end = len(data)
        if end - after > 21:
            kind, to, size, class_id, weight, body_size = _CONTENT.unpack_from(data, after)
            stop = after + size + 7
            body_at = stop + 1
            body_end: int = body_at + 7 + body_size
            if (
                kind == HEADER
                and to == channel
                and class_id == BASIC
                and not weight
                and 14 <= size <= self._most
                and 0 < body_size <= self._most
                and body_end < end
                and data[stop] == FRAME_END
                and data[body_end] == FRAME_END
                and _FRAME.unpack_from(data, body_at) == (BODY, channel, body_size)
                and body_size <= self.limits.max_message_bytes
            ):
                properties = data[after + 19 : stop]
                check_properties(properties)
                body = data[body_at + 7 : body_end]
                found.append(Publish(channel, exchange, routing_key, bits & 1 == 1, bits & 2 == 2, properties, body))
                return body_end + 1
        self._open[channel] = Content(exchange, routing_key, bits)
        return after

    def _content_frame(self, kind: int, channel: int, payload: bytes, found: list[Event]) -> None:
        """A content header, or a part of a body, on a channel that is not being closed."""
        if channel not in self._open:
            raise Wrong(codes.CHANNEL_ERROR, f"content on channel {channel}, which is not open")
        message = self._open[channel]
        if message is None or (message.size < 0) is not (kind == codes.HEADER):
            name = "content header" if kind == codes.HEADER else "content body"
            raise Wrong(codes.UNEXPECTED_FRAME, f"a {name} frame on channel {channel} where none was expected")
        if kind == codes.HEADER:
            self._header(channel, message, payload, found)
        else:
            self._body(channel, message, payload, found)

    def _header(self, channel: int, message: Content, payload: bytes, found: list[Event]) -> None:
        if len(payload) < 14:
            raise Wrong(codes.FRAME_ERROR, f"a content header of {len(payload)} bytes")
        class_id, weight, size = _CONTENT_PAYLOAD.unpack_from(payload)
        if class_id != codes.BASIC or weight:
            raise Wrong(codes.FRAME_ERROR, f"a content header of class {class_id} and weight {weight}, not of 60 and 0")
        message.properties = payload[12:]
        check_properties(message.properties)
        most = self.limits.max_message_bytes
        if size > most:
            text = f"a message of {size} bytes; at most {most} are taken"
            self.channel_error(channel, codes.CONTENT_TOO_LARGE, text, 60, 40)
            found.append(events.ChannelClosed(channel, codes.CONTENT_TOO_LARGE, text, by_client=False))
        elif not size:
            self._open[channel] = None
            found.append(message.whole(channel, b""))
        else:
            message.size = size

    def _body(self, channel: int, message: Content, payload: bytes, found: list[Event]) -> None:
        body, had = message.body, message.received
        has = had + len(payload)
        if has > message.size:
            text = f"a body of {has} bytes or more, where its header announced {message.size}"
            raise Wrong(codes.UNEXPECTED_FRAME, text)
        if has == message.size:
            self._open[channel] = None
            self._unfinished -= had
            if had:
                body.write(payload)
                payload = body.getvalue()
            found.append(message.whole(channel, payload))
            return
        self._unfinished += len(payload)
        most = self.limits.max_unfinished_bytes
        if self._unfinished > most:
            raise Wrong(codes.RESOURCE_ERROR, f"unfinished messages of more than {most} bytes on one connection")
        body.write(payload)
        message.received = has
