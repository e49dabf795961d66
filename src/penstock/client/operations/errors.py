"""From an answer that is no success to the error that the broker itself would have raised.

Every `PenstockError` has a stable code, which travels; codes of HTTP itself (a path that does not exist, a token that
is missing) become the nearest class and keep their code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock.client.transport.connection import Answer
from penstock.model import errors
from penstock.model.errors import Forbidden, InvalidArgument, InvalidFilter, MessageTooLarge, PenstockError, Unavailable
from penstock.wire.http.shapes import ErrorAnswer

_decode: Final = msgspec.json.Decoder(ErrorAnswer).decode


def _classes(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _classes(below)


BY_CODE: Final[dict[str, type[PenstockError]]] = {
    kind.code: kind for kind in _classes(PenstockError) if kind.__module__ == errors.__name__
}
_HTTP_CODES: Final[dict[str, type[PenstockError]]] = {
    "malformed": InvalidArgument,
    "unauthorized": Forbidden,
    "headers_too_large": MessageTooLarge,
    "timeout": Unavailable,
    "too_many_connections": Unavailable,
}
_BY_STATUS: Final[dict[int, type[PenstockError]]] = {
    400: InvalidArgument, 401: Forbidden, 403: Forbidden, 413: MessageTooLarge, 429: errors.Overloaded,
    502: Unavailable, 503: Unavailable, 504: Unavailable,
}  # fmt: skip
"""For what stands between client and server and answers in words of its own."""


def error_of(answer: Answer) -> PenstockError:
    """The error that an answer of 400 or more stands for."""
    try:
        body = _decode(answer.body).error
    except msgspec.MsgspecError:
        kind = _BY_STATUS.get(answer.status, PenstockError)
        shown = answer.body[:200].decode("utf-8", "replace")
        return kind(f"the server answered {answer.status} without saying why: {shown!r}")
    return _made(body.code, body.message, body.detail)


def _made(code: str, message: str, detail: dict[str, Any]) -> PenstockError:
    if code == InvalidFilter.code:
        column = detail.get("column", 0)
        return InvalidFilter(message, column if isinstance(column, int) else 0)
    kind = BY_CODE.get(code)
    if kind is not None:
        return kind(message)
    error = _HTTP_CODES.get(code, PenstockError)(message)
    error.code = code
    return error
