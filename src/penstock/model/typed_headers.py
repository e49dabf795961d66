"""Headers as JSON and back: what JSON has no type for is written as an object with one telling name.

Bytes are `{"$base64": …}`, times `{"$time": …}`. An object that a user's header happens to have of that shape is
wrapped in `{"$object": …}`, so that it comes back as it was. Nothing here knows who sends or keeps the JSON.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64decode, b64encode
from typing import Any, Final

from penstock.model.errors import InvalidArgument

_BYTES: Final = "$base64"
_TIME: Final = "$time"
_PLAIN: Final = "$object"
_MARKS: Final = frozenset((_BYTES, _TIME, _PLAIN))


def json_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """Headers with values that JSON has."""
    return {name: _to_json(value) for name, value in headers.items()}


def plain_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """What `json_headers` made, as it was before."""
    return {name: _from_json(value, 1) for name, value in headers.items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, dt.datetime):
        return {_TIME: value.isoformat()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        converted = {name: _to_json(item) for name, item in value.items()}
        return {_PLAIN: converted} if len(value) == 1 and _MARKS & value.keys() else converted
    return value


def _from_json(value: Any, depth: int) -> Any:
    if depth > 100:
        raise InvalidArgument("headers are nested deeper than 100 levels")
    if isinstance(value, list):
        return [_from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(mark, inner)] = value.items()
        if mark == _BYTES:
            return _decoded(inner)
        if mark == _TIME:
            return _time(inner)
        if mark == _PLAIN and isinstance(inner, dict):
            return {name: _from_json(item, depth + 1) for name, item in inner.items()}
    return {name: _from_json(item, depth + 1) for name, item in value.items()}


def _decoded(text: object) -> bytes:
    try:
        return b64decode(text if isinstance(text, str) else "!", validate=True)
    except ValueError:
        raise InvalidArgument(f"a header's {_BYTES} is {str(text)[:40]!r}, which is not base64") from None


def _time(text: object) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text if isinstance(text, str) else "")
    except ValueError:
        raise InvalidArgument(f"a header's {_TIME} is {str(text)[:40]!r}, which is not an ISO 8601 time") from None
