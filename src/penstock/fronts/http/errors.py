"""Errors as HTTP answers: every failure is `{"error": {"code", "message", "detail"}}` with the catalogue's status.

`Fault` lists what only HTTP can get wrong, before any broker is asked. Everything else comes from `model/errors.py`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from penstock.fronts.http.request import Answer
from penstock.model.errors import InvalidArgument, InvalidFilter, PenstockError, Unauthorized
from penstock.wire.http.shapes import ErrorAnswer, ErrorBody, encode_json

RETRY_AFTER_SECONDS: Final = 1
LATER: Final = (429, 503)
"""Statuses that ask the client to come back."""

Headers = tuple[tuple[str, str], ...]


class Fault(NamedTuple):
    """What can be wrong with a request as HTTP."""

    status: int
    code: str
    words: str
    """When it is answered, for the reference."""


MALFORMED: Final = Fault(400, "malformed", "not HTTP, or a body that is not JSON")
NO_SUCH_PATH: Final = Fault(404, "no_such_path", "no operation has this path")
METHOD_NOT_ALLOWED: Final = Fault(405, "method_not_allowed", "the path takes other methods: `Allow` names them")
NOT_ACCEPTABLE: Final = Fault(
    406, "not_acceptable", "`Accept` asks for a form that the operation does not give, or the server cannot make"
)
TIMEOUT: Final = Fault(408, "timeout", "the request did not arrive within `http.request_seconds`")
MEDIA_TYPE: Final = Fault(
    415, "unsupported_media_type", "`Content-Type` is missing or another, or the body is compressed"
)
HEADERS_TOO_LARGE: Final = Fault(
    431, "headers_too_large", "the headers are larger than `http.max_header_bytes`, or more than 100"
)
INTERNAL: Final = Fault(500, "internal", "the server failed; its log has the request's id")
FAULTS: Final = tuple(fault for fault in tuple(globals().values()) if isinstance(fault, Fault))


class HttpError(Exception):
    """A request that HTTP itself refuses."""

    def __init__(self, fault: Fault, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.fault: Final = fault
        self.headers: Final = headers


def answer_to(error: BaseException) -> Answer:
    """The answer for what a handler raised."""
    if isinstance(error, PenstockError):
        return _refusal(error)
    if isinstance(error, HttpError):
        return _fault(error.fault, str(error), error.headers)
    if isinstance(error, msgspec.ValidationError):
        text = str(error)
        return failure(
            InvalidArgument.row.http, InvalidArgument.code, text, {"at": text.rpartition(" - at ")[2].strip("`")}
        )
    if isinstance(error, msgspec.DecodeError):
        return _fault(MALFORMED, f"the body is not JSON: {error}")
    if isinstance(error, RecursionError):
        return _fault(MALFORMED, "the body is nested too deeply")
    return _fault(INTERNAL, "the server failed in an unexpected way; its log has the details")


def failure(status: int, code: str, message: str, detail: dict[str, Any], headers: Headers = ()) -> Answer:
    return Answer(status, encode_json(ErrorAnswer(ErrorBody(code, message, detail))), headers=headers)


def _refusal(error: PenstockError) -> Answer:
    status = error.row.http
    headers: Headers = ()
    if status in LATER:
        headers = (("Retry-After", str(RETRY_AFTER_SECONDS)),)
    elif isinstance(error, Unauthorized):
        headers = (("WWW-Authenticate", "Bearer"),)
    detail = {"column": error.column} if isinstance(error, InvalidFilter) else {}
    return failure(status, error.code, str(error), detail, headers)


def _fault(fault: Fault, message: str, headers: Headers = ()) -> Answer:
    return failure(fault.status, fault.code, message, {}, headers)
