"""A request as it arrived and an answer as it will leave. Bytes and plain values; no socket, no broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from penstock.api.principal import ANONYMOUS
from penstock.batch import EncodedBatch, from_bytes, from_parts
from penstock.batch.body import joined
from penstock.fronts.answers import Share
from penstock.wire.http.shapes import JSON_TYPE, encode_json

LONG_BODY_BYTES: Final = 512 * 1024
"""JSON bodies of this size and more are decoded on a thread: decoding them takes milliseconds."""

_REASONS: Final = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}


class Request:
    """One request, received whole."""

    __slots__ = (
        "_body",
        "_taken_bytes",
        "began",
        "headers",
        "id",
        "is_last",
        "is_old",
        "is_waiting",
        "keep_alive",
        "method",
        "parts",
        "principal",
        "route",
        "target",
        "waits",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes | list[bytes | memoryview],
        keep_alive: bool,
        *,
        is_old: bool = False,
    ) -> None:
        """`body` is a list where it came in parts."""
        self.method = method
        self.target = target
        self.headers = headers
        """Those of `connection.WANTED` that were sent, by lower-case name."""
        self._body, self.parts = (b"", body) if isinstance(body, list) else (body, [])
        self._taken_bytes = 0
        self.keep_alive = keep_alive
        self.is_old = is_old
        """Of HTTP/1.0."""
        self.is_waiting = False
        """It waits for what may not come for long: of no use to a client that has gone."""
        self.is_last = False
        """Its client has closed its side, and may have gone."""
        self.waits = False
        """It has waited, or was going to, here or at another node."""
        self.began = 0.0
        self.id = ""
        self.route = ""
        """The name of its route; empty where there is none."""
        self.principal = ANONYMOUS
        """Who sent it, once the server has looked."""

    @property
    def body(self) -> bytes:
        """All of it."""
        if not self.parts:
            return self._body
        self._taken_bytes = self.body_bytes
        self._body, self.parts = joined(self.parts), []
        return self._body

    @property
    def body_bytes(self) -> int:
        """How long it is."""
        return sum(map(len, self.parts)) if self.parts else len(self._body) or self._taken_bytes

    @property
    def is_long(self) -> bool:
        """Whether its body takes long to decode. One that came in one part does not: that is one read of a socket."""
        return bool(self.parts) and self.body_bytes >= LONG_BODY_BYTES

    def drop_body(self) -> None:
        """Nobody needs it any more: only its length is kept."""
        self._taken_bytes = self.body_bytes
        self._body, self.parts = b"", []

    def begins_with(self, data: bytes) -> bool:
        """Whether these are the first bytes of the body."""
        return bytes(self.parts[0]).startswith(data) if self.parts else self._body.startswith(data)

    def batch(self) -> EncodedBatch:
        """The body as an encoded batch, which one that came in parts becomes by being copied once; it is not kept."""
        if not self.parts:
            return from_bytes(self._body)
        self._taken_bytes = self.body_bytes
        parts, self.parts = self.parts, []
        return from_parts(parts)

    def wait(self, seconds: float) -> float:
        """How long it waits for messages: not at all where nobody may be there to take them."""
        if self.is_last and seconds > 0:
            return 0.0
        return seconds

    def header(self, name: bytes) -> str:
        """A header's text, empty where it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    def media_type(self) -> str:
        """What the body says it is, without parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    def accepts(self, media_type: str) -> bool:
        """Whether an answer of this type was asked for by name."""
        accept = self.headers.get(b"accept")
        return accept is not None and media_type in accept.decode("latin-1").lower()


class Answer:
    """One answer, whole."""

    __slots__ = ("content_type", "headers", "parts", "share", "status")

    def __init__(
        self,
        status: int,
        body: bytes | tuple[bytes, ...] = b"",
        content_type: str = JSON_TYPE,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.status = status
        self.parts = body if isinstance(body, tuple) else (body,)
        """The body, in parts that are not joined for being sent."""
        self.content_type = content_type
        self.headers = headers
        self.share: Share | None = None
        """Of a large answer: to give back when it is sent, or its client is gone."""

    @property
    def body(self) -> bytes:
        """All of it."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def body_bytes(self) -> int:
        """How long it is."""
        return len(self.parts[0]) if len(self.parts) == 1 else sum(map(len, self.parts))

    def head(self, request_id: str, keep_alive: bool, is_old: bool = False) -> bytes:
        """The status line and headers."""
        parts = [_first_lines(self.status), request_id.encode("latin-1")]
        if self.status != 204:
            parts += (_type_line(self.content_type), b"\r\nContent-Length: %d" % self.body_bytes)
        return _ended(parts, self.headers, keep_alive, is_old)


@lru_cache(maxsize=128)
def _first_lines(status: int) -> bytes:
    return b"HTTP/1.1 %b\r\nX-Request-Id: " % _REASONS[status]


@lru_cache(maxsize=128)
def _type_line(content_type: str) -> bytes:
    return b"\r\nContent-Type: %b" % content_type.encode()


class Stream:
    """An answer that is made while it is sent, of unknown length."""

    __slots__ = ("chunks", "content_type", "share", "status")

    def __init__(self, chunks: AsyncGenerator[bytes, None], content_type: str) -> None:
        self.status = 200
        self.chunks = chunks
        self.content_type = content_type
        self.share: Share | None = None
        """The same as an answer's."""

    def head(self, request_id: str, keep_alive: bool, is_old: bool = False) -> bytes:
        """The status line and headers."""
        parts = [
            b"HTTP/1.1 200 OK\r\nX-Request-Id: ",
            request_id.encode("latin-1"),
            b"\r\nContent-Type: ",
            self.content_type.encode(),
            b"\r\nCache-Control: no-store",
        ]
        if not is_old:
            parts.append(b"\r\nTransfer-Encoding: chunked")
        return _ended(parts, (), keep_alive, is_old)


def _ended(parts: list[bytes], headers: tuple[tuple[str, str], ...], keep_alive: bool, is_old: bool) -> bytes:
    for name, value in headers:
        parts.append(f"\r\n{name}: {value}".encode("latin-1"))
    if not keep_alive:
        parts.append(b"\r\nConnection: close")
    elif is_old:
        parts.append(b"\r\nConnection: keep-alive")
    parts.append(b"\r\n\r\n")
    return b"".join(parts)


def json_answer(body: object, status: int = 200) -> Answer:
    return Answer(status, encode_json(body))


NOTHING: Final = Answer(204)
