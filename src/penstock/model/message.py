"""A message: payload bytes and metadata, and the limits of both.

Times are integers in milliseconds since the epoch (`…_ms`), spans integers in milliseconds. A message's next stop is
`batch/messages.py`, where it becomes a column of an encoded batch."""

from __future__ import annotations

import datetime as dt
from operator import is_
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from penstock.model.checks import check_integer, check_text
from penstock.model.errors import InvalidArgument, MessageTooLarge
from penstock.model.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_DEPTH_MAX,
    HEADERS_MAX,
    ID_CHARACTERS_MAX,
    INTEGER_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
)

# A header is one of these: None, bool, int, float, str, bytes, datetime, or a list or dict of them.
Headers = dict[str, Any]


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a producer publishes: payload bytes and metadata. An absent field costs nothing to store.

    `delay_ms` counts from the moment of publishing, `not_before_ms` is a point in time; the later one holds.
    `ttl_ms` counts from publishing; a message is never delivered after it. `dedup_id` names the message inside
    its partition: publishing it again within the queue's dedup window changes nothing.
    """

    payload: bytes = b""
    partition: str | None = None
    key: str | None = None
    headers: Headers | None = None
    priority: int = 0
    delay_ms: int = 0
    not_before_ms: int = 0
    ttl_ms: int | None = None
    dedup_id: str | None = None
    content_type: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None

    def size(self) -> int:
        """Bytes of the payload: what `max_bytes` and the size limits count first."""
        return len(self.payload)


TEXT_LIMITS: Final = {
    "partition": PARTITION_CHARACTERS_MAX,
    "key": NAME_CHARACTERS_MAX,
    "dedup_id": ID_CHARACTERS_MAX,
    "content_type": ID_CHARACTERS_MAX,
    "correlation_id": ID_CHARACTERS_MAX,
    "trace_id": ID_CHARACTERS_MAX,
}
"""The fields that are text, and how many characters each may have."""
NUMBER_LIMITS: Final = {"priority": PRIORITY_MAX, "delay_ms": SPAN_MS_MAX, "not_before_ms": TIME_MS_MAX}
"""The fields that are whole numbers from 0 on, and how large each may be."""


_ABSENT: Final = astuple(Message())[1:]
"""Every field but the payload, of a message that has nothing else."""


def check_message(message: object, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Raise unless every field of a message has its type and is within its limit."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"a message must be a penstock.Message, not {message!r} of type {type(message).__name__}")
    if type(message.payload) is not bytes:
        kind = type(message.payload).__name__
        raise InvalidArgument(f"payload must be bytes, not {kind}; encode text with .encode()")
    if len(message.payload) > payload_bytes_max:
        raise MessageTooLarge(f"payload has {len(message.payload)} bytes; the limit is {payload_bytes_max}")
    if all(map(is_, astuple(message)[1:], _ABSENT)):
        return
    for name, most in TEXT_LIMITS.items():
        value = getattr(message, name)
        if value is not None:
            check_text(value, name, most)
    for name, most in NUMBER_LIMITS.items():
        value = getattr(message, name)
        if value != 0 or type(value) is not int:
            check_integer(value, name, 0, most)
    if message.ttl_ms is not None:
        check_integer(message.ttl_ms, "ttl_ms", 0, SPAN_MS_MAX)
    if message.headers is not None:
        check_headers(message.headers)


def check_headers(headers: object) -> None:
    """A dict of at most 256 named, typed values, 64 KiB and eight levels deep at the most."""
    if not isinstance(headers, dict):
        raise InvalidArgument(f"headers must be a dict, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise InvalidArgument(f"a message has {len(headers)} headers; the limit is {HEADERS_MAX}")
    size = 0
    for key, value in headers.items():
        size += (len(value) or 1) if type(value) is bytes else _header_size(value, key, 1)
        is_plain = type(key) is str and key.isascii() and len(key) <= NAME_CHARACTERS_MAX
        size += len(key) if is_plain else _key_size(key)
    if size > HEADERS_BYTES_MAX:
        raise MessageTooLarge(f"headers have about {size} bytes; the limit is {HEADERS_BYTES_MAX}")


def _key_size(key: object) -> int:
    check_text(key if key is not None else 0, "a header's name", NAME_CHARACTERS_MAX)
    return len(str(key))


def _header_size(value: object, name: object, depth: int) -> int:
    if depth > HEADERS_DEPTH_MAX:
        raise InvalidArgument(f"header {name!r} is nested deeper than {HEADERS_DEPTH_MAX} levels")
    if value is None or isinstance(value, bool):
        return 1
    if isinstance(value, int):
        check_integer(value, f"header {name!r}", -INTEGER_MAX - 1, INTEGER_MAX)
        return 9
    if isinstance(value, float):
        return 9
    if isinstance(value, dt.datetime):
        _check_datetime(value, name)
        return 13
    if isinstance(value, bytes):
        return len(value) or 1
    if isinstance(value, str):
        check_text(value, f"header {name!r}", HEADERS_BYTES_MAX)
        return len(value) or 1
    if isinstance(value, list):
        return 5 + sum(_header_size(item, name, depth + 1) for item in value)
    if isinstance(value, dict):
        return 5 + sum(_header_size(item, name, depth + 1) + _key_size(key) for key, item in value.items())
    raise InvalidArgument(
        f"header {name!r} has a value of type {type(value).__name__}; headers take None, bool, int, float, "
        "str, bytes, datetime, list and dict"
    )


def _check_datetime(value: dt.datetime, name: object) -> None:
    if value.tzinfo is None:
        raise InvalidArgument(f"header {name!r} is a datetime without a time zone: {value!r}")
    try:
        value.astimezone(dt.UTC)
    except OverflowError:
        raise InvalidArgument(f"header {name!r} is outside the years 1 to 9999 in UTC: {value!r}") from None
