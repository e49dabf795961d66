"""A TCP proxy that can lose its mind: cut what goes through it, hold it back, or accept nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

CHUNK: Final = 1 << 16


class Proxy:
    """Listens on a free port, of loopback or another address, and passes on to one address."""

    def __init__(self, host: str, port: int, at: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self.host = at
        self._pairs: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._delay_s = 0.0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def lead_to(self, port: int) -> None:
        """Connections from now on go there."""
        self._target = (self._target[0], port)

    def stall(self) -> None:
        """Nothing passes any more, and nobody is told: a network that is split."""
        self._flows.clear()

    def slow(self, seconds: float) -> None:
        """Every piece passes so much later."""
        self._delay_s = seconds

    def heal(self) -> None:
        self._delay_s = 0.0
        self._flows.set()

    def cut(self) -> None:
        """End every connection at once, in the middle of whatever it says."""
        for writer in list(self._pairs):
            writer.transport.abort()

    async def close(self) -> None:
        self.heal()
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._pairs |= {writer, there[1]}
        try:
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        finally:
            for one in (writer, there[1]):
                self._pairs.discard(one)
                one.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
