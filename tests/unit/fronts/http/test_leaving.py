"""Thousands of clients that go at once are let go a few at a time, so that others have their turn between."""

from __future__ import annotations

import asyncio

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
