"""A TCP proxy on loopback that a test can make lose requests, lose answers, hang, or refuse everybody.

It knows nothing of what passes through it: a request is what a client sends, an answer is what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

Mode = Literal["pass", "refuse", "hang"]


class Proxy:
    """In front of one server. `async with Proxy(port) as proxy: … proxy.port`"""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter | None]] = {}
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self.mode: Mode = "pass"
        self.requests_to_lose = 0
        """So many requests from now on never arrive; their connections end."""
        self.answers_to_lose = 0
        """So many answers: what was asked for is done, and nobody hears of it."""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.refuse()
        self._goes_on.set()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=10)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def refuse(self) -> None:
        """End every connection, and accept none."""
        self.mode = "refuse"
        for client, server in self._connections.values():
            client.transport.abort()
            if server is not None:
                server.transport.abort()

    def hang(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self.mode = "hang"
        self._goes_on.clear()

    def heal(self) -> None:
        self.mode = "pass"
        self._goes_on.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = (writer, None)
        try:
            if self.mode == "refuse":
                writer.transport.abort()
                return
            with contextlib.suppress(OSError):
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
                self._connections[task] = (writer, to_server)
                passing = [
                    asyncio.ensure_future(self._pass(reader, to_server, "requests_to_lose")),
                    asyncio.ensure_future(self._pass(from_server, writer, "answers_to_lose")),
                ]
                try:
                    await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in passing:
                        one.cancel()
                    to_server.transport.abort()
        finally:
            writer.transport.abort()
            self._connections.pop(task, None)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, counter: str) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._goes_on.wait()
                if getattr(self, counter):
                    setattr(self, counter, getattr(self, counter) - 1)
                    return
                target.write(data)
                await target.drain()
