"""What the tests of the AMQP front stand on: a broker and its front on a loop in a thread, and pika as the client.

pika blocks, so the server has a thread of its own; `Served.call` does something on its loop.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pika
import pytest
import uvloop
from pamqp import body as pamqp_body
from pamqp import commands, frame, header
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.amqp091.server import AmqpServer
from penstock.fronts.auth import Credentials
from penstock.fronts.front import Shared
from penstock.model import PAYLOAD_BYTES_DEFAULT
from penstock.node.broker import LocalBroker
from tests.local import open_local

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing test waits so long."""

Result = TypeVar("Result")


class Served:
    """A broker with its AMQP front, in a thread of its own."""

    def __init__(self, path: Path | None = None, **options: Any) -> None:
        self._path = path
        self._message_bytes = options.pop("message_bytes", PAYLOAD_BYTES_DEFAULT)
        self._shared = Shared(
            Credentials(options.pop("token", "")),
            message_bytes=self._message_bytes,
            answers=options.pop("answers", None),
        )
        self._options = AmqpOptions(port=0, **options)
        self._loop = uvloop.new_event_loop()
        self._connections: list[pika.BlockingConnection] = []
        self._thread = threading.Thread(target=self._serve)
        self._ready = threading.Event()
        self.broker: LocalBroker
        self.server: AmqpServer
        self._stop: asyncio.Event

    def start(self) -> Served:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._life())
        finally:
            self._ready.set()
            self._loop.close()

    async def _life(self) -> None:
        self._stop = asyncio.Event()
        async with await open_local(self._path, message_bytes=self._message_bytes) as self.broker:
            self.server = AmqpServer(self.broker, self._options, self._shared)
            await self.server.start()
            self._ready.set()
            await self._stop.wait()
            await self.server.stop()

    def stop(self) -> None:
        for connection in self._connections:
            with suppress(AMQPError, OSError):
                if connection.is_open:
                    connection.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def stop_soon(self) -> None:
        """Begin to stop, with connections open."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def call(self, work: Callable[[LocalBroker], Coroutine[Any, Any, Result]]) -> Result:
        """Do something with the broker."""

        async def do() -> Result:
            return await work(self.broker)

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(PATIENCE_S)

    def parameters(self, **options: Any) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(
            "127.0.0.1",
            self.server.port,
            connection_attempts=1,
            socket_timeout=PATIENCE_S,
            blocked_connection_timeout=PATIENCE_S,
            **options,
        )

    def connect(self, **options: Any) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(self.parameters(**options))
        self._connections.append(connection)
        return connection

    def channel(self, *, confirms: bool = False, **options: Any) -> BlockingChannel:
        """A channel on a connection of its own."""
        channel = self.connect(**options).channel()
        if confirms:
            channel.confirm_delivery()
        return channel


@contextmanager
def served(path: Path | None = None, **options: Any) -> Iterator[Served]:
    place = Served(path, **options).start()
    try:
        yield place
    finally:
        place.stop()


def until(channel: BlockingChannel, condition: Callable[[], bool]) -> None:
    """Let the client work until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        channel.connection.process_data_events(0.01)


def quiet(channel: BlockingChannel, seconds: float = 0.15) -> None:
    """Let the client work for a while in which nothing should happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        channel.connection.process_data_events(0.01)


def waited(condition: Callable[[], bool]) -> None:
    """Wait for what happens elsewhere."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.005)


@contextmanager
def closes(code: int, text: str = "") -> Iterator[None]:
    """The server closes the channel for this reason."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == code, caught.value
    assert text in caught.value.reply_text, caught.value


def closed_with(channel: BlockingChannel, method: Any, *content: Any) -> int:
    """Send a method for which the server closes the connection; the reply code."""
    channel._impl._send_method(method, *content)
    try:
        until(channel, lambda: False)
    except ConnectionClosedByBroker as error:
        return int(error.reply_code)
    raise AssertionError("the connection was not closed")


class Raw:
    """A client that says and hears every frame: it settles nothing and drops nothing by itself."""

    def __init__(
        self, place: Served, *, opens: int = 1, heartbeat: int = 0, properties: dict[str, Any] | None = None
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", place.server.port), PATIENCE_S)
        self._data = b""
        self.send_bytes(b"AMQP\x00\x00\x09\x01")
        self.hear(commands.Connection.Start)
        self.send(0, commands.Connection.StartOk(properties or {}, "PLAIN", "\0guest\0guest", "en_US"))
        self.hear(commands.Connection.Tune)
        self.send(0, commands.Connection.TuneOk(2047, 131072, heartbeat))
        self.send(0, commands.Connection.Open("/"))
        self.hear(commands.Connection.OpenOk)
        for number in range(1, opens + 1):
            self.send(number, commands.Channel.Open())
            self.hear(commands.Channel.OpenOk)

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, channel: int, method: Any) -> None:
        self.send_bytes(frame.marshal(method, channel))

    def publish(self, channel: int, exchange: str, key: str, body: bytes) -> None:
        parts: list[Any] = [
            commands.Basic.Publish(0, exchange, key),
            header.ContentHeader(0, len(body)),
            pamqp_body.ContentBody(body),
        ]
        self.send_bytes(b"".join(frame.marshal(part, channel) for part in parts))

    def next(self) -> tuple[int, Any]:
        """The next frame: its channel, and what is in it."""
        while True:
            if len(self._data) >= 7:
                size = 8 + int.from_bytes(self._data[3:7])
                if len(self._data) >= size:
                    whole, self._data = self._data[:size], self._data[size:]
                    _, channel, found = frame.unmarshal(whole)
                    return channel, found
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self._data += more

    def hear(self, kind: Any) -> Any:
        """The next frame, which is of this kind."""
        _, found = self.next()
        assert isinstance(found, kind), found
        return found

    def hear_until(self, kind: Any) -> list[Any]:
        """Everything up to a method of this kind."""
        heard = []
        while True:
            _, found = self.next()
            heard.append(found)
            if isinstance(found, kind):
                return heard

    def close(self) -> None:
        self.socket.close()


class Inbox:
    """What a consumer was given."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.deliveries: list[tuple[Any, Any, bytes]] = []
        options.setdefault("auto_ack", False)
        self.tag = channel.basic_consume(queue, self._heard, **options)

    def _heard(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.deliveries.append((method, properties, body))

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.deliveries]

    def wait(self, count: int) -> list[tuple[Any, Any, bytes]]:
        until(self.channel, lambda: len(self.deliveries) >= count)
        return self.deliveries
