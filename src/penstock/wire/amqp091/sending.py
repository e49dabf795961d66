"""The half of a connection that writes: what the owner of the socket calls, and which channels are open.

A call for a channel that is not open has no effect: the channel of a request may close before it is answered, in the
meantime. Nothing here reads; `connection.ServerConnection` adds that.
"""

from __future__ import annotations

from collections.abc import KeysView
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from pamqp.commands import Channel, Connection

from penstock.wire.amqp091 import codes, frames
from penstock.wire.amqp091.content import Content
from penstock.wire.amqp091.handshake import SERVER_PROPERTIES
from penstock.wire.amqp091.limits import Limits
from penstock.wire.amqp091.methods import encode, make

if TYPE_CHECKING:
    from pamqp.base import Frame


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


class Sender:
    """Outgoing frames and the state that they depend on."""

    def __init__(
        self,
        limits: Limits,
        *,
        server_properties: dict[str, object] | None = None,
        answers_closes: bool = True,
    ) -> None:
        """Without `answers_closes` the owner calls `close_ok` when it is done with what came before a close."""
        self.limits: Final = limits
        self.heartbeat = 0
        """Seconds, as agreed upon; 0 is none."""
        self.frame_max = limits.frame_max
        self.channel_max = limits.channel_max
        self.client_properties: dict[str, object] = {}
        self._server_properties: Final = SERVER_PROPERTIES if server_properties is None else server_properties
        self._answers_closes: Final = answers_closes
        self._stage = Stage.HEADER
        self._capabilities: frozenset[str] = frozenset()
        self._out: list[bytes | memoryview] = []
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
    def channels(self) -> KeysView[int]:
        """The numbers of the open channels."""
        return self._open.keys()

    @property
    def finished(self) -> bool:
        """Close the socket once `take()` is written."""
        return self._stage is Stage.FINISHED

    @property
    def is_running(self) -> bool:
        """Logged in, and not being closed."""
        return self._stage is Stage.RUNNING

    def take(self) -> bytes:
        """What is to be written now; empty where nothing is."""
        out = self._out
        if not out:
            return b""
        self._spoke = True
        joined = b"".join(out)
        out.clear()
        return joined

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
        if channel in self._open:
            out = self._out
            out.append(frames.deliver(channel, consumer_tag, delivery_tag, redelivered, exchange, routing_key))
            frames.content(out, channel, properties, body, self._body_most)

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
        if channel in self._open:
            self._out.append(frames.get_ok(channel, delivery_tag, redelivered, exchange, routing_key, message_count))
            frames.content(self._out, channel, properties, body, self._body_most)

    def return_message(
        self, channel: int, code: int, text: str, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
    ) -> None:
        if channel in self._open:
            self._out.append(frames.returned(channel, code, text.encode()[:255], exchange, routing_key))
            frames.content(self._out, channel, properties, body, self._body_most)

    def confirm(self, channel: int, delivery_tag: int, multiple: bool = False) -> None:
        """basic.ack to a publisher."""
        if channel in self._open:
            self._out.append(frames.settled(codes.BASIC_ACK, channel, delivery_tag, multiple))

    def refuse(self, channel: int, delivery_tag: int, multiple: bool = False) -> None:
        """basic.nack to a publisher."""
        if channel in self._open:
            self._out.append(frames.settled(codes.BASIC_NACK, channel, delivery_tag, multiple))

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
        self._out.append(frames.method(channel, encode(method)))

    def _drop(self, channel: int) -> None:
        content = self._open.pop(channel)
        if content is not None:
            self._unfinished -= len(content.body)

    def _forget_channels(self) -> None:
        self._open.clear()
        self._closing.clear()
        self._held.clear()
        self._unfinished = 0


def _close(kind: type[Frame], code: int, text: str, class_id: int, method_id: int) -> Frame:
    told = codes.reply_text(code, text)
    return make(kind, reply_code=code, reply_text=told, class_id=class_id, method_id=method_id)
