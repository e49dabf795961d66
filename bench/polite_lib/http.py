"""HTTP by hand for the bench: requests as bytes, answers that are counted and mostly not kept.

A client library would spend more time on a large answer than the server does, and the machine is shared. Knows nothing
of queues.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, NamedTuple

CHUNK: Final = 1 << 18
JSON: Final = "application/json"
BATCH: Final = "application/vnd.penstock.batch"
BATCHES: Final = "application/vnd.penstock.batches+msgpack"
ARROW: Final = "application/vnd.apache.arrow.stream"
REFUSED: Final = frozenset({403, 408, 413, 421, 429, 503})
"""What a server may say to an attack: its limits."""


class Answer(NamedTuple):
    status: int
    size: int
    start: bytes
    """The first bytes of the body."""

    @property
    def is_refused(self) -> bool:
        return self.status in REFUSED


def request(method: str, path: str, body: bytes | Any = b"", kind: str = JSON, accept: str = "*/*") -> bytes:
    """The bytes of a request; a body that is not bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\naccept: {accept}\r\ncontent-length: {len(content)}\r\n"
    return (head + (f"content-type: {kind}\r\n" if content else "") + "\r\n").encode() + content


class Connection:
    """One connection, opened when it is first used and again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=CHUNK)

    async def ask(self, sent: bytes, keep: int = 400) -> Answer:
        """The answer, with its first `keep` bytes; an answer that is no success and no limit is an error."""
        await self.send(sent)
        answer = await self.answer(keep)
        if answer.status >= 300 and not answer.is_refused:
            raise RuntimeError(f"the server answered {answer.status} {answer.start!r} to {sent[:80]!r}")
        return answer

    async def send(self, sent: bytes) -> None:
        if self._writer is None:
            await self.open()
        assert self._writer is not None
        self._writer.write(sent)
        await self._writer.drain()

    async def answer(self, keep: int = 400) -> Answer:
        reader = self._reader
        assert reader is not None
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        if b"transfer-encoding: chunked" in head:
            start, size = await self._chunks(reader, keep)
        else:
            size = int(head.partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
            start = await reader.readexactly(min(size, keep))
            left = size - len(start)
            while left:
                left -= len(await reader.read(min(left, CHUNK))) or left
        if b"connection: close" in head:
            self.close()
        return Answer(status, size, start)

    async def _chunks(self, reader: asyncio.StreamReader, keep: int) -> tuple[bytes, int]:
        start, total = b"", 0
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            start, total = start + data[: keep - len(start)], total + size
        await reader.readline()
        return start, total

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
