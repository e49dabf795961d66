"""The canonical text of a filter's tree: parsed, it gives the same tree again. For the tests of every back end."""

from __future__ import annotations

from typing import assert_never

from penstock.core.filters import syntax_tree as tree


def to_text(node: tree.Condition | tree.Value) -> str:
    """The canonical text of an AST: parsed, it gives the same AST again."""
    match node:
        case tree.Truth(value):
            return to_text(value)
        case tree.Compare(name, left, right) | tree.Arithmetic(name, left, right):
            return f"{_inner(left)} {name} {_inner(right)}"
        case tree.Between(value, low, high, negated):
            return f"{_inner(value)}{_not(negated)} BETWEEN {_inner(low)} AND {_inner(high)}"
        case tree.In(value, items, negated):
            return f"{_inner(value)}{_not(negated)} IN ({', '.join(map(to_text, items))})"
        case tree.Like(value, pattern, escape, negated):
            escaped = "" if escape is None else f" ESCAPE {_quote(escape)}"
            return f"{_inner(value)}{_not(negated)} LIKE {_quote(pattern)}{escaped}"
        case tree.IsNull(value, negated):
            return f"{_inner(value)} IS{_not(negated)} NULL"
        case tree.Not(operand):
            return f"NOT {_inner(operand)}"
        case tree.And(parts):
            return " AND ".join(map(_inner, parts))
        case tree.Or(parts):
            return " OR ".join(map(_inner, parts))
    return _value_text(node)


def _value_text(node: tree.Value) -> str:
    match node:
        case tree.Text(value):
            return _quote(value)
        case tree.Integer(value):
            return str(value)
        case tree.Float(value):
            return repr(value)
        case tree.Boolean(value):
            return "TRUE" if value else "FALSE"
        case tree.Header(name):
            return '"' + name.replace('"', '""') + '"'
        case tree.Property(name):
            return f"${name}"
        case tree.Signed(sign, operand):
            # Always apart, or the sign would become part of a number that follows.
            return f"{sign}({to_text(operand)})"
        case tree.Arithmetic():
            return to_text(node)
    assert_never(node)


def _inner(node: tree.Condition | tree.Value) -> str:
    text = to_text(node)
    simple = isinstance(
        node, tree.Truth | tree.Text | tree.Integer | tree.Float | tree.Boolean | tree.Header | tree.Property
    )
    return text if simple and not (isinstance(node, tree.Truth) and _compound(node.value)) else f"({text})"


def _compound(value: tree.Value) -> bool:
    return isinstance(value, tree.Signed | tree.Arithmetic)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _not(negated: bool) -> str:
    return " NOT" if negated else ""
