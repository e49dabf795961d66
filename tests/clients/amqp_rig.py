"""What the tests of the AMQP front stand on: a broker and its front on a loop in a thread, and pika as the client.

pika blocks, so the server has a thread of its own; `Served.call` does something on its loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pika
import uvloop
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

import penstock
from penstock import Broker
from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.amqp091.server import AmqpServer

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing test waits so long."""

Result = TypeVar("Result")


class Served:
    """A broker with its AMQP front, in a thread of its own."""

    def __init__(self, path: Path | None = None, **options: Any) -> None:
        self._path = path
        self._options = AmqpOptions(port=0, **options)
        self._loop = uvloop.new_event_loop()
        self._connections: list[pika.BlockingConnection] = []
        self._thread = threading.Thread(target=self._serve)
        self._ready = threading.Event()
        self.broker: Broker
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
        async with await penstock.open(self._path) as self.broker:
            self.server = AmqpServer(self.broker, self._options)
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

    def call(self, work: Callable[[Broker], Coroutine[Any, Any, Result]]) -> Result:
        """Do something with the broker."""

        async def do() -> Result:
            return await work(self.broker)

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(PATIENCE_S)

    def parameters(self, **options: Any) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(
            "127.0.0.1", self.server.port, connection_attempts=1, socket_timeout=PATIENCE_S,
            blocked_connection_timeout=PATIENCE_S, **options,
        )  # fmt: skip

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
    try:
        yield
    except ChannelClosedByBroker as error:
        assert error.reply_code == code, error
        assert text in error.reply_text, error
    else:
        raise AssertionError(f"the channel was not closed, it should have been with {code}")


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
