"""A client in memory: it writes and reads frames with pamqp, so that the engine is held to somebody else's codec."""

from __future__ import annotations

from typing import Any

from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection
from pamqp.header import ContentHeader

from penstock.wire.amqp091.codes import PROTOCOL_HEADER
from penstock.wire.amqp091.connection import ServerConnection
from penstock.wire.amqp091.events import ChannelOpened, Event, Failed, Login, OpenVhost
from penstock.wire.amqp091.handshake import Limits
from penstock.wire.amqp091.properties import NAMES, Properties

CAPABILITIES: dict[str, Any] = {"connection.blocked": True, "authentication_failure_close": True}
START_OK = Connection.StartOk(
    client_properties={"product": "test", "capabilities": CAPABILITIES}, mechanism="PLAIN", response="\0me\0secret"
)


def written(channel: int, *parts: frame.FrameTypes) -> bytes:
    return b"".join(frame.marshal(part, channel) for part in parts)


def published(
    body: bytes = b"hello",
    *,
    channel: int = 1,
    exchange: str = "",
    routing_key: str = "q",
    properties: Basic.Properties | None = None,
    cut: int = 131_064,
) -> bytes:
    """A whole message, its body cut into frames of so many bytes."""
    parts: list[frame.FrameTypes] = [Basic.Publish(exchange=exchange, routing_key=routing_key)]
    parts.append(ContentHeader(body_size=len(body), properties=properties))
    parts += [ContentBody(body[start : start + cut]) for start in range(0, len(body), cut)]
    return written(channel, *parts)


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + end


def read(data: bytes) -> list[tuple[int, Any]]:
    """Every frame, with its channel."""
    found: list[tuple[int, Any]] = []
    while data:
        size, channel, part = frame.unmarshal(data)
        found.append((channel, part))
        data = data[size:]
    return found


def values_of(properties: Properties) -> dict[str, Any]:
    """All that are there, by name."""
    return {name: getattr(properties, name) for name in NAMES if name in properties}


class AnsweringConnection(ServerConnection):
    """Its owner answers every close of the client's at once."""

    def _channel_method(self, channel: int, payload: bytes, found: list[Event]) -> None:
        super()._channel_method(channel, payload, found)
        self.close_ok(channel)

    def _connection_method(self, method: Any, found: list[Event]) -> None:
        super()._connection_method(method, found)
        self.close_ok(0)


class Client:
    """Speaks to one `ServerConnection`."""

    def __init__(self, limits: Limits | None = None, *, answers_closes: bool = True) -> None:
        self.server = (AnsweringConnection if answers_closes else ServerConnection)(limits or Limits())

    @property
    def channels(self) -> list[int]:
        """The open ones."""
        return list(self.server._open)

    def write(self, channel: int, *parts: frame.FrameTypes) -> list[Event]:
        return self.server.receive(written(channel, *parts))

    def answers(self) -> list[tuple[int, Any]]:
        return read(self.server.take())

    def answer(self, kind: type[Any]) -> Any:
        """The only frame that was sent, of this kind."""
        [(_, part)] = self.answers()
        assert isinstance(part, kind), part
        return part

    def log_in(self, start_ok: Connection.StartOk = START_OK) -> list[Event]:
        assert self.server.receive(PROTOCOL_HEADER) == []
        self.answer(Connection.Start)
        return self.write(0, start_ok)

    def open(self, *channels: int, heartbeat: int = 0, frame_max: int = 0, channel_max: int = 0) -> Client:
        [login] = self.log_in()
        assert isinstance(login, Login)
        self.server.accept_login()
        self.answer(Connection.Tune)
        tune_ok = Connection.TuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        assert self.write(0, tune_ok) == []
        [vhost] = self.write(0, Connection.Open(virtual_host="/"))
        assert vhost == OpenVhost("/")
        self.server.accept_vhost()
        self.answer(Connection.OpenOk)
        for channel in channels:
            assert self.write(channel, Channel.Open()) == [ChannelOpened(channel)]
            self.answer(Channel.OpenOk)
        return self

    def failure(self, data: bytes) -> int:
        """The code with which the connection is closed for these bytes."""
        found = self.server.receive(data)
        [code] = [event.code for event in found if isinstance(event, Failed)]
        [(channel, close)] = [(to, part) for to, part in self.answers() if isinstance(part, Connection.Close)]
        assert channel == 0
        assert close.reply_code == code
        assert self.channels == []
        return code
