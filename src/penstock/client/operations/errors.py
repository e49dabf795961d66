"""From an answer that is no success to the error that the broker itself would have raised.

Every error has a stable code, which travels; its class comes from the catalogue (`model/errors.py`). What the catalogue
does not name (errors of HTTP itself, of a proxy, of a newer server) becomes the class that its status means.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.client.transport.connection import Answer
from penstock.model.errors import (
    CLASSES,
    Forbidden,
    InvalidArgument,
    InvalidFilter,
    MessageTooLarge,
    Overloaded,
    PenstockError,
    Unauthorized,
    Unavailable,
    UnknownError,
)
from penstock.wire.http.shapes import ErrorAnswer

_decode: Final = msgspec.json.Decoder(ErrorAnswer).decode

_BY_STATUS: Final[dict[int, type[PenstockError]]] = {
    400: InvalidArgument,
    401: Unauthorized,
    403: Forbidden,
    408: Unavailable,
    413: MessageTooLarge,
    429: Overloaded,
    431: MessageTooLarge,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(answer: Answer) -> PenstockError:
    """The error that an answer of 400 or more stands for."""
    try:
        body = _decode(answer.body).error
    except msgspec.MsgspecError:
        kind = _BY_STATUS.get(answer.status, PenstockError)
        shown = answer.body[:200].decode("utf-8", "replace")
        return kind(f"the server answered {answer.status} without saying why: {shown!r}")
    return _made(answer.status, body.code, body.message, body.detail)


def _made(status: int, code: str, message: str, detail: dict[str, Any]) -> PenstockError:
    if code == InvalidFilter.code:
        column = detail.get("column", 0)
        return InvalidFilter(message, column if isinstance(column, int) else 0)
    kind = CLASSES.get(code) or _BY_STATUS.get(status)
    return UnknownError(message, code) if kind is None else kind(message)
