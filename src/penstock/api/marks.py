"""Marks: small durable JSON documents by name, each with a version that a writer may insist on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from penstock.model import INTEGER_MAX, check_integer, check_name
from penstock.model.errors import InvalidArgument, MessageTooLarge

VALUE_BYTES_MAX: Final = 1024 * 1024


class MarkPut(msgspec.Struct, frozen=True):
    """A mark to be put: `expected_version` None is whatever is there, 0 that there is none, else that very version."""

    name: str
    value: Any
    """Anything that JSON has; `msgspec.Raw` is JSON text already, and kept as it is."""
    expected_version: int | None = None


class Mark(msgspec.Struct, frozen=True):
    """A mark as it stands."""

    name: str
    version: int
    """1 when it was made, one more with every change."""
    value: Any
    updated_ms: int


class MarkPage(msgspec.Struct, frozen=True):
    """Marks by name with their values as JSON text; `next` is the `after` of the next page, None at the end."""

    marks: list[Mark]
    next: str | None


def check_puts(puts: Sequence[MarkPut]) -> list[tuple[MarkPut, bytes]]:
    """Each mark with its value as JSON text; raises for what cannot be put, and for a name that comes twice."""
    names: set[str] = set()
    checked: list[tuple[MarkPut, bytes]] = []
    for put in puts:
        if not isinstance(put, MarkPut):
            raise InvalidArgument(f"a mark to be put must be a penstock.MarkPut, not {type(put).__name__}")
        check_name(put.name, "a mark's name")
        if put.name in names:
            raise InvalidArgument(f"the mark {put.name!r} is put twice in one commit; put it once, with its last value")
        names.add(put.name)
        if put.expected_version is not None:
            check_integer(put.expected_version, "expected_version", 0, INTEGER_MAX)
        checked.append((put, _json(put)))
    return checked


def _json(put: MarkPut) -> bytes:
    try:
        value = msgspec.json.encode(put.value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the value of mark {put.name!r} cannot be written as JSON: {error}") from None
    if len(value) > VALUE_BYTES_MAX:
        raise MessageTooLarge(f"the value of mark {put.name!r} has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")
    try:
        msgspec.json.decode(value)  # raw text is taken as it is: what nobody could read back must not be kept
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the value of mark {put.name!r} is no JSON that can be read back: {error}") from None
    return value


class Marks(Protocol):
    """Reading and putting marks."""

    async def marks(self, prefix: str = "") -> list[Mark]:
        """The marks of this namespace whose names begin with `prefix`, by name."""

    async def mark(self, name: str) -> Mark:
        """A mark: its value and version; `NotFound` where there is none."""

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        """Put a mark: any JSON value under a name, durably.

        With `expected_version` only if it has that version now (0: only if there is none); `MarkMoved` otherwise.
        """

    async def delete_mark(self, name: str) -> None:
        """Delete a mark; a later one of the same name begins at version 1."""
