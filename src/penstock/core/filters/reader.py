"""From lark's tree to the AST: conditions and values apart, literals in range, everything within its limits.

May not know: how the text was tokenized, messages, or what happens to the AST next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, cast

from lark import Token

from penstock.core.filters import syntax_tree as tree
from penstock.core.filters.grammar import Node, invalid, tree_of
from penstock.core.filters.like import like_parts
from penstock.core.filters.syntax_tree import DEPTH_MAX, IN_ITEMS_MAX
from penstock.model import INTEGER_MAX
from penstock.model.errors import InvalidFilter

_Result = TypeVar("_Result")
_CONDITIONS: Final = frozenset(
    {"disjunction", "conjunction", "inversion", "comparison", "between", "membership", "like", "is_null"}
)


def read(text: str) -> tree.Condition:
    """The AST of a text, or InvalidFilter that shows the text, the column and what was expected there."""
    return _Reader(text).condition(tree_of(text), 1)


class _Reader:
    """Turns a parse tree into the AST: conditions and values apart, literals in range, nesting within its limit."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._groups = 0

    def condition(self, node: Node, depth: int) -> tree.Condition:
        self._check_depth(node, depth)
        children: list[Any] = node.children
        match node.data:
            case "disjunction":
                return tree.Or(tuple(self.condition(child, depth + 1) for child in children))
            case "conjunction":
                return tree.And(tuple(self.condition(child, depth + 1) for child in children))
            case "inversion":
                return tree.Not(self.condition(children[1], depth + 1))
            case "group":
                return self._inside_group(node, depth, self.condition)
            case "header" | "quoted" | "property" | "boolean":
                # The literal or name inside is one level further down, as in any other condition.
                return tree.Truth(self.value(node, depth + 1))
            case data if data in _CONDITIONS:
                return self._predicate(node, depth + 1)
        raise self._error(node, "a condition was expected here, and this is a value; compare it with something")

    def _predicate(self, node: Node, depth: int) -> tree.Condition:
        children: list[Any] = node.children
        match node.data:
            case "comparison":
                left, sign, right = children
                name = cast("tree.CompareOperator", "<>" if sign == "!=" else str(sign))
                return tree.Compare(name, self.value(left, depth), self.value(right, depth))
            case "between":
                value, negated, low, high = children
                low_value, high_value = self.value(low, depth), self.value(high, depth)
                return tree.Between(self.value(value, depth), low_value, high_value, negated is not None)
            case "membership":
                value, negated, *items = children
                return tree.In(self.value(value, depth), self._items(items, depth), negated is not None)
            case "like":
                return self._like(children, depth)
        value, negated = children
        return tree.IsNull(self.value(value, depth), negated is not None)

    def value(self, node: Node, depth: int) -> tree.Value:
        self._check_depth(node, depth)
        children: list[Any] = node.children
        match node.data:
            case "text" | "integer" | "float" | "boolean":
                return self._literal(node)
            case "header":
                return tree.Header(str(children[0]))
            case "quoted":
                return self._quoted(children[0])
            case "property":
                return self._property(children[0])
            case "signed":
                return self._signed(node, depth)
            case "sum" | "product":
                return self._chain(node, depth)
            case "group":
                return self._inside_group(node, depth, self.value)
        raise self._error(node, "a value was expected here, and this is a condition")

    def _chain(self, node: Node, depth: int) -> tree.Value:
        """`a - b + c` as ((a - b) + c): each operator of the chain puts what is left of it one level deeper."""
        operands, operators = node.children[0::2], cast("list[Token]", node.children[1::2])
        deepest = depth + len(operators)
        if deepest > DEPTH_MAX:
            raise self._too_deep(node)
        result = self.value(cast("Node", operands[0]), deepest)
        for number, (sign, operand) in enumerate(zip(operators, operands[1:], strict=True)):
            right = self.value(cast("Node", operand), deepest - number)
            result = tree.Arithmetic(cast("tree.ArithmeticOperator", str(sign)), result, right)
        return result

    def _signed(self, node: Node, depth: int) -> tree.Value:
        sign, operand = cast("tuple[Token, Node]", node.children)
        if operand.data in ("integer", "float"):
            # The sign belongs to the literal, or the lowest 64-bit integer could not be written.
            return self._number(operand, "-" if sign == "-" else "")
        return tree.Signed(cast("Literal['+', '-']", str(sign)), self.value(operand, depth + 1))

    def _literal(self, node: Node) -> tree.LiteralValue:
        token = str(node.children[-1])
        if node.data == "text":
            return tree.Text(_unquote(token))
        if node.data == "boolean":
            return tree.Boolean(token.upper() == "TRUE")
        return self._number(node, "")

    def _number(self, node: Node, sign: str) -> tree.Integer | tree.Float:
        digits = sign + str(node.children[0])
        if node.data == "integer":
            whole = int(digits)
            if not tree.INTEGER_MIN <= whole <= INTEGER_MAX:
                raise self._error(node, f"the integer does not fit 64 bits ({tree.INTEGER_MIN} to {INTEGER_MAX})")
            return tree.Integer(whole)
        number = float(digits)
        if math.isinf(number):
            raise self._error(node, "the number is too large for a double")
        return tree.Float(number)

    def _items(self, nodes: list[Node], depth: int) -> tuple[tree.LiteralValue, ...]:
        if len(nodes) > IN_ITEMS_MAX:
            raise self._error(nodes[IN_ITEMS_MAX], f"the list has {len(nodes)} items; the limit is {IN_ITEMS_MAX}")
        items = tuple(cast("tree.LiteralValue", self.value(node, depth)) for node in nodes)
        kinds = [_kind_word(item) for item in items]
        for node, kind in zip(nodes, kinds, strict=True):
            if kind != kinds[0]:
                raise self._error(node, f"the list began with a {kinds[0]} and this is a {kind}; a list has one kind")
        return items

    def _like(self, children: list[Any], depth: int) -> tree.Like:
        value, negated, pattern, escape = children
        escape_text = None if escape is None else _unquote(escape)
        if escape_text is not None and len(escape_text) != 1:
            raise self._error(escape, f"ESCAPE takes one character, not {len(escape_text)}")
        try:
            like_parts(_unquote(pattern), escape_text)
        except ValueError as error:
            raise self._error(pattern, str(error)) from None
        return tree.Like(self.value(value, depth), _unquote(pattern), escape_text, negated is not None)

    def _quoted(self, token: Token) -> tree.Header:
        name = token[1:-1].replace('""', '"')
        if not name:
            raise self._error(token, "a quoted name may not be empty; a string takes single quotes")
        return tree.Header(name)

    def _property(self, token: Token) -> tree.Property:
        name = token[1:]
        if name not in tree.PROPERTY_NAMES:
            known = ", ".join(f"${known}" for known in tree.PROPERTY_NAMES)
            reason = f'unknown property {str(token)!r}; there are {known}. A header is written "{token}"'
            raise self._error(token, reason)
        return tree.Property(name)

    def _inside_group(self, node: Node, depth: int, read: Callable[[Node, int], _Result]) -> _Result:
        self._groups += 1
        if self._groups > DEPTH_MAX:
            raise self._too_deep(node)
        result = read(cast("Node", node.children[0]), depth)
        self._groups -= 1
        return result

    def _check_depth(self, node: Node, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._too_deep(node)

    def _too_deep(self, node: Node) -> InvalidFilter:
        return self._error(node, f"the filter is nested deeper than {DEPTH_MAX} levels")

    def _error(self, place: Node | Token, reason: str) -> InvalidFilter:
        position = place.start_pos if isinstance(place, Token) else place.meta.start_pos
        return invalid(self._text, position or 0, reason)


def _unquote(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _kind_word(item: tree.LiteralValue) -> str:
    if isinstance(item, tree.Text):
        return "string"
    return "boolean" if isinstance(item, tree.Boolean) else "number"
