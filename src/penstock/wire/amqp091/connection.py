"""The server's side of one AMQP 0.9.1 connection: `receive` turns bytes into events, never raising for what they hold.

Errors are those that the specification names. One that costs the connection is answered with connection.close and
reported as `Failed`; one that costs a channel with channel.close and `ChannelClosed`. What comes in frames is bounded
before it is kept: a frame by what was agreed upon, a body by `Limits`, and nothing is made room for because a length
announces it.

Publishing and settling are read right here, with `struct`; every other method goes through `methods`.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from penstock.wire.amqp091 import codes, events
from penstock.wire.amqp091.assembly import Assembler
from penstock.wire.amqp091.codes import BASIC_PUBLISH, FRAME_END, FRAME_OVERHEAD, METHOD
from penstock.wire.amqp091.events import Event
from penstock.wire.amqp091.handshake import MECHANISMS, SERVER_PROPERTIES, Limits, capabilities, credentials, tuned
from penstock.wire.amqp091.methods import decode, make
from penstock.wire.amqp091.sending import HEARTBEAT, Stage
from penstock.wire.amqp091.tables import Malformed, Wrong

if TYPE_CHECKING:
    from pamqp.base import Frame

_FRAME: Final = Struct(">BHI")
_INDEX: Final = Struct(">I")
_SETTLED: Final = Struct(">QB")

_CONNECTION_CLASS: Final = b"\x00\x0a"
_CHANNEL_CLASS: Final = b"\x00\x14"
_CHANNEL_OPEN: Final = b"\x00\x14\x00\x0a"

_OF_CLIENTS: Final = frozenset(
    (
        *(Channel.Flow, Channel.FlowOk, Exchange.Declare, Exchange.Delete, Exchange.Bind, Exchange.Unbind),
        *(Queue.Declare, Queue.Bind, Queue.Purge, Queue.Delete, Queue.Unbind),
        *(Basic.Qos, Basic.Consume, Basic.Cancel, Basic.CancelOk, Basic.Get, Basic.Recover, Basic.RecoverAsync),
        *(Tx.Select, Tx.Commit, Tx.Rollback, Confirm.Select),
    )
)
"""What a client may send on a channel, besides what is read here."""

_SETTLING: Final = frozenset((codes.BASIC_ACK, codes.BASIC_NACK, codes.BASIC_REJECT))


class ServerConnection(Assembler):
    """One client. See `events` for what its owner does with what it reports."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._rest: list[bytes] = []
        """The beginning of a frame, or of the protocol header."""
        self._rest_size = 0
        self._needed = 0
        self._heard = False
        self._heard_at: float | None = None
        self._spoke_at: float | None = None
        self._waits_since: float | None = None
        self._waits_for_close = False

    def receive(self, data: bytes) -> list[Event]:
        """What the bytes say, together with those before them."""
        self._heard = True
        if self._stage >= Stage.DEAF:
            return []
        if self._rest:
            self._rest.append(data)
            self._rest_size += len(data)
            if self._rest_size < self._needed:
                return []
            data = b"".join(self._rest)
            self._rest = []
        found: list[Event] = []
        if self._stage is Stage.HEADER:
            position = self._protocol_header(data, found)
        else:
            position = 0
        position = self._frames(data, position, found)
        if self._stage < Stage.DEAF and position < len(data):
            self._rest = [data[position:] if position else data]
            self._rest_size = len(data) - position
        return found

    def tick(self, now: float) -> list[Event]:
        """Heartbeats and deadlines: call it about once a second, with any clock that does not run backwards."""
        stage = self._stage
        if self._heard or self._heard_at is None:
            self._heard_at, self._heard = now, False
        if self._spoke or self._spoke_at is None:
            self._spoke_at, self._spoke = now, False
        if stage is Stage.RUNNING:
            return self._beat(now - self._heard_at, now - self._spoke_at)
        if stage is Stage.FINISHED or stage is Stage.CLOSE_HELD:
            return []
        closing = stage > Stage.RUNNING
        if self._waits_since is None or self._waits_for_close is not closing:
            self._waits_since, self._waits_for_close = now, closing
        if closing and now - self._waits_since > self.limits.close_seconds:
            return self._lost("the client did not confirm that the connection is closed")
        if not closing and now - self._waits_since > self.limits.handshake_seconds:
            return self._lost(f"the client did not log in within {self.limits.handshake_seconds:g} seconds")
        return []

    def _beat(self, silent: float, quiet: float) -> list[Event]:
        if not self.heartbeat:
            return []
        if silent > 2 * self.heartbeat:
            return self._lost(f"the client was silent for {silent:.0f} seconds, with heartbeats every {self.heartbeat}")
        if quiet >= self.heartbeat / 2 and not self._out:
            self._out.append(HEARTBEAT)
        return []

    def _lost(self, reason: str) -> list[Event]:
        self._forget_channels()
        self._stage = Stage.FINISHED
        return [events.Lost(reason)]

    def _protocol_header(self, data: bytes, found: list[Event]) -> int:
        expected = codes.PROTOCOL_HEADER
        if not expected.startswith(data[:8]):
            self._out.append(expected)
            found += self._lost(f"the client does not speak AMQP 0.9.1: its first bytes are {data[:8]!r}")
            return len(data)
        if len(data) < 8:
            self._needed = 8
            return 0
        start = make(
            Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties=SERVER_PROPERTIES,
            mechanisms=MECHANISMS,
            locales="en_US",
        )
        self._send(0, start)
        self._stage = Stage.START_OK
        return 8

    def _frames(self, data: bytes, position: int, found: list[Event]) -> int:
        """Reads the frames that are whole; where the first that is not begins."""
        end = len(data)
        opened = self._open
        most = self._most
        is_readable = Stage.HEADER < self._stage < Stage.DEAF
        while is_readable:
            if end - position < 7:
                self._needed = 7
                break
            kind, channel, size = _FRAME.unpack_from(data, position)
            after = position + size + FRAME_OVERHEAD
            if size > most:
                self._deafen(f"a frame of {size + 8} bytes, more than the agreed {most + 8}", found)
                break
            if after > end:
                self._needed = after - position
                break
            if data[after - 1] != FRAME_END:
                self._deafen(f"a frame's end octet is {data[after - 1]:#04x}, not 0xce", found)
                break
            try:
                if kind == METHOD and size > 8 and opened.get(channel, self) is None:
                    (index,) = _INDEX.unpack_from(data, position + 7)
                    if index == BASIC_PUBLISH:
                        position = self._publish(channel, data, position + 11, after, found)
                        continue
                    if size == 13 and index in _SETTLING:
                        found.append(_settled(index, channel, *_SETTLED.unpack_from(data, position + 11)))
                        position = after
                        continue
                self._frame(kind, channel, data[position + 7 : after - 1], found)
            except (Wrong, Malformed) as problem:
                self._fail(problem.code, str(problem), data, position, found)
            position = after
            # What goes on above leaves both as they are; any other frame may change them.
            most = self._most
            is_readable = Stage.HEADER < self._stage < Stage.DEAF
        return position

    def _frame(self, kind: int, channel: int, payload: bytes, found: list[Event]) -> None:
        """Any frame, on any channel."""
        if kind == codes.HEARTBEAT:
            if channel or payload:
                raise Wrong(codes.FRAME_ERROR, f"a heartbeat on channel {channel} with {len(payload)} bytes")
        elif kind == codes.METHOD:
            self._method(channel, payload, found)
        elif kind not in (codes.HEADER, codes.BODY):
            raise Wrong(codes.FRAME_ERROR, f"a frame of the unknown type {kind}")
        elif self._stage is Stage.RUNNING and channel not in self._closing:
            self._content_frame(kind, channel, payload, found)
        elif self._stage < Stage.RUNNING:
            raise Wrong(codes.UNEXPECTED_FRAME, "content before connection.open")

    def _method(self, channel: int, payload: bytes, found: list[Event]) -> None:
        stage = self._stage
        if channel in self._closing:
            self._method_while_channel_closes(channel, payload)
        elif stage > Stage.RUNNING:
            self._method_while_closing(channel, payload, found)
        elif stage < Stage.RUNNING:
            self._handshake(channel, decode(payload), found)
        elif channel == 0:
            self._connection_method(decode(payload), found)
        else:
            self._channel_method(channel, payload, found)

    def _method_while_closing(self, channel: int, payload: bytes, found: list[Event]) -> None:
        """We have sent connection.close: only its answer counts, and a close that crossed it."""
        if channel == 0 and self._stage is Stage.CLOSING and payload[:2] == _CONNECTION_CLASS:
            method = decode(payload)
            if isinstance(method, Connection.CloseOk):
                found += self._lost("the connection was closed after an error")
            elif isinstance(method, Connection.Close):
                self._send(0, make(Connection.CloseOk))

    def _method_while_channel_closes(self, channel: int, payload: bytes) -> None:
        """We have sent channel.close: only its answer counts, and a close that crossed it."""
        if payload[:2] == _CHANNEL_CLASS:
            method = decode(payload)
            if isinstance(method, Channel.CloseOk):
                self._closing.discard(channel)
            elif isinstance(method, Channel.Close):
                self._send(channel, make(Channel.CloseOk))

    def _handshake(self, channel: int, method: Frame, found: list[Event]) -> None:
        stage = self._stage
        if channel:
            raise Wrong(codes.CHANNEL_ERROR, f"{method.name} on channel {channel} before connection.open")
        if stage is Stage.START_OK and isinstance(method, Connection.StartOk):
            self._capabilities = capabilities(method)
            user, password = credentials(method)
            self.client_properties = dict(method.client_properties)
            self._stage = Stage.LOGIN
            found.append(events.Login(method.mechanism, user, password))
        elif stage is Stage.TUNE_OK and isinstance(method, Connection.TuneOk):
            self.channel_max, self.frame_max, self.heartbeat = tuned(self.limits, method)
            self._most = self._body_most = self.frame_max - codes.FRAME_OVERHEAD
            self._stage = Stage.OPEN
        elif stage is Stage.OPEN and isinstance(method, Connection.Open):
            self._stage = Stage.VHOST
            found.append(events.OpenVhost(method.virtual_host))
        elif isinstance(method, Connection.Close):
            self._connection_method(method, found)
        else:
            raise Wrong(codes.COMMAND_INVALID, f"{method.name} at this point of the handshake")

    def _connection_method(self, method: Frame, found: list[Event]) -> None:
        if isinstance(method, Connection.UpdateSecret):
            found.append(events.NewSecret(method.new_secret or ""))
            return
        if not isinstance(method, Connection.Close):
            raise Wrong(codes.COMMAND_INVALID, f"{method.name} on channel 0")
        self._forget_channels()
        self._stage = Stage.CLOSE_HELD
        found.append(events.Closed(method.reply_code or 0, method.reply_text))

    def _channel_method(self, channel: int, payload: bytes, found: list[Event]) -> None:
        if channel in self._open:
            if self._open[channel] is not None:
                raise Wrong(codes.UNEXPECTED_FRAME, f"a method on channel {channel} where content was expected")
        elif payload[:4] != _CHANNEL_OPEN:
            raise Wrong(codes.CHANNEL_ERROR, f"a method on channel {channel}, which is not open")
        method = decode(payload)
        if isinstance(method, Channel.Open):
            self._open_channel(channel, found)
        elif isinstance(method, Channel.Close):
            self._drop(channel)
            self._held.add(channel)
            found.append(events.ChannelClosed(channel, method.reply_code or 0, method.reply_text, by_client=True))
        elif type(method) in _OF_CLIENTS:
            found.append(events.Method(channel, method))
        else:
            raise Wrong(codes.COMMAND_INVALID, f"{method.name} on channel {channel}: clients do not send that")

    def _open_channel(self, channel: int, found: list[Event]) -> None:
        if channel in self._open or channel in self._held:
            raise Wrong(codes.CHANNEL_ERROR, f"channel {channel} is open already")
        if channel > self.channel_max:
            raise Wrong(codes.NOT_ALLOWED, f"channel {channel} is above the agreed channel_max, {self.channel_max}")
        self._open[channel] = None
        self._send(channel, make(Channel.OpenOk))
        found.append(events.ChannelOpened(channel))

    def _deafen(self, text: str, found: list[Event]) -> None:
        """A frame error: where the next frame begins is not known."""
        if self._stage < Stage.CLOSING:
            self._report(codes.FRAME_ERROR, text, 0, found)
        self._stage = Stage.DEAF

    def _fail(self, code: int, text: str, data: bytes, position: int, found: list[Event]) -> None:
        """The frame at the position costs the client its connection."""
        kind, _, size = _FRAME.unpack_from(data, position)
        is_method = kind == codes.METHOD and size >= 4
        method = int.from_bytes(data[position + 7 : position + 11]) if is_method else 0
        if self._stage < Stage.CLOSING:
            self._report(code, text, method, found)
        if code == codes.FRAME_ERROR:
            self._stage = Stage.DEAF

    def _report(self, code: int, text: str, method: int, found: list[Event]) -> None:
        held = self._stage is Stage.CLOSE_HELD
        self.connection_error(code, text, method >> 16, method & 0xFFFF)
        if not held:
            found.append(events.Failed(code, text))


def _settled(index: int, channel: int, tag: int, bits: int) -> Event:
    if index == codes.BASIC_ACK:
        return events.Ack(channel, tag, bits & 1 == 1)
    if index == codes.BASIC_NACK:
        return events.Nack(channel, tag, bits & 1 == 1, bits & 2 == 2)
    return events.Reject(channel, tag, bits & 1 == 1)
