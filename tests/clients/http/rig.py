"""What the client's tests stand on.

Servers that answer as they are told, the real one in this process, and the real one in a process that can be killed and
started again on the same file and port.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock import AsyncClient
from penstock.cli.dev.checkout import script_environment
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import HttpServer
from penstock.node.broker import LocalBroker
from tests.local import open_local

PATIENCE_S = 60.0
"""How long a test waits for what must happen; only a failing test waits so long."""

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    async def bounded() -> Result:
        return await asyncio.wait_for(work, PATIENCE_S)

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that something else makes true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        await asyncio.sleep(0.002)


# A server that does as it is told ------------------------------------------------------------------------


class Asked(NamedTuple):
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def query(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.target.partition("?")[2].split("&") if pair)


Responder = Callable[[Asked], "bytes | Awaitable[bytes | None] | None"]
"""The bytes to answer with; None closes the connection without an answer."""


class ToldServer:
    """Reads requests and does with each what the test says."""

    def __init__(self, respond: Responder, tls: ssl.SSLContext | None = None) -> None:
        self._respond = respond
        self._tls = tls
        self.asked: list[Asked] = []
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ToldServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_all()
        await self._server.wait_closed()

    def drop_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *lines = head.rstrip("\r\n").split("\r\n")
                method, target, _ = line.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                asked = Asked(method, target, headers, body, number)
                self.asked.append(asked)
                answer = self._respond(asked)
                if not isinstance(answer, bytes | None):
                    answer = await answer
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


def answer(body: object = None, status: int = 200, **headers: str) -> bytes:
    """A whole response with a JSON body, or none."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def refusal(status: int, code: str, message: str = "no", **headers: str) -> bytes:
    return answer({"error": {"code": code, "message": message, "detail": {}}}, status, **headers)


# The real server -----------------------------------------------------------------------------------------


class Served(NamedTuple):
    broker: LocalBroker
    server: HttpServer
    url: str


@asynccontextmanager
async def served(path: Path | None = None, **options: Any) -> AsyncIterator[Served]:
    """A broker and its HTTP front in this process."""
    async with await open_local(path) as broker:
        server = HttpServer(broker, HttpOptions(port=0, **options))
        await server.start()
        try:
            yield Served(broker, server, f"http://127.0.0.1:{server.port}")
        finally:
            await server.stop()


@asynccontextmanager
async def connected(path: Path | None = None, **options: Any) -> AsyncIterator[tuple[AsyncClient, Served]]:
    async with served(path) as place, AsyncClient(place.url, **options) as client:
        yield client, place


class ServerProcess:
    """The real server in a process of its own, on one file and one port however often it is started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        script = Path(__file__).with_name("server_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self._path), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
            env=script_environment(),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip() == "ready", f"the server said {line!r}"

    def kill(self) -> None:
        """SIGKILL: nothing of it gets to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        os.kill(self._process.pid, number)
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
