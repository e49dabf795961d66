"""A parsed filter and the way to one: text in, answers about messages and batches out.

May not know: lark, the grammar, or how a node is evaluated; `reader.py` and `closures.py` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from penstock.batch import Meta
from penstock.core.filters import syntax_tree as tree
from penstock.core.filters.closures import compile_for_columns, compile_for_message
from penstock.model import Message
from penstock.model.errors import InvalidFilter

TEXT_CHARACTERS_MAX: Final = 4_096
FILTERS_CACHED_MAX: Final = 1_024
PREDICATE_WORK: Final = 10
"""What a comparison or the like costs (`model/work.py`), beside the characters that a LIKE goes through."""
_NO_HEADERS: Final[Mapping[str, Any]] = {}


class Filter:
    """A parsed condition. Immutable; equal to another of the same meaning as written, that is of an equal AST."""

    __slots__ = ("_likes", "_on_columns", "_on_message", "_steps", "ast", "names", "text")

    def __init__(self, text: str, ast: tree.Condition) -> None:
        self.text: Final = text
        self.ast: Final = ast
        self.names: Final = _names_of(ast)
        """The columns the answer depends on: property names, and `headers`."""
        self._likes, self._steps = _likes_in(ast), PREDICATE_WORK * _predicates_in(ast)
        self._on_message = compile_for_message(ast)
        self._on_columns = compile_for_columns(ast)

    def matches(self, message: Message) -> bool:
        """Whether the condition is true of a message; unknown is no match."""
        return self._on_message(message.headers or _NO_HEADERS, message, 0) is True

    def work(self, headers: Mapping[str, Any] | None) -> int:
        """About what a message of these headers costs."""
        work = self._steps
        if headers:
            for name in self._likes:
                value = headers.get(name)
                if isinstance(value, str):
                    work += len(value)
        return work

    def work_at(self, columns: Meta, index: int) -> int:
        """The same, of message `index` of a batch."""
        return self._steps if columns.headers is None or not self._likes else self.work(columns.headers[index])

    def reach(self, columns: Meta, start: int, stop: int, work: int) -> int:
        """Up to where messages of a batch may be tried for so much work, one at least."""
        if columns.headers is None or not self._likes:
            return min(stop, start + max(1, work // self._steps))
        while start < stop and work > 0:
            work -= self.work(columns.headers[start])
            start += 1
        return start

    def matches_with(self, headers: Mapping[str, Any] | None, message: Message) -> bool:
        """The same, of headers that are kept apart from the other fields."""
        return self._on_message(headers or _NO_HEADERS, message, 0) is True

    def matches_at(self, columns: Meta, index: int) -> bool:
        """The same, of message `index` of a batch, without building the message."""
        column = columns.headers
        headers = _NO_HEADERS if column is None else column[index] or _NO_HEADERS
        return self._on_columns(headers, columns, index) is True

    def select(self, columns: Meta, indexes: Iterable[int]) -> list[int]:
        """Those of `indexes` whose message matches: the fast way through a batch."""
        evaluate = self._on_columns
        column = columns.headers
        if column is None or "headers" not in self.names:
            if all(getattr(columns, name) is None for name in self.names):
                # No message has anything the condition asks about: one answer holds for all.
                return list(indexes) if evaluate(_NO_HEADERS, columns, 0) is True else []
            return [index for index in indexes if evaluate(_NO_HEADERS, columns, index) is True]
        return [index for index in indexes if evaluate(column[index] or _NO_HEADERS, columns, index) is True]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.ast == other.ast

    def __hash__(self) -> int:
        return hash(self.ast)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def __reduce__(self) -> tuple[Callable[[str], Filter], tuple[str]]:
        return parse, (self.text,)


def parse(text: str) -> Filter:
    """The filter of a text, or InvalidFilter that shows the text, the column and what was expected there."""
    if not isinstance(text, str):
        raise InvalidFilter(f"a filter must be a string, not {text!r} of type {type(text).__name__}")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidFilter(
            f"the filter has {len(text)} characters; the limit is {TEXT_CHARACTERS_MAX}", TEXT_CHARACTERS_MAX + 1
        )
    return _parse(text)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _parse(text: str) -> Filter:
    from penstock.core.filters.reader import read  # lark takes 40 ms to import, and most programs have no filter

    return Filter(text, read(text))


def _likes_in(node: tree.Condition) -> list[str]:
    """The header that each LIKE looks into. Message fields are short."""
    match node:
        case tree.Like(tree.Header(name)):
            return [name]
        case tree.And(parts) | tree.Or(parts):
            return [name for part in parts for name in _likes_in(part)]
        case tree.Not(operand):
            return _likes_in(operand)
    return []


def _predicates_in(node: tree.Condition) -> int:
    """How many comparisons and the like a condition has."""
    match node:
        case tree.And(parts) | tree.Or(parts):
            return sum(map(_predicates_in, parts))
        case tree.Not(operand):
            return _predicates_in(operand)
    return 1


def _names_of(node: tree.Condition | tree.Value) -> frozenset[str]:
    """The columns an AST reads: property names, and `headers` for any header."""
    match node:
        case tree.Header():
            return frozenset(("headers",))
        case tree.Property(name):
            return frozenset((name,))
        case tree.And(parts) | tree.Or(parts):
            return frozenset().union(*map(_names_of, parts))
        case tree.Compare(_, left, right) | tree.Arithmetic(_, left, right):
            return _names_of(left) | _names_of(right)
        case tree.Between(value, low, high):
            return _names_of(value) | _names_of(low) | _names_of(high)
        case tree.Not(operand) | tree.Signed(_, operand):
            return _names_of(operand)
        case tree.Truth(value) | tree.In(value) | tree.Like(value) | tree.IsNull(value):
            return _names_of(value)
    return frozenset()
