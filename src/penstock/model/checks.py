"""Checks of single values: every error names the value, its type and the limit."""

from __future__ import annotations

from penstock.model.errors import InvalidArgument


def check_integer(value: object, what: str, low: int, high: int) -> int:
    """A whole number in [low, high]; bool is not a number."""
    if type(value) is not int and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidArgument(f"{what} must be a whole number, not {value!r} of type {type(value).__name__}", what)
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}; it must be {low} to {high}", what)
    return value


def check_text(value: object, what: str, most: int) -> None:
    """None, or a string of at most `most` characters that can be encoded as UTF-8."""
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {value!r} of type {type(value).__name__}", what)
    if len(value) > most:
        raise InvalidArgument(f"{what} has {len(value)} characters; the limit is {most}: {value[:40]!r}…", what)
    if not value.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise InvalidArgument(f"{what} {value[:40]!r} contains a lone surrogate", what)


def check_number(value: float | None, what: str, low: float, high: float) -> None:
    """None, or a number in [low, high]."""
    if value is not None and not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}; it must be {low} to {high}", what)
