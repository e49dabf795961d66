"""What can be told of an AST by reading it: its canonical text, and the names of the columns it depends on.

May not know: how text is parsed, or how any back end evaluates a node.
"""

from __future__ import annotations

from typing import assert_never

from penstock.core.filters.syntax_tree import (
    And,
    Arithmetic,
    Between,
    Boolean,
    Compare,
    Condition,
    Float,
    Header,
    In,
    Integer,
    IsNull,
    Like,
    Not,
    Or,
    Property,
    Signed,
    Text,
    Truth,
    Value,
)


def to_text(node: Condition | Value) -> str:
    """The canonical text of an AST: parsed, it gives the same AST again."""
    match node:
        case Truth(value):
            return to_text(value)
        case Compare(name, left, right) | Arithmetic(name, left, right):
            return f"{_inner(left)} {name} {_inner(right)}"
        case Between(value, low, high, negated):
            return f"{_inner(value)}{_not(negated)} BETWEEN {_inner(low)} AND {_inner(high)}"
        case In(value, items, negated):
            return f"{_inner(value)}{_not(negated)} IN ({', '.join(map(to_text, items))})"
        case Like(value, pattern, escape, negated):
            escaped = "" if escape is None else f" ESCAPE {_quote(escape)}"
            return f"{_inner(value)}{_not(negated)} LIKE {_quote(pattern)}{escaped}"
        case IsNull(value, negated):
            return f"{_inner(value)} IS{_not(negated)} NULL"
        case Not(operand):
            return f"NOT {_inner(operand)}"
        case And(parts):
            return " AND ".join(map(_inner, parts))
        case Or(parts):
            return " OR ".join(map(_inner, parts))
    return _value_text(node)


def _value_text(node: Value) -> str:
    match node:
        case Text(value):
            return _quote(value)
        case Integer(value):
            return str(value)
        case Float(value):
            return repr(value)
        case Boolean(value):
            return "TRUE" if value else "FALSE"
        case Header(name):
            return '"' + name.replace('"', '""') + '"'
        case Property(name):
            return f"${name}"
        case Signed(sign, operand):
            # Always apart, or the sign would become part of a number that follows.
            return f"{sign}({to_text(operand)})"
        case Arithmetic():
            return to_text(node)
    assert_never(node)


def _inner(node: Condition | Value) -> str:
    text = to_text(node)
    simple = isinstance(node, Truth | Text | Integer | Float | Boolean | Header | Property)
    return text if simple and not (isinstance(node, Truth) and _compound(node.value)) else f"({text})"


def _compound(value: Value) -> bool:
    return isinstance(value, Signed | Arithmetic)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _not(negated: bool) -> str:
    return " NOT" if negated else ""


def names_of(node: Condition | Value) -> frozenset[str]:
    """The columns an AST reads: property names, and `headers` for any header."""
    match node:
        case Header():
            return frozenset(("headers",))
        case Property(name):
            return frozenset((name,))
        case And(parts) | Or(parts):
            return frozenset().union(*map(names_of, parts))
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return names_of(left) | names_of(right)
        case Between(value, low, high):
            return names_of(value) | names_of(low) | names_of(high)
        case Not(operand) | Signed(_, operand):
            return names_of(operand)
        case Truth(value) | In(value) | Like(value) | IsNull(value):
            return names_of(value)
    return frozenset()
