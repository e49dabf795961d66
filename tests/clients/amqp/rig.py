"""Where AMQP clients connect to in these tests, and waiting for what they see.

With `AMQP_SERVER=host:port` in the environment the tests run against that server instead of a `penstock serve` of their
own: they say what RabbitMQ does, and this is how to see that they do.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.cli.servers import Server, running

DEADLINE_SECONDS: Final = 20.0
ELSEWHERE: Final = os.environ.get("AMQP_SERVER", "")
LISTENS: Final = re.compile(r"amqp://(\S+?):(\d+)")


class Address(NamedTuple):
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}//"

    def parameters(self, **options: Any) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(self.host, self.port, **options)

    def connect(self, **options: Any) -> BlockingConnection:
        return BlockingConnection(self.parameters(**options))


def address_of(server: Server) -> Address:
    """Where a server says that it listens for AMQP."""
    found = LISTENS.search("".join(server.output))
    assert found is not None, server.output
    return Address(found[1], int(found[2]))


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[Server, Address]]:
    """A `penstock serve` with AMQP on a free port, until the block ends."""
    with running(folder, "--amqp-port", "0", "--no-mqtt", *arguments) as server:
        yield server, address_of(server)


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, with a deadline; what it gave."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not in {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.01)
    return found


def unique(prefix: str) -> str:
    """A name of its own, so that tests can share a server."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def count(channel: BlockingChannel, queue: str) -> int:
    """How many messages are ready in a queue."""
    number = channel.queue_declare(queue, passive=True).method.message_count
    assert isinstance(number, int)
    return number


def get(channel: BlockingChannel, queue: str, auto_ack: bool = False) -> tuple[Any, Any, bytes]:
    """The next message; waits until there is one."""
    return until(lambda: got if (got := channel.basic_get(queue, auto_ack))[0] else None, f"a message in {queue}")  # type: ignore[no-any-return]


def drain(channel: BlockingChannel, queue: str, number: int, auto_ack: bool = True) -> list[Any]:
    """So many messages from a consumer, which is cancelled then."""
    found: list[Any] = []
    for method, properties, body in channel.consume(queue, auto_ack=auto_ack, inactivity_timeout=DEADLINE_SECONDS):
        assert method is not None, f"{len(found)} of {number} messages in {queue}"
        found.append((method, properties, body))
        if len(found) == number:
            break
    channel.cancel()
    return found


def pump(connection: BlockingConnection, holds: Callable[[], Any], what: str) -> None:
    """Let a blocking connection work until the condition holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not in {DEADLINE_SECONDS} s: {what}"
        connection.process_data_events(time_limit=0.05)
