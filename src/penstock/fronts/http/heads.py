"""Heads of requests that came before: a client sends the same one over and over, and it is parsed once.

Looked up is only a POST that arrived whole and alone, or the beginning of one with a large body, by its headers as they
were sent, all but the length of its body. What is remembered was read by llhttp, with just these bytes in just this
place, so that nothing is accepted here that is not accepted there. Bytes only: no socket, no route.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.fronts.http.request import Headers, Request, request_of
from penstock.wire.http.large_bodies import LARGE_BODY_BYTES, ArrivingBody

HEADS_KEPT: Final = 256
HEAD_KEPT_BYTES: Final = 1_024
"""Limits on the cache of heads, whose contents clients choose."""

_TARGET: Final = re.compile(rb"POST /[A-Za-z0-9/_.~%?&=-]*")
"""Methods and targets in which nothing is unusual."""
_LENGTH: Final = b"\r\ncontent-length: "
_LENGTH_DIGITS_MAX: Final = 9
_NEVER_KEPT: Final = (b"expect", b"transfer-encoding", b"upgrade", b"x-request-id", b"traceparent")
"""What makes a request more than its headers and a body, or is different each time."""


def split(data: bytes) -> tuple[bytes, bytes, int, int] | None:
    """A POST that is all there, with nothing behind it, or of which the head and some of a large body are there.

    Its parts as far as they can be told without parsing: its target; the lines between the first and the last, which
    says how long the body is; where the body begins; how many bytes of it have not arrived. None for whatever else.
    """
    start = data.find(b"\r\n\r\n") + 4
    first, version, rest = data[: start - 4].partition(b" HTTP/1.1\r\n") if start > 4 else (b"", b"", b"")
    lines, found, digits = rest.rpartition(_LENGTH)
    if not (version and found and digits.isdigit()) or len(digits) > _LENGTH_DIGITS_MAX:
        return None
    length = int(digits)
    missing = start + length - len(data)
    if (missing and (missing < 0 or length < LARGE_BODY_BYTES)) or _TARGET.fullmatch(first) is None:
        return None
    return first[5:], lines, start, missing


class Heads:
    """Headers by the bytes that they came as."""

    def __init__(self, head_bytes_max: int, body_bytes_max: int) -> None:
        self._head_bytes_max = head_bytes_max
        self._body_bytes_max = body_bytes_max
        self._known: dict[bytes, Headers] = {}

    def read(self, data: bytes) -> Request | Arriving | None:
        """The request, or its beginning, if its headers are known."""
        found = split(data)
        if found is None:
            return None
        target, lines, start, missing = found
        headers = self._known.get(lines)
        length = len(data) - start + missing
        if headers is None or start > self._head_bytes_max or length > self._body_bytes_max:
            return None
        if missing:
            return Arriving(target, headers, ArrivingBody(memoryview(data)[start:], missing))
        return Request("POST", target, headers, data[start:], length)

    def remember(self, data: bytes, request: Request) -> None:
        """A request was parsed that is these bytes, or began with them."""
        found = split(data)
        if found is None or not request.keep_alive or request.is_old:
            return
        _, lines, start, missing = found
        kept = lines.lower()
        if len(kept) > HEAD_KEPT_BYTES or any(name in kept for name in _NEVER_KEPT):
            return
        if request.body_bytes != len(data) - start + missing or not request.begins_with(data[start:]):
            return
        if len(self._known) >= HEADS_KEPT:
            self._known.clear()
        self._known[lines] = request.headers


class Arriving(NamedTuple):
    """A request whose large body is still coming."""

    target: bytes
    headers: Headers
    body: ArrivingBody

    def request(self) -> Request:
        """It, when nothing is missing."""
        return request_of("POST", self.target, self.headers, self.body.parts)
