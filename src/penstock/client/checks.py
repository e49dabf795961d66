"""Numbers that a caller gives, checked once: errors name the value and the limit."""

from __future__ import annotations

from penstock.model.errors import InvalidArgument


def check_number(value: object, what: str, low: float, high: float) -> float:
    """A number in [low, high]; bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{what} must be a number, not {value!r} of type {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}; it must be {low:g} to {high:g}")
    return float(value)
