"""From the AST to Python closures: the back end that answers for one message, or for a place in a batch's columns.

May not know: text, lark, queues, lanes, clocks, I/O. No Python source is ever built: closures call closures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

from penstock.core.filters import syntax_tree as tree
from penstock.core.filters.like import like_matcher
from penstock.core.filters.values import PLAIN_KINDS, as_double, calculated, compared, divided, plain

# What a closure gets: the headers (never None), the message or the columns, and the index into the columns.
Evaluate = Callable[[Mapping[str, Any], Any, int], Any]

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final[dict[str, tree.CompareOperator]] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compile_for_message(ast: tree.Condition) -> Evaluate:
    """True of a message that matches; false or unknown of any other. The index is not looked at."""
    return _Compiler(_message_property).root(ast)


def compile_for_columns(ast: tree.Condition) -> Evaluate:
    """The same of the columns of a batch, at an index."""
    return _Compiler(_column_property).root(ast)


def _message_property(name: tree.PropertyName) -> Evaluate:
    read = operator.attrgetter(name)

    def load(_headers: Mapping[str, Any], source: Any, _index: int) -> Any:
        value = read(source)
        return value if type(value) in PLAIN_KINDS else plain(value)

    return load


def _column_property(name: tree.PropertyName) -> Evaluate:
    read = operator.attrgetter(name)
    absent = 0 if name == "priority" else None

    def load(_headers: Mapping[str, Any], source: Any, index: int) -> Any:
        column = read(source)
        return absent if column is None else column[index]

    return load


class _Compiler:
    """Builds closures of closures. The one thing that differs by source is how a property is read."""

    def __init__(self, load_property: Callable[[tree.PropertyName], Evaluate]) -> None:
        self._load_property = load_property

    def root(self, node: tree.Condition) -> Evaluate:
        """For a caller to whom false and unknown are one: AND and OR can stop earlier and keep no third value."""
        match node:
            case tree.And(parts):
                return _all_true(tuple(map(self.root, parts)))
            case tree.Or(parts):
                return _any_true(tuple(map(self.root, parts)))
        return self.condition(node)

    def condition(self, node: tree.Condition) -> Evaluate:
        match node:
            case tree.Truth(value):
                return _truth(self.value(value))
            case tree.Compare():
                return self._compare(node)
            case tree.Between(value, low, high, negated):
                return _between(self.value(value), self.value(low), self.value(high), negated)
            case tree.In(value, items, negated):
                return _membership(self.value(value), items, negated)
            case tree.Like(value, pattern, escape, negated):
                return _like(self.value(value), like_matcher(pattern, escape), negated)
            case tree.IsNull(value, negated):
                return _is_null(self.value(value), negated)
            case tree.Not(operand):
                return _inverted(self.condition(operand))
            case tree.And(parts):
                return _connected(tuple(map(self.condition, parts)), decisive=False)
            case tree.Or(parts):
                return _connected(tuple(map(self.condition, parts)), decisive=True)
        assert_never(node)

    def value(self, node: tree.Value) -> Evaluate:
        match node:
            case tree.Text(constant) | tree.Integer(constant) | tree.Float(constant) | tree.Boolean(constant):
                return _constant(constant)
            case tree.Header(name):
                return _header(name)
            case tree.Property(name):
                return self._load_property(name)
            case tree.Signed(sign, operand):
                # As 0 + x and 0 - x: the sign of a zero may differ, which no comparison or division can see.
                return _arithmetic(sign, _constant(0), self.value(operand))
            case tree.Arithmetic(name, left, right):
                return _arithmetic(name, self.value(left), self.value(right))
        assert_never(node)

    def _compare(self, node: tree.Compare) -> Evaluate:
        left, right, name = node.left, node.right, node.operator
        if isinstance(left, tree.LiteralValue) and isinstance(right, tree.Header):
            left, right, name = right, left, _MIRRORED[name]
        if isinstance(left, tree.Header) and isinstance(right, tree.Text | tree.Integer):
            return _header_with_constant(left.name, _COMPARISONS[name], right.value)
        return _comparison(_COMPARISONS[name], self.value(left), self.value(right))


def _all_true(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool:
        for part in parts:  # noqa: SIM110 - all() would build a generator for every message
            if part(headers, source, index) is not True:
                return False
        return True

    return evaluate


def _any_true(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool:
        for part in parts:  # noqa: SIM110 - as above
            if part(headers, source, index) is True:
                return True
        return False

    return evaluate


def _connected(parts: tuple[Evaluate, ...], *, decisive: bool) -> Evaluate:
    """AND is decided by the first false, OR by the first true; otherwise one unknown makes the whole unknown."""

    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        result: bool | None = not decisive
        for part in parts:
            truth: bool | None = part(headers, source, index)
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return evaluate


def _inverted(operand: Evaluate) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        truth: bool | None = operand(headers, source, index)
        return None if truth is None else not truth

    return evaluate


def _header(name: str) -> Evaluate:
    def load(headers: Mapping[str, Any], _source: Any, _index: int) -> Any:
        value = headers.get(name)
        return value if type(value) in PLAIN_KINDS else plain(value)

    return load


def _constant(value: str | int | float) -> Evaluate:
    return lambda _headers, _source, _index: value


def _truth(load: Evaluate) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        value: object = load(headers, source, index)
        return value if isinstance(value, bool) else None

    return evaluate


def _comparison(compare: Callable[[Any, Any], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        return compared(compare, left(headers, source, index), right(headers, source, index))

    return evaluate


def _header_with_constant(name: str, compare: Callable[[Any, Any], bool], constant: str | int) -> Evaluate:
    """The most frequent comparison of all, in one call."""
    kind = type(constant)

    def evaluate(headers: Mapping[str, Any], _source: Any, _index: int) -> bool | None:
        value = headers.get(name)
        if type(value) is kind:
            return compare(value, constant)
        return None if value is None else compared(compare, plain(value), constant)

    return evaluate


def _between(value: Evaluate, low: Evaluate, high: Evaluate, negated: bool) -> Evaluate:
    parts = (_comparison(operator.ge, value, low), _comparison(operator.le, value, high))
    between = _connected(parts, decisive=False)
    return _inverted(between) if negated else between


def _membership(load: Evaluate, items: tuple[tree.LiteralValue, ...], negated: bool) -> Evaluate:
    if isinstance(items[0], tree.Integer | tree.Float):
        return _number_membership(load, items, negated)
    kind = type(items[0].value)
    members = frozenset(item.value for item in items)

    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        value = load(headers, source, index)
        return (value in members) is not negated if type(value) is kind else None

    return evaluate


def _number_membership(load: Evaluate, items: tuple[tree.LiteralValue, ...], negated: bool) -> Evaluate:
    """Integers among themselves compare exactly; as soon as one side is a float, both are doubles."""
    integers = frozenset(item.value for item in items if isinstance(item, tree.Integer))
    floats = frozenset(item.value for item in items if isinstance(item, tree.Float))
    doubles = floats | {float(value) for value in integers}

    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        value = load(headers, source, index)
        if type(value) is int:
            return (value in integers or (bool(floats) and as_double(value) in floats)) is not negated
        return (value in doubles) is not negated if type(value) is float else None

    return evaluate


def _like(load: Evaluate, match: Callable[[str], bool], negated: bool) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool | None:
        value = load(headers, source, index)
        return match(value) is not negated if type(value) is str else None

    return evaluate


def _is_null(load: Evaluate, negated: bool) -> Evaluate:
    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> bool:
        return (load(headers, source, index) is None) is not negated

    return evaluate


def _arithmetic(name: tree.ArithmeticOperator, left: Evaluate, right: Evaluate) -> Evaluate:
    if name == "/":
        return lambda headers, source, index: divided(left(headers, source, index), right(headers, source, index))
    calculate: Callable[[Any, Any], Any] = {"+": operator.add, "-": operator.sub, "*": operator.mul}[name]

    def evaluate(headers: Mapping[str, Any], source: Any, index: int) -> int | float | None:
        return calculated(calculate, left(headers, source, index), right(headers, source, index))

    return evaluate
