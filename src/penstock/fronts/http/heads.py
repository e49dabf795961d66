"""Heads of requests that came before: a client sends the same one over and over, and it is parsed once.

Looked up is only a POST that arrived whole and alone, by its headers as they were sent, all but the length of its body.
What is remembered was read by llhttp, with just these bytes in just this place, so that nothing is accepted here that
is not accepted there. Bytes only: no socket, no route.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.fronts.http.request import Request

HEADS_KEPT: Final = 256
HEAD_KEPT_BYTES: Final = 1_024
"""A client chooses its headers: so many heads are remembered, and none whose headers are longer."""

_TARGET: Final = re.compile(rb"/[A-Za-z0-9/_.~%?&=-]*")
"""Targets in which nothing is unusual."""
_LENGTH: Final = b"\r\ncontent-length: "
_LENGTH_DIGITS_MAX: Final = 9
_NEVER_KEPT: Final = (b"expect", b"transfer-encoding", b"upgrade", b"x-request-id", b"traceparent")
"""What makes a request more than its headers and a body, or is different each time."""


def split(data: bytes) -> tuple[bytes, bytes, int, bytes] | None:
    """One POST that is all there, in its parts as far as they can be told without parsing; None for whatever else.

    Its target; the lines between the first and the last, which says how long the body is; the head's length; the body.
    """
    line_end = data.find(b" HTTP/1.1\r\n", 5)
    head_end = data.find(b"\r\n\r\n", line_end)
    length_at = data.rfind(_LENGTH, line_end, head_end)
    if line_end < 0 or head_end < 0 or length_at < 0 or not data.startswith(b"POST "):
        return None
    digits = data[length_at + len(_LENGTH) : head_end]
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX or len(data) != head_end + 4 + int(digits):
        return None
    target = data[5:line_end]
    if _TARGET.fullmatch(target) is None:
        return None
    return target, data[line_end:length_at], head_end, data[head_end + 4 :]


class Heads:
    """Headers by the bytes that they came as."""

    def __init__(self, head_bytes_max: int, body_bytes_max: int) -> None:
        self._head_bytes_max = head_bytes_max
        self._body_bytes_max = body_bytes_max
        self._known: dict[bytes, Mapping[bytes, bytes]] = {}

    def read(self, data: bytes) -> Request | None:
        """The request, if it has all arrived and its headers are known."""
        parts = split(data)
        if parts is None:
            return None
        target, lines, head_bytes, body = parts
        headers = self._known.get(lines)
        if headers is None or head_bytes > self._head_bytes_max or len(body) > self._body_bytes_max:
            return None
        return Request("POST", target, headers, body, True)

    def remember(self, data: bytes, request: Request) -> None:
        """These bytes were parsed, and are this request."""
        parts = split(data)
        if parts is None or not request.keep_alive or request.is_old or request.body != parts[3]:
            return
        lines = parts[1]
        kept = lines.lower()
        if len(kept) > HEAD_KEPT_BYTES or any(name in kept for name in _NEVER_KEPT):
            return
        if len(self._known) >= HEADS_KEPT:
            self._known.clear()
        self._known[lines] = request.headers
