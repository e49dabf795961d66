"""Values as MySQL and MariaDB read them in a statement, and statements put together from them.

A whole commit goes to the server as text in one packet, so values are part of it. Only for sessions as
`pool.py` makes them: text is UTF-8, and a backslash escapes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

_BASE64_PAYS_FROM: Final = 1 << 20
"""Long values in which much has to be escaped are shorter so."""


class Expression(bytes):
    """SQL instead of a value: it goes into a statement as it is."""


def literal(value: Any) -> bytes:
    """One value as a literal."""
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, str):
        return b"'" + _escaped(value.encode()) + b"'"
    if value is None:
        return b"NULL"
    if isinstance(value, Expression):
        return value
    data = bytes(value)
    escaped = _escaped(data)
    if len(escaped) > _BASE64_PAYS_FROM and len(escaped) * 3 > len(data) * 4:
        return b"from_base64('" + b64encode(data) + b"')"
    return b"_binary'" + escaped + b"'"


def _escaped(data: bytes) -> bytes:
    """No byte of a character of several bytes in UTF-8 is a quote or a backslash."""
    return data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def literals(values: Iterable[Any]) -> bytes:
    return b",".join(map(literal, values))


def filled(statement: str, *values: Any) -> bytes:
    """A statement with its values put in for each %s; a list becomes the values of an IN (…)."""
    parts = [literals(value) if isinstance(value, list) else literal(value) for value in values]
    return statement.encode() % tuple(parts)


def filled_by_name(statement: str, values: Mapping[str, Any]) -> bytes:
    return statement.encode() % {name.encode(): literal(value) for name, value in values.items()}
