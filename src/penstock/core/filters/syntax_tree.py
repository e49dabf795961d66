"""The tree of a filter: conditions over values, as plain data. Every back end compiles these nodes.

What each node means on every input is in `docs/filters.md`. A tree is built by `reader.py` and read by `closures.py`
and the Spark back end.

May not know: text, parsers, messages, or how any back end evaluates a node.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from penstock.model import INTEGER_MAX

INTEGER_MIN: Final = -INTEGER_MAX - 1
DEPTH_MAX: Final = 64
"""Operators inside each other, and parentheses inside each other. AND and OR count once however long they are."""
IN_ITEMS_MAX: Final = 1_000

CompareOperator = Literal["=", "<>", "<", "<=", ">", ">="]
ArithmeticOperator = Literal["+", "-", "*", "/"]
PropertyName = Literal["partition", "key", "priority", "content_type", "correlation_id", "trace_id", "dedup_id"]
PROPERTY_NAMES: Final[tuple[PropertyName, ...]] = get_args(PropertyName)


class Text(msgspec.Struct, frozen=True, tag=True):
    """A string literal."""

    value: str


class Integer(msgspec.Struct, frozen=True, tag=True):
    """A whole number literal of 64 bits, sign included."""

    value: int


class Float(msgspec.Struct, frozen=True, tag=True):
    """A finite double literal."""

    value: float


class Boolean(msgspec.Struct, frozen=True, tag=True):
    """TRUE or FALSE."""

    value: bool


class Header(msgspec.Struct, frozen=True, tag=True):
    """The message's header of exactly this name; NULL where there is none."""

    name: str


class Property(msgspec.Struct, frozen=True, tag=True):
    """A field of the message itself, written `$name`. No header can stand in for it."""

    name: PropertyName


class Signed(msgspec.Struct, frozen=True, tag=True):
    """A unary plus or minus. In front of a number it is part of the literal instead."""

    sign: Literal["+", "-"]
    operand: Value


class Arithmetic(msgspec.Struct, frozen=True, tag=True):
    """A sum, difference, product or quotient of two numbers."""

    operator: ArithmeticOperator
    left: Value
    right: Value


class Truth(msgspec.Struct, frozen=True, tag=True):
    """A bare value where a condition stands: TRUE, FALSE or a header that is a boolean."""

    value: Value


class Compare(msgspec.Struct, frozen=True, tag=True):
    """`left operator right`; `!=` is read as `<>`."""

    operator: CompareOperator
    left: Value
    right: Value


class Between(msgspec.Struct, frozen=True, tag=True):
    """`value >= low AND value <= high`, or NOT of that."""

    value: Value
    low: Value
    high: Value
    negated: bool = False


class In(msgspec.Struct, frozen=True, tag=True):
    """`value = item OR value = …` over literals of one kind, or NOT of that."""

    value: Value
    items: tuple[LiteralValue, ...]
    negated: bool = False


class Like(msgspec.Struct, frozen=True, tag=True):
    """A match of the whole string: `%` any characters, `_` one. There is no escape unless it is named."""

    value: Value
    pattern: str
    escape: str | None = None
    negated: bool = False


class IsNull(msgspec.Struct, frozen=True, tag=True):
    """Never unknown: whether a value is NULL, or is not."""

    value: Value
    negated: bool = False


class Not(msgspec.Struct, frozen=True, tag=True):
    """True for false, false for true, unknown for unknown."""

    operand: Condition


class And(msgspec.Struct, frozen=True, tag=True):
    """False if any part is, else unknown if any part is, else true."""

    parts: tuple[Condition, ...]


class Or(msgspec.Struct, frozen=True, tag=True):
    """True if any part is, else unknown if any part is, else false."""

    parts: tuple[Condition, ...]


LiteralValue = Text | Integer | Float | Boolean
Value = LiteralValue | Header | Property | Signed | Arithmetic
Condition = Truth | Compare | Between | In | Like | IsNull | Not | And | Or
