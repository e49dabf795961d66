"""Values while a filter is evaluated: None, bool, int, float that is not NaN, str, or anything else.

The last only IS NULL reads. Here is how two of them compare and what arithmetic on them gives, kind by kind as in
`docs/filters.md`. The Spark back end has its own of these.

May not know: the AST, text, messages or where a value comes from.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, cast

from penstock.core.filters.syntax_tree import INTEGER_MIN
from penstock.model import INTEGER_MAX

PLAIN_KINDS: Final = frozenset((type(None), bool, int, str))


def plain(value: Any) -> Any:
    """A header as the evaluator wants it: NaN is NULL, and a subclass (an enum, say) is its base type."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def as_double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # only a message that nobody checked has such a header
        return math.inf if value > 0 else -math.inf


_ORDERED_KINDS: Final = frozenset((str, int, float))
_EQUALITIES: Final = frozenset((operator.eq, operator.ne))


def compared(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool | None:
    left_kind, right_kind = type(left), type(right)
    if left_kind is right_kind:
        if left_kind in _ORDERED_KINDS or (left_kind is bool and compare in _EQUALITIES):
            return compare(left, right)
        return None
    if left_kind is int and right_kind is float:
        return compare(as_double(left), right)
    if left_kind is float and right_kind is int:
        return compare(left, as_double(right))
    return None


def calculated(calculate: Callable[[Any, Any], Any], left: Any, right: Any) -> int | float | None:
    left_kind, right_kind = type(left), type(right)
    if left_kind is int and right_kind is int:
        whole: int = calculate(left, right)
        return whole if INTEGER_MIN <= whole <= INTEGER_MAX else None
    left_double, right_double = _number_as_double(left), _number_as_double(right)
    if left_double is None or right_double is None:
        return None
    number: float = calculate(left_double, right_double)
    return None if math.isnan(number) else number


def divided(left: Any, right: Any) -> float | None:
    """Always of doubles, as in Spark; by zero it is NULL."""
    dividend, divisor = _number_as_double(left), _number_as_double(right)
    if dividend is None or not divisor:
        return None
    number = dividend / divisor
    return None if math.isnan(number) else number


def _number_as_double(value: Any) -> float | None:
    kind = type(value)
    if kind is float:
        return cast("float", value)
    return as_double(value) if kind is int else None
