"""Errors as answers: every failure is `{"error": {"code", "message", "detail"}}`, its status says what to do."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.fronts.http.request import Answer
from penstock.model import errors
from penstock.model.errors import PenstockError
from penstock.wire.http.shapes import ErrorAnswer, ErrorBody, encode_json

RETRY_AFTER_SECONDS: Final = 1

STATUS: Final[dict[type[PenstockError], int]] = {
    errors.InvalidArgument: 400,
    errors.UnknownOption: 400,
    errors.InvalidFilter: 400,
    errors.InvalidBatch: 400,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.AlreadyExists: 409,
    errors.WrongKind: 409,
    errors.LeaseLost: 409,
    errors.MarkMoved: 409,
    errors.ChunkMissing: 409,
    errors.AlreadyCommitted: 409,
    errors.OffsetGone: 410,
    errors.MessageTooLarge: 413,
    errors.Unroutable: 422,
    errors.QueueFull: 429,
    errors.Overloaded: 429,
    errors.Unavailable: 503,
    errors.Fenced: 503,
    errors.Closed: 503,
    errors.StoreCorrupt: 500,
    PenstockError: 500,
}


class HttpError(Exception):
    """What is wrong with a request before any broker sees it."""

    def __init__(self, status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def answer_to(error: Exception) -> Answer:
    """The answer for what a handler raised."""
    if isinstance(error, PenstockError):
        status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
        headers = (("Retry-After", str(RETRY_AFTER_SECONDS)),) if status in (429, 503) else ()
        return failure(status, error.code, str(error), detail_of(error), headers)
    if isinstance(error, HttpError):
        return failure(error.status, error.code, str(error), {}, error.headers)
    if isinstance(error, msgspec.ValidationError):
        return failure(
            400, errors.InvalidArgument.code, str(error), {"at": str(error).rpartition(" - at ")[2].strip("`")}
        )
    if isinstance(error, msgspec.DecodeError):
        return failure(400, "malformed", f"the body is not JSON: {error}", {})
    if isinstance(error, RecursionError):
        return failure(400, "malformed", "the body is nested too deeply", {})
    return failure(500, "internal", "the server failed in an unexpected way; its log has the details", {})


def failure(
    status: int, code: str, message: str, detail: dict[str, Any], headers: tuple[tuple[str, str], ...] = ()
) -> Answer:
    return Answer(status, encode_json(ErrorAnswer(ErrorBody(code, message, detail))), headers=headers)


def detail_of(error: PenstockError) -> dict[str, Any]:
    """What a program may want to know beside the code."""
    if isinstance(error, errors.InvalidFilter):
        return {"column": error.column}
    return {}
