"""A request as it arrived and an answer as it will leave. Bytes and plain values; no socket, no broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from penstock.api.principal import ANONYMOUS, Principal
from penstock.batch import EncodedBatch, from_bytes, from_parts
from penstock.batch.body import joined
from penstock.fronts.answers import Share
from penstock.wire.http.shapes import JSON_TYPE, encode_json

LONG_BODY_BYTES: Final = 512 * 1024
"""JSON bodies of this size and more are decoded on a thread: decoding them takes milliseconds."""

_PLAIN: Final = frozenset((b"accept", b"content-type", b"host", b"last-event-id", b"traceparent"))
_REASONS: Final = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}


class Headers(dict[bytes, bytes]):
    """The headers of a request that anybody here looks at, by lower-case name, and what they say.

    Heads are remembered (`heads.py`), so this is found out once for all requests of a client.
    """

    __slots__ = ("accept", "is_plain", "media_type")

    def __init__(self, sent: Mapping[bytes, bytes] = MappingProxyType({})) -> None:
        super().__init__(sent)
        self.media_type = self._text(b"content-type").partition(";")[0].strip().lower()
        """What the body says it is, without parameters; empty where it says nothing."""
        self.accept = self._text(b"accept").lower()
        self.is_plain = self.keys() <= _PLAIN
        """They say what the body is and what is accepted, and nothing that must be checked."""

    def _text(self, name: bytes) -> str:
        return self.get(name, b"").decode("latin-1")


class Request(Struct, eq=False, dict=False):
    """One request, received whole."""

    method: str
    target: bytes
    headers: Headers
    _body: bytes
    body_bytes: int
    """How long it is, also when it was dropped."""
    parts: list[bytes | memoryview] = []
    """The body, where it came in parts."""
    keep_alive: bool = True
    is_old: bool = False
    """Of HTTP/1.0."""
    is_waiting: bool = False
    """It waits for what may not come for long: of no use to a client that has gone."""
    is_last: bool = False
    """Its client has closed its side, and may have gone."""
    waits: bool = False
    """It has waited, or was going to, here or at another node."""
    began: float = 0.0
    id: str = ""
    route: str = ""
    """The name of its route; empty where there is none."""
    principal: Principal = ANONYMOUS
    """Who sent it, once the server has looked."""

    @property
    def body(self) -> bytes:
        """All of it."""
        if self.parts:
            self._body, self.parts = joined(self.parts), []
        return self._body

    @property
    def is_long(self) -> bool:
        """Whether its body takes long to decode. One that came in one part does not: that is one read of a socket."""
        return self.body_bytes >= LONG_BODY_BYTES and bool(self.parts)

    def drop_body(self) -> None:
        """Nobody needs it any more: only its length is kept."""
        self._body, self.parts = b"", []

    def begins_with(self, data: bytes) -> bool:
        """Whether these are the first bytes of the body."""
        return bytes(self.parts[0]).startswith(data) if self.parts else self._body.startswith(data)

    def batch(self) -> EncodedBatch:
        """The body as an encoded batch, which one that came in parts becomes by being copied once; it is not kept."""
        if not self.parts:
            return from_bytes(self._body)
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

    def accepts(self, media_type: str) -> bool:
        """Whether an answer of this type was asked for by name."""
        return media_type in self.headers.accept


def request_of(
    method: str,
    target: bytes,
    headers: Headers,
    parts: list[bytes | memoryview],
    *,
    keep_alive: bool = True,
    is_old: bool = False,
) -> Request:
    """A request whose body came in these parts, none or several."""
    size = sum(map(len, parts))
    body, parts = (b"", parts) if len(parts) > 1 else (b"".join(parts), [])
    return Request(method, target, headers, body, size, parts, keep_alive, is_old)


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
        if self.status == 204:
            head = b"HTTP/1.1 204 No Content\r\nX-Request-Id: %b" % request_id.encode("latin-1")
        else:
            start, middle = _fixed_lines(self.status, self.content_type)
            head = b"%b%b%b%d" % (start, request_id.encode("latin-1"), middle, self.body_bytes)
        if keep_alive and not is_old and not self.headers:
            return head + b"\r\n\r\n"
        return _ended([head], self.headers, keep_alive, is_old)


@lru_cache(maxsize=128)
def _fixed_lines(status: int, content_type: str) -> tuple[bytes, bytes]:
    """What stands before the request's id and between it and the length of the body."""
    return (
        b"HTTP/1.1 %b\r\nX-Request-Id: " % _REASONS[status],
        b"\r\nContent-Type: %b\r\nContent-Length: " % content_type.encode(),
    )


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
