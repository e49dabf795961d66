"""Thousands of clients that go at once are let go a few at a time, so that others have their turn between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from penstock import Message
from penstock.fronts.http.connection import Connection
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import LEAVING_AT_ONCE, HttpServer
from tests.local import open_local


def test_some_are_let_go_in_each_turn_of_the_loop() -> None:
    async def check() -> None:
        async with await open_local() as broker:
            server = HttpServer(broker, HttpOptions(port=0))
            clients = [Connection(server) for _ in range(3 * LEAVING_AT_ONCE - 1)]
            for client in clients:
                server.opened(client)
            for client in clients:
                client.connection_lost(None)
            left = [len(server.connections)]
            while server.connections:
                await asyncio.sleep(0)
                left.append(len(server.connections))
            assert left == [2 * LEAVING_AT_ONCE - 1, LEAVING_AT_ONCE - 1, 0]
            client = Connection(server)
            server.opened(client)
            client.connection_lost(None)
            assert not server.connections, "one alone goes at once"

    asyncio.run(check())


async def comes(condition: Callable[[], object]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("what was waited for did not happen")


class Handle(asyncio.Transport):
    """A transport that fails when it is used after its end, as those of uvloop do."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_gone = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._check()
        self.written += data

    def close(self) -> None:
        self._check()

    def pause_reading(self) -> None:
        self._check()

    def resume_reading(self) -> None:
        self._check()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._check()

    def is_closing(self) -> bool:
        return self.is_gone

    def _check(self) -> None:
        if self.is_gone:
            raise RuntimeError("the handler is closed")


@pytest.mark.parametrize("max_messages", [1, 5_000])
def test_what_comes_for_a_client_that_has_gone_and_was_not_let_go_yet_is_no_error(
    max_messages: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with await open_local() as broker:
            await broker.declare_queue("q")
            server = HttpServer(broker, HttpOptions(port=0))
            clients = [Connection(server) for _ in range(100 * LEAVING_AT_ONCE + 1)]
            transport = Handle()
            clients[-1].connection_made(transport)
            body = b'{"wait": 30, "max": %d}' % max_messages
            head = b"POST /v1/queues/q/claim HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            clients[-1].data_received(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            await comes(lambda: server.measures.long_polls)
            published = broker.publish_many("q", [Message(b"x")] * max_messages)
            for client in clients[:-1]:
                server.opened(client)
                client.connection_lost(None)
            transport.is_gone = True
            clients[-1].connection_lost(None)
            assert clients[-1] in server.connections, "it is not let go yet"
            await published
            await comes(lambda: not server.connections and not server.measures.long_polls)
            assert not transport.written

    with caplog.at_level(logging.WARNING):
        asyncio.run(check())
    assert not caplog.records
