"""From a filter's tree to a Spark column: the second back end, which answers as the Python closures do on every input.

`filter_column("region = 'eu' AND amount > 10")` reads the source's columns: `typed_headers` for headers, and
`partition`, `key`, `priority`, `content_type`, `correlation_id`, `trace_id`, `dedup_id` for properties. The answer is
true, false or NULL for unknown, so `df.where(…)` keeps exactly what a live filter lets through. `docs/filters.md` is
the law for both back ends, `tests/spark/filters/test_columns.py` holds them to it.

Values are made in `values.py`; here they are compared.

May not know: text, lark, queues, the server, or where the rows come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.core.filters import Filter, parse
from penstock.core.filters import syntax_tree as tree
from penstock.spark.filters.regex import like_regex
from penstock.spark.filters.values import Parts, Values

COMPARED: Final[dict[tree.CompareOperator, Callable[[Column, Column], Column]]] = {
    "=": Column.__eq__,
    "<>": Column.__ne__,
    "<": Column.__lt__,
    "<=": Column.__le__,
    ">": Column.__gt__,
    ">=": Column.__ge__,
}


def filter_column(expression: str | Filter) -> Column:
    """The condition as a column of true, false and NULL (unknown); raises `InvalidFilter` for a bad expression."""
    condition = parse(expression) if isinstance(expression, str) else expression
    return _Compiler().condition(condition.ast)


# Conditions ----------------------------------------------------------------------------------------------


class _Compiler:
    """One filter; each distinct condition in it is built once."""

    def __init__(self) -> None:
        self._values = Values()
        self.condition = cache(self._made)

    def _made(self, node: tree.Condition) -> Column:
        """Spark's AND, OR and NOT have the same truth tables."""
        on = self._values.on
        match node:
            case tree.Truth(value):
                boolean = self._values.parts(value).boolean
                return _unknown() if boolean is None else boolean
            case tree.Compare(operator, left, right):
                return on([left, right], lambda one, other: _comparison(operator, one, other))
            case tree.Between(value, low, high, negated):
                return _negated_if(negated, on([value, low, high], _between))
            case tree.In(value, items, negated):
                return _negated_if(negated, on([value], lambda parts: _membership(parts, items)))
            case tree.Like(value, pattern, escape, negated):
                return _negated_if(negated, _like(self._values.parts(value).text, pattern, escape))
            case tree.IsNull(value, negated):
                return _negated_if(negated, on([value], lambda parts: parts.is_null))
            case tree.Not(operand):
                return ~self.condition(operand)
            case tree.And(parts):
                return joined(Column.__and__, [self.condition(part) for part in parts])
            case tree.Or(parts):
                return joined(Column.__or__, [self.condition(part) for part in parts])
        assert_never(node)


def _negated_if(negated: bool, condition: Column) -> Column:
    return ~condition if negated else condition


def joined(connect: Callable[[Column, Column], Column], parts: list[Column]) -> Column:
    """Two halves, each joined so: Spark walks trees by recursion, and hundreds of parts in a row would be as deep."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return connect(joined(connect, parts[:middle]), joined(connect, parts[middle:]))


def _comparison(operator: tree.CompareOperator, left: Parts, right: Parts) -> Column:
    """Of the kinds that both sides can have, each NULL unless both have it in this row: the first that is not wins.

    Integers stand before doubles: two integers are also two doubles, and would lose their last bits.
    """
    pairs = [(left.text, right.text), (left.integer, right.integer), (left.known_number, right.known_number)]
    if operator in ("=", "<>"):
        pairs.append((left.boolean, right.boolean))
    found = [COMPARED[operator](one, other) for one, other in pairs if one is not None and other is not None]
    return F.coalesce(*found) if found else _unknown()


def _between(value: Parts, low: Parts, high: Parts) -> Column:
    return _comparison(">=", value, low) & _comparison("<=", value, high)


def _membership(value: Parts, items: tuple[tree.LiteralValue, ...]) -> Column:
    match items[0]:
        case tree.Text():
            return _is_in(value.text, [item.value for item in items])
        case tree.Boolean():
            return _is_in(value.boolean, [item.value for item in items])
    integers = [item.value for item in items if isinstance(item, tree.Integer)]
    floats = [item.value for item in items if isinstance(item, tree.Float)]
    # An integer equals the list's integers exactly and its floats as a double; a float equals all of them as doubles.
    number = value.known_number
    as_float = _is_in(number, _with_both_zeros([*floats, *map(float, integers)]))
    if value.integer is None:
        return as_float
    as_integer = _is_in(value.integer, integers) | _is_in(number, _with_both_zeros(floats))
    return F.when(value.integer.isNotNull(), as_integer).otherwise(as_float)


def _is_in(value: Column | None, items: Sequence[str | int | float]) -> Column:
    if value is None:
        return _unknown()
    return value.isin(list(items)) if items else F.when(value.isNotNull(), F.lit(False))


def _with_both_zeros(items: list[float]) -> list[float]:
    """Spark may look a double up by its bits."""
    return [*items, 0.0, -0.0] if 0.0 in items else items


def _like(text: Column | None, pattern: str, escape: str | None) -> Column:
    return _unknown() if text is None else F.rlike(text, F.lit(like_regex(pattern, escape)))


def _unknown() -> Column:
    return F.lit(None).cast("boolean")
