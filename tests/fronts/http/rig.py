"""What the tests of the HTTP front stand on: a server in this process, a client of bytes and one of JSON.

The clients know nothing of `penstock.client`: what they send is written here, so that both ends cannot be wrong
together.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import pytest
import uvloop

from penstock.embedded import open_store
from penstock.fronts.answers import ANSWER_BYTES, Answers
from penstock.fronts.front import Shared
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import HttpServer
from penstock.node.broker import LocalBroker
from penstock.node.clock import Clock, SystemClock
from penstock.node.limits import Limits
from penstock.node.spool.spool import SpoolSettings
from penstock.store.contract import Store
from penstock.store.memory.engine import MemoryStore
from penstock.store.sqlite.engine import SqliteStore

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing test waits so long."""

Result = TypeVar("Result")
Scenario = Callable[..., Coroutine[Any, Any, None]]
JSON = "application/json"
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Reply(NamedTuple):
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error, whose shape is looked at too."""
        error = self.json()
        assert list(error) == ["error"]
        assert list(error["error"]) == ["code", "message", "detail"]
        assert error["error"]["message"]
        return str(error["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json()["error"]["message"])


class Wire:
    """A connection on which a test says and hears every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, *, is_head: bool = False) -> Reply:
        """The next answer, by its length or chunks."""
        status, headers = await self.head()
        body = b""
        if is_head or status in (100, 204):
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                body += chunk
        elif "content-length" in headers:
            body = await soon(self.reader.readexactly(int(headers["content-length"])))
        else:
            body = await soon(self.reader.read())
        return Reply(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await soon(self.reader.readuntil(b"\r\n\r\n"))).decode("latin-1")
        line, *rest = head[:-4].split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = [field.split(": ", 1) for field in rest]
        assert len({name.lower() for name, _ in headers}) == len(headers), f"a header twice: {headers}"
        return int(status), {name.lower(): value for name, value in headers}

    async def chunk(self) -> bytes:
        """One chunk; empty at the end of the answer."""
        size = int(await soon(self.reader.readuntil(b"\r\n")), 16)
        data = await soon(self.reader.readexactly(size + 2))
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def is_closed(self) -> bool:
        """Wait until the server has closed it; False when it says something first."""
        try:
            return await soon(self.reader.read(1)) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Go without a goodbye."""
        self.writer.transport.abort()


class Front:
    """A broker and its server."""

    def __init__(self, broker: LocalBroker, server: HttpServer) -> None:
        self.broker = broker
        self.server = server
        self.token = ""
        self._wires: list[Wire] = []
        self._idle: list[Wire] = []

    async def connect(self, **options: Any) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.server.port, **options))
        self._wires.append(wire)
        return wire

    async def say(self, data: bytes) -> Reply:
        """Send bytes on a connection of their own; the first answer."""
        wire = await self.connect()
        await wire.send(data)
        reply = await wire.reply()
        wire.close()
        return reply

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, **query: Any
    ) -> Reply:
        """One request: `body` is bytes as they are, anything else as JSON."""
        data, fields = b"", {"Host": "test"} | (headers or {})
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body).encode()
            fields.setdefault("Content-Type", JSON)
        if self.token:
            fields.setdefault("Authorization", f"Bearer {self.token}")
        if query:
            path += "?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        if data or method in ("POST", "PUT", "PATCH"):
            fields["Content-Length"] = str(len(data))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        wire = self._idle.pop() if self._idle else await self.connect()
        await wire.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        reply = await wire.reply(is_head=method == "HEAD")
        if reply.headers.get("connection") == "close":
            wire.close()
        else:
            self._idle.append(wire)
        return reply

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The same where it must succeed: the JSON of the answer, None where there is none."""
        reply = await self.call(method, path, body, **options)
        assert 200 <= reply.status < 300, f"{method} {path}: {reply}"
        return reply.json() if reply.body else None

    async def publish(self, queue: str, *payloads: str, **fields: Any) -> Any:
        messages = [{"payload": payload, **fields} for payload in payloads]
        return await self.ok("POST", f"/v1/queues/{name(queue)}/messages", {"messages": messages})

    async def claim(self, queue: str, **fields: Any) -> Any:
        return await self.ok("POST", f"/v1/queues/{name(queue)}/claim", fields)

    async def is_alive(self) -> bool:
        return (await self.call("GET", "/healthz")).status == 200

    def close_wires(self) -> None:
        for wire in self._wires:
            wire.close()


def name(text: str) -> str:
    """A name as it stands in a path."""
    return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")


@asynccontextmanager
async def front_on(
    store: Store,
    *,
    clock: Clock | None = None,
    log_requests: bool = False,
    spool: SpoolSettings | None = None,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    answer_bytes: int = ANSWER_BYTES,
    **options: Any,
) -> AsyncIterator[Front]:
    """A server on a free port, stopped at the end with what it stands on."""
    broker = await open_store(store, clock or SystemClock(), spool=spool, limits=limits)
    try:
        shared = Shared(
            log_requests=log_requests,
            message_bytes=limits.message_bytes,
            batch_bytes=limits.batch_bytes,
            answers=Answers(answer_bytes),
        )
        server = HttpServer(broker, HttpOptions(port=0, **options), shared)
        await server.start()
        front = Front(broker, server)
        try:
            yield front
        finally:
            front.close_wires()
            await server.stop()
    finally:
        await broker.close()


def over_http(*, engine: str = "memory", **options: Any) -> Callable[[Scenario], Callable[..., None]]:
    """Make a test of a coroutine that takes a `Front`; what else it takes are pytest's own parameters and fixtures."""

    def decorate(scenario: Scenario) -> Callable[..., None]:
        async def main(**parameters: Any) -> None:
            with TemporaryDirectory() as folder:
                store: Store = MemoryStore() if engine == "memory" else await SqliteStore.open(Path(folder) / "x.db")
                async with front_on(store, **options) as front:
                    await asyncio.wait_for(scenario(front, **parameters), 100)

        def run(**parameters: Any) -> None:
            with asyncio.Runner(loop_factory=LOOPS[parameters.get("loop", "asyncio")]) as runner:
                runner.run(main(**parameters))

        signature = inspect.signature(scenario)
        rest = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=rest, return_annotation=None)  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
        run.pytestmark = list(getattr(scenario, "pytestmark", []))  # type: ignore[attr-defined]
        return run

    return decorate


on_both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))
"""For what the transport has a part in: uvloop and asyncio differ there."""


async def soon(work: Awaitable[Result], seconds: float = PATIENCE_S) -> Result:
    """What must not hang: the result, or a failure after the test's patience."""
    return await asyncio.wait_for(work, seconds)


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; fails when it does not come in time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert asyncio.get_running_loop().time() < deadline, f"{condition} did not come true in {PATIENCE_S} s"
        await asyncio.sleep(0.003)
