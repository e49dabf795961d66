"""The half of a connection that writes: what the owner of the socket calls, and which channels are open.

A call for a channel that is not open has no effect: the channel of a request may close before it is answered, in the
meantime. What goes out is a list of bytes that are joined before they are written, unless a large body is among them.
Nothing here reads; `connection.ServerConnection` adds that.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from io import BytesIO
from struct import Struct
from typing import TYPE_CHECKING, Final

from pamqp.commands import Channel, Connection

from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.codes import BASIC, BASIC_DELIVER, BODY, FRAME_END, HEADER, METHOD
from penstock.wire.amqp091.events import Publish
from penstock.wire.amqp091.handshake import Limits
from penstock.wire.amqp091.methods import encode, make
from penstock.wire.amqp091.properties import NONE

if TYPE_CHECKING:
    from pamqp.base import Frame

_END: Final = bytes((FRAME_END,))
_FRAME: Final = Struct(">BHI")
_START: Final = Struct(">BHIIB")
"""A method frame up to the length of its first text."""
_START_TAGGED: Final = Struct(">BHIIQBB")
"""A method frame with a delivery tag, an octet of bits, and the length of a text (or, of an ack, the frame's end)."""
_START_CODED: Final = Struct(">BHIIHB")
"""A method frame with a reply code, and the length of a text."""
_TAG: Final = Struct(">QBB")
"""A delivery tag, an octet of bits, and the length of a text."""
_CONTENT: Final = Struct(">BHIHHQ")
"""A content header up to its properties."""
_BETWEEN: Final = Struct(">BBHI")
"""One frame's end and the next one's beginning."""
_COUNT: Final = Struct(">IB")
"""A message count and the frame's end."""

LARGE_BODY_BYTES: Final = 1024 * 1024

HEARTBEAT: Final = _FRAME.pack(codes.HEARTBEAT, 0, 0) + _END


class Stage(IntEnum):
    """How far a connection has come."""

    HEADER = 0
    START_OK = 1
    LOGIN = 2
    TUNE_OK = 3
    OPEN = 4
    VHOST = 5
    RUNNING = 6
    CLOSE_HELD = 7
    """The client has asked to close, and the owner answers."""
    CLOSING = 8
    """We have sent connection.close and wait for its close-ok."""
    DEAF = 9
    """As CLOSING, but where the next frame begins is not known any more: nothing is read."""
    FINISHED = 10


class Content:
    """A message that is being received: basic.publish, its content header, and its body so far."""

    __slots__ = ("exchange", "routing_key", "bits", "size", "properties", "body", "received")

    def __init__(self, exchange: bytes, routing_key: bytes, bits: int) -> None:
        self.exchange: Final = exchange
        self.routing_key: Final = routing_key
        self.bits: Final = bits
        self.size = -1
        """Bytes of the body, as its header announces; -1 before that."""
        self.properties = NONE
        self.body = BytesIO()
        """It grows as the frames come, and is not copied when it is whole."""
        self.received = 0
        """Bytes of it."""

    def whole(self, channel: int, body: bytes) -> Publish:
        """The event, with all of the body."""
        bits = self.bits
        return Publish(channel, self.exchange, self.routing_key, bits & 1 == 1, bits & 2 == 2, self.properties, body)


class Sender:
    """Outgoing frames and the state that they depend on."""

    def __init__(self, limits: Limits) -> None:
        self.limits: Final = limits
        self.heartbeat = 0
        """Seconds, as agreed upon; 0 is none."""
        self.frame_max = limits.frame_max
        self.channel_max = limits.channel_max
        self.client_properties: dict[str, object] = {}
        self._stage = Stage.HEADER
        self._capabilities: frozenset[str] = frozenset()
        self._out: list[bytes | memoryview] = []
        self._is_large = False
        """Whether a large body is to be written."""
        self._open: dict[int, Content | None] = {}
        """Open channels, each with the message that it is receiving."""
        self._closing: set[int] = set()
        """Channels whose channel.close of ours waits for its close-ok."""
        self._held: set[int] = set()
        """Channels whose channel.close of the client waits for the owner's `close_ok`."""
        self._unfinished = 0
        """Bytes of bodies whose last frame has not come."""
        self._most = codes.FRAME_SIZE_BEFORE_TUNING - codes.FRAME_OVERHEAD
        """Bytes of a frame's payload that are taken."""
        self._body_most = limits.frame_max - codes.FRAME_OVERHEAD
        self._spoke = False

    @property
    def finished(self) -> bool:
        """Close the socket once `take()` is written."""
        return self._stage is Stage.FINISHED

    def take(self) -> bytes:
        """What is to be written now; empty where nothing is."""
        return b"".join(self.take_parts())

    def take_parts(self) -> Sequence[bytes | memoryview]:
        """The same as one part or, where a large body is among it, as several, which are not copied."""
        out = self._out
        if not out:
            return ()
        self._spoke = True
        if self._is_large:
            self._out, self._is_large = [], False
            return out
        joined = b"".join(out)
        out.clear()
        return (joined,)

    def accept_login(self) -> None:
        """Goes on with the handshake."""
        if self._stage is Stage.LOGIN:
            self._stage = Stage.TUNE_OK
            limits = self.limits
            tune = make(
                Connection.Tune,
                channel_max=limits.channel_max,
                frame_max=limits.frame_max,
                heartbeat=limits.heartbeat,
            )
            self._send(0, tune)

    def refuse_login(self, text: str) -> None:
        """Tells the client why, where it can be told, and ends the connection."""
        if self._stage is not Stage.LOGIN:
            return
        if "authentication_failure_close" in self._capabilities:
            self.connection_error(codes.ACCESS_REFUSED, text)
        else:
            self._stage = Stage.FINISHED

    def accept_secret(self) -> None:
        """The client's new password is right."""
        if self._stage is Stage.RUNNING:
            self._send(0, make(Connection.UpdateSecretOk))

    def accept_vhost(self) -> None:
        """Ends the handshake; channels can be opened now."""
        if self._stage is Stage.VHOST:
            self._stage = Stage.RUNNING
            self._send(0, make(Connection.OpenOk))

    def refuse_vhost(self, text: str) -> None:
        """Ends the connection: the client may not go there, or there is no such place."""
        if self._stage is Stage.VHOST:
            self.connection_error(codes.NOT_ALLOWED, text, 10, 40)

    def send(self, channel: int, method: Frame) -> None:
        """Any method of pamqp's, made by `methods.make` where its constructor would refuse the names."""
        if channel in self._open:
            self._send(channel, method)

    def deliver(
        self,
        channel: int,
        consumer_tag: bytes,
        delivery_tag: int,
        redelivered: bool,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        body: bytes,
    ) -> None:
        """basic.deliver."""
        if channel in self._open:
            tagged, named, keyed = len(consumer_tag), len(exchange), len(routing_key)
            method = b"%b%b%b%b%c%b\xce" % (
                _START.pack(METHOD, channel, 16 + tagged + named + keyed, BASIC_DELIVER, tagged),
                consumer_tag,
                _TAG.pack(delivery_tag, redelivered, named),
                exchange,
                keyed,
                routing_key,
            )
            self._content(method, channel, properties, body)

    def get_ok(
        self,
        channel: int,
        delivery_tag: int,
        redelivered: bool,
        exchange: bytes,
        routing_key: bytes,
        message_count: int,
        properties: bytes,
        body: bytes,
    ) -> None:
        """basic.get-ok."""
        if channel in self._open:
            size = 19 + len(exchange) + len(routing_key)
            start = _START_TAGGED.pack(
                METHOD, channel, size, codes.BASIC_GET_OK, delivery_tag, redelivered, len(exchange)
            )
            end = _COUNT.pack(message_count, FRAME_END)
            method = b"%b%b%c%b%b" % (start, exchange, len(routing_key), routing_key, end)
            self._content(method, channel, properties, body)

    def return_message(self, event: Publish) -> None:
        """basic.return of a message that has reached no queue."""
        channel, exchange, routing_key, text = event.channel, event.exchange, event.routing_key, b"NO_ROUTE"
        if channel in self._open:
            size = 9 + len(text) + len(exchange) + len(routing_key)
            start = _START_CODED.pack(METHOD, channel, size, codes.BASIC_RETURN, codes.NO_ROUTE, len(text))
            method = b"%b%b%c%b%c%b\xce" % (start, text, len(exchange), exchange, len(routing_key), routing_key)
            self._content(method, channel, event.properties, event.body)

    def _content(self, method: bytes, channel: int, properties: bytes, body: bytes) -> None:
        """A method, the content header behind it, and the body in frames as large as was agreed upon."""
        out, size, most = self._out, len(body), self._body_most
        out += (method, _CONTENT.pack(HEADER, channel, 12 + len(properties), BASIC, 0, size), properties)
        if size <= most:
            if size:
                out += (_BETWEEN.pack(FRAME_END, BODY, channel, size), body)
        else:
            view = memoryview(body)
            self._is_large = self._is_large or size >= LARGE_BODY_BYTES
            for start in range(0, size, most):
                part = view[start : start + most]
                out += (_BETWEEN.pack(FRAME_END, BODY, channel, len(part)), part)
        out.append(_END)

    def confirm(self, channel: int, delivery_tag: int, multiple: bool, *, refused: bool = False) -> None:
        """basic.ack to a publisher, or basic.nack."""
        if channel in self._open:
            index = codes.BASIC_NACK if refused else codes.BASIC_ACK
            self._out.append(_START_TAGGED.pack(METHOD, channel, 13, index, delivery_tag, multiple, FRAME_END))

    def channel_error(self, channel: int, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Closes the channel, and ignores what still comes on it until the client has confirmed."""
        if channel in self._open:
            self._drop(channel)
            self._closing.add(channel)
            self._send(channel, _close(Channel.Close, code, text, class_id, method_id))

    def connection_error(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Closes the connection: `Lost` follows when the client has confirmed, or does not."""
        if self._stage < Stage.CLOSING:
            self._forget_channels()
            self._stage = Stage.CLOSING
            self._send(0, _close(Connection.Close, code, text, class_id, method_id))

    def close_ok(self, channel: int) -> None:
        """Answers a close of the client's that was left to the owner; channel 0 is the connection."""
        if channel == 0:
            if self._stage is Stage.CLOSE_HELD:
                self._send(0, make(Connection.CloseOk))
                self._stage = Stage.FINISHED
        elif channel in self._held:
            self._held.discard(channel)
            self._send(channel, make(Channel.CloseOk))

    def block(self, reason: str) -> None:
        """Tells the client that publishing must wait, if it can be told."""
        if self._can_be_blocked:
            self._send(0, make(Connection.Blocked, reason=codes.reply_text(0, reason)))

    def unblock(self) -> None:
        """Tells the client that it may publish again."""
        if self._can_be_blocked:
            self._send(0, make(Connection.Unblocked))

    @property
    def _can_be_blocked(self) -> bool:
        return self._stage is Stage.RUNNING and "connection.blocked" in self._capabilities

    def _send(self, channel: int, method: Frame) -> None:
        payload = encode(method)
        self._out.append(_FRAME.pack(METHOD, channel, len(payload)) + payload + _END)

    def _drop(self, channel: int) -> None:
        content = self._open.pop(channel)
        if content is not None:
            self._unfinished -= content.received

    def _forget_channels(self) -> None:
        self._open.clear()
        self._closing.clear()
        self._held.clear()
        self._unfinished = 0


def _close(kind: type[Frame], code: int, text: str, class_id: int, method_id: int) -> Frame:
    told = codes.reply_text(code, text)
    return make(kind, reply_code=code, reply_text=told, class_id=class_id, method_id=method_id)
