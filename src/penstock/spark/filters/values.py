"""Values of a filter as Spark columns: literals, headers, properties and arithmetic on them.

A value's kind is only known for each row. Here it is a bundle of columns, `Parts`, of which at most one is not NULL in
a row; an operation on kinds that do not fit then gives NULL by itself, which is what the language wants. Nothing here
may raise in a row: ANSI mode is Spark's default, so overflow and division take the forms that give NULL.

May not know: conditions, text, or where the rows come from. `columns.py` compares what is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, assert_never, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.core.filters import syntax_tree as tree

HEADERS: Final = "typed_headers"
"""The source's column that keeps what type each header has."""


class Parts(NamedTuple):
    """A value of unknown kind. A part is NULL in a row whose value is of another kind, and None if it always is."""

    is_null: Column
    """True or false, never NULL."""
    text: Column | None = None
    boolean: Column | None = None
    integer: Column | None = None
    number: Column | None = None
    """Of an integer or a float: the same as a double. NaN stands for NULL here: every calculation hands both on."""

    @property
    def known_number(self) -> Column | None:
        """The number where it is none of those two. It doubles the tree, so it is for where a value ends."""
        return None if self.number is None else F.when(~F.isnan(self.number), self.number)


class Values:
    """The values of one filter, each distinct one built once: every operation on a column is a call into the JVM."""

    def __init__(self) -> None:
        self.parts = cache(self._made)
        """A value written out."""

    def _made(self, node: tree.Value) -> Parts:
        match node:
            case tree.Text(constant):
                return Parts(F.lit(False), text=F.lit(constant))
            case tree.Boolean(constant):
                return Parts(F.lit(False), boolean=F.lit(constant))
            case tree.Integer(constant):
                return _integer(F.lit(constant))
            case tree.Float(constant):
                return Parts(F.lit(False), number=F.lit(constant))
            case tree.Header(name):
                return _header(name)
            case tree.Property("priority"):
                return _integer(F.coalesce(F.col("priority"), F.lit(0)))
            case tree.Property(name):
                column = F.col(name)
                return Parts(column.isNull(), text=column)
            case tree.Signed(sign, operand):
                return _arithmetic(sign, _integer(F.lit(0)), self.parts(operand))
            case tree.Arithmetic(operator, left, right):
                return _arithmetic(operator, self.parts(left), self.parts(right))
        assert_never(node)

    def on(self, values: Sequence[tree.Value], condition: Callable[..., Column]) -> Column:
        """A condition on the parts of values; the long calculations among them are done first and only once."""
        long = {index: value for index, value in enumerate(values) if _operators(value) > OPERATORS_IN_PLACE_MAX}
        if not long:
            return condition(*map(self.parts, values))
        names = {index: f"value_{index}" for index in long}

        def on_results(results: Column) -> Column:
            return condition(
                *(
                    _unpacked(results[names[index]]) if index in long else self.parts(value)
                    for index, value in enumerate(values)
                )
            )

        results = F.struct(*(self._result(value).alias(names[index]) for index, value in long.items()))
        return _bound(results, on_results)

    def _result(self, value: tree.Value) -> Column:
        operands, steps = _program(value)
        return _bound(
            F.array(*(_packed(self.parts(operand)) for operand in operands)), lambda bound: _run(bound, steps)
        )


def _integer(column: Column) -> Parts:
    """One that is never NULL."""
    whole = column.cast("bigint")
    return Parts(F.lit(False), integer=whole, number=whole.cast("double"))


def _header(name: str) -> Parts:
    header = header_of(name)
    kind = header["kind"]
    whole = F.when(kind == "integer", header["integer"])
    real = F.when(kind == "float", header["float"])
    is_nan = F.coalesce((kind == "float") & F.isnan(header["float"]), F.lit(False))
    return Parts(
        is_null=F.coalesce(kind, F.lit("null")).eqNullSafe("null") | is_nan,
        text=F.when(kind == "text", header["text"]),
        boolean=F.when(kind == "boolean", header["integer"] != 0),
        integer=whole,
        number=F.coalesce(real, whole.cast("double")),
    )


def header_of(name: str) -> Column:
    """A header's struct of kind, text, integer and float; NULL where there is none of that name."""
    return F.try_element_at(F.col(HEADERS), F.lit(name))


# Arithmetic ----------------------------------------------------------------------------------------------

OPERATORS_IN_PLACE_MAX: Final = 4
"""Operators of a calculation that is written out, which Spark compiles; a longer one would grow too large."""

CALCULATED: Final = {"+": F.try_add, "-": F.try_subtract, "*": F.try_multiply}
"""Division is of doubles alone."""


def _arithmetic(operator: tree.ArithmeticOperator, left: Parts, right: Parts) -> Parts:
    if left.number is None or right.number is None:
        return Parts(F.lit(True))
    if operator == "/":
        return _calculated_parts(F.try_divide(left.number, right.number))
    calculated = CALCULATED[operator]
    double = calculated(left.number, right.number)
    if left.integer is None or right.integer is None:
        return _calculated_parts(double)
    whole = calculated(left.integer, right.integer)
    # Two integers whose result leaves 64 bits are NULL, not the double that is near it.
    both = left.integer.isNotNull() & right.integer.isNotNull()
    return _calculated_parts(F.when(both, whole.cast("double")).otherwise(double), whole)


def _calculated_parts(number: Column, whole: Column | None = None) -> Parts:
    return Parts(number.isNull() | F.isnan(number), integer=whole, number=number)


# Long calculations: Spark reads a column as a tree, in which each operand would stand several times, and walks it by
# recursion. So they become a program for a small stack machine instead: as flat as it is long.

NUMBER: Final = "struct<integer: bigint, number: double>"
OPERATORS: Final[tuple[tree.ArithmeticOperator, ...]] = get_args(tree.ArithmeticOperator)


def _bound(column: Column, body: Callable[[Column], Column]) -> Column:
    """A body in which the column is calculated once: a lambda's argument is as near as Spark has to a name."""
    return F.transform(F.array(column), body)[0]


def _operators(value: tree.Value) -> int:
    match value:
        case tree.Signed(_, operand):
            return 1 + _operators(operand)
        case tree.Arithmetic(_, left, right):
            return 1 + _operators(left) + _operators(right)
    return 0


def _program(value: tree.Value) -> tuple[list[tree.Value], list[int]]:
    """A calculation as operands and steps, operands before their operator.

    A step is the place of an operand, to put on the stack; or -1 and below, the operators by their place.
    """
    places: dict[tree.Value, int] = {}

    def steps(value: tree.Value) -> Iterator[int]:
        match value:
            case tree.Signed(operator, operand):
                yield from steps(tree.Integer(0))
                yield from steps(operand)
                yield -1 - OPERATORS.index(operator)
            case tree.Arithmetic(operator, left, right):
                yield from steps(left)
                yield from steps(right)
                yield -1 - OPERATORS.index(operator)
            case _:
                yield places.setdefault(value, len(places))

    listed = list(steps(value))
    return list(places), listed


def _run(operands: Column, steps: list[int]) -> Column:
    """The result of a program, as one column."""

    def done(stack: Column, step: Column) -> Column:
        depth = F.size(stack)
        left, right = _unpacked(F.try_element_at(stack, depth - 1)), _unpacked(F.try_element_at(stack, depth))
        result = F.lit(None).cast(NUMBER)
        for place, operator in enumerate(OPERATORS):
            result = F.when(step == -1 - place, _packed(_arithmetic(operator, left, right))).otherwise(result)
        return F.when(step >= 0, F.concat(stack, F.array(F.get(operands, step)))).otherwise(
            F.concat(F.slice(stack, F.lit(1), depth - 2), F.array(result))
        )

    return F.aggregate(F.lit(steps), F.array().cast(f"array<{NUMBER}>"), done)[0]


def _packed(parts: Parts) -> Column:
    """A number as one column; what is no number has neither part."""
    integer = F.lit(None) if parts.integer is None else parts.integer
    number = F.lit(None) if parts.number is None else parts.number
    return F.struct(integer.cast("bigint").alias("integer"), number.cast("double").alias("number"))


def _unpacked(packed: Column) -> Parts:
    return _calculated_parts(packed["number"], packed["integer"])
