"""Exchanges: one index for each kind, from bindings to the targets of a message.

A dict for direct, a trie for topic and MQTT patterns, a set for fanout, predicates for headers and filter.

May not know: other exchanges, where a target leads, queues, payloads, stores, permissions, clocks. `router.py` walks
from exchange to exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from penstock.batch import Meta
from penstock.core.filters import Filter, parse
from penstock.core.routing.tries import (
    Target,
    Trie,
    check_mqtt_pattern,
    check_pattern,
    check_topic_pattern,
    discard,
    mqtt_levels,
    mqtt_targets,
    topic_targets,
    topic_words,
)
from penstock.model import Binding, ExchangeConfig, Message
from penstock.model.work import MESSAGE_WORK, Budget

NO_HEADERS: Final[Mapping[str, Any]] = {}


class Exchange:
    """An exchange's options, its bindings by identity, and the index of its kind over them."""

    __slots__ = ("bindings", "config", "index")

    def __init__(self, config: ExchangeConfig) -> None:
        self.config = config
        self.bindings: dict[Identity, Binding] = {}
        self.index: _Index = INDEXES[config.kind]()


Identity = tuple[Any, ...]


def identity_of(binding: Binding) -> Identity:
    """What makes two bindings one: all fields, the type of each header value included."""
    headers = None if binding.headers is None else _frozen(binding.headers)
    return binding.exchange, binding.target_kind, binding.target, binding.pattern, headers, binding.match


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return "dict", tuple((key, _frozen(value[key])) for key in sorted(value))
    if isinstance(value, list):
        return "list", tuple(map(_frozen, value))
    # By text, because NaN is not equal to itself.
    return type(value).__name__, repr(value) if isinstance(value, float) else value


# The message while it is routed --------------------------------------------------------------------------


class Subject(Protocol):
    """What an index may ask of a message."""

    @property
    def key(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, Any]: ...
    def satisfies(self, condition: Filter) -> bool: ...


class OneMessage:
    """A message by itself."""

    __slots__ = ("_message", "headers", "key")

    def __init__(self, message: Message) -> None:
        self._message = message
        self.key = message.key or ""
        self.headers: Mapping[str, Any] = message.headers or NO_HEADERS

    def satisfies(self, condition: Filter) -> bool:
        return condition.matches(self._message)


class BatchMessage:
    """A cursor over a batch's columns: one object for all its messages."""

    __slots__ = ("_columns", "_index", "headers", "key")

    def __init__(self, columns: Meta) -> None:
        self._columns = columns
        self._index = 0
        self.key = ""
        self.headers: Mapping[str, Any] = NO_HEADERS

    def move_to(self, index: int) -> None:
        columns = self._columns
        self._index = index
        self.key = (columns.key[index] if columns.key else None) or ""
        self.headers = (columns.headers[index] if columns.headers else None) or NO_HEADERS

    def satisfies(self, condition: Filter) -> bool:
        return condition.matches_at(self._columns, self._index)


# Indexes: one a kind of exchange -------------------------------------------------------------------------


class _Index(Protocol):
    by_key_alone: bool
    """Whether the answer depends on nothing but the key, so that it may be kept."""

    def add(self, binding: Binding, target: Target) -> None:
        """Add a binding, or raise InvalidArgument and change nothing."""

    def remove(self, binding: Binding, target: Target) -> None:
        """Remove a binding that was added."""

    def match(self, subject: Subject, budget: Budget) -> Iterable[Iterable[Target]]:
        """The targets of the bindings that match, some or none at a time; one may come twice.

        What it costs is counted before each of them, so that the caller may stop there for a while: bindings that come
        or go meanwhile may count or not.
        """


class _ByPattern:
    """Targets by the patterns of their bindings."""

    def __init__(self) -> None:
        self._targets: dict[str, Counter[Target]] = {}

    def add(self, binding: Binding, target: Target) -> None:
        self._targets.setdefault(binding.pattern, Counter())[target] += 1

    def remove(self, binding: Binding, target: Target) -> None:
        targets = self._targets[binding.pattern]
        discard(targets, target)
        if not targets:
            del self._targets[binding.pattern]


class _DirectIndex(_ByPattern):
    """The pattern is the key."""

    by_key_alone = True

    def add(self, binding: Binding, target: Target) -> None:
        check_pattern(binding.pattern, "a direct binding's key")
        super().add(binding, target)

    def match(self, subject: Subject, budget: Budget) -> Iterable[Iterable[Target]]:
        budget.left -= MESSAGE_WORK
        return (tuple(self._targets.get(subject.key, ())),)


class _FanoutIndex(_ByPattern):
    """Every message matches every binding; patterns are kept and ignored."""

    by_key_alone = True

    def add(self, binding: Binding, target: Target) -> None:
        check_pattern(binding.pattern, "a fanout binding's key")
        super().add(binding, target)

    def match(self, subject: Subject, budget: Budget) -> Iterable[Iterable[Target]]:  # noqa: ARG002 - as all indexes
        budget.left -= MESSAGE_WORK * len(self._targets)
        return ([target for targets in self._targets.values() for target in targets],)


class _TrieIndex:
    """Patterns of words with wildcards: what is well formed, what its words are, and what matches differs by kind."""

    by_key_alone = True

    def __init__(
        self,
        check: Callable[[str], None],
        words: Callable[[str], list[str]],
        targets: Callable[[Trie, str, Budget], Iterable[Iterable[Target]]],
    ) -> None:
        self.trie = Trie()
        self._check = check
        self._words = words
        self._matching = targets

    def add(self, binding: Binding, target: Target) -> None:
        self._check(binding.pattern)
        self.trie.add(self._words(binding.pattern), target)

    def remove(self, binding: Binding, target: Target) -> None:
        self.trie.remove(self._words(binding.pattern), target)

    def match(self, subject: Subject, budget: Budget) -> Iterable[Iterable[Target]]:
        return self._matching(self.trie, subject.key, budget)


class _HeadersIndex:
    """Each binding asks for all or any of its headers; names that begin with `x-` are ignored."""

    by_key_alone = False

    def __init__(self) -> None:
        self._asked: dict[Identity, tuple[dict[str, Any], bool, Target]] = {}

    def add(self, binding: Binding, target: Target) -> None:
        check_pattern(binding.pattern, "a headers binding's key")
        wanted = {name: value for name, value in (binding.headers or {}).items() if not name.startswith("x-")}
        self._asked[identity_of(binding)] = wanted, binding.match == "all", target

    def remove(self, binding: Binding, target: Target) -> None:  # noqa: ARG002 - an index is given both
        del self._asked[identity_of(binding)]

    def match(self, subject: Subject, budget: Budget) -> Iterator[Iterable[Target]]:
        headers = subject.headers
        for wanted, all_of, target in tuple(self._asked.values()):
            is_spent = budget.spend(MESSAGE_WORK * (len(wanted) or 1))
            if _headers_match(headers, wanted, all_of):
                yield (target,)
            elif is_spent:
                yield ()


def _headers_match(headers: Mapping[str, Any], wanted: dict[str, Any], all_of: bool) -> bool:
    """All: false at the first that is missing; any: true at the first that is there."""
    for name, value in wanted.items():
        matched = name in headers and (value is None or same_header(headers[name], value))
        if matched is not all_of:
            return matched
    return all_of


def same_header(left: Any, right: Any) -> bool:
    """Whether two header values are equal: 1 and 1.0 are, 1 and TRUE are not; lists and dicts item by item."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_header, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_header(value, right[name]) for name, value in left.items())
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)


class _FilterIndex(_ByPattern):
    """The pattern is a condition; equal texts are evaluated once."""

    by_key_alone = False

    def __init__(self) -> None:
        super().__init__()
        self._conditions: dict[str, Filter] = {}

    def add(self, binding: Binding, target: Target) -> None:
        self._conditions[binding.pattern] = parse(binding.pattern)
        super().add(binding, target)

    def remove(self, binding: Binding, target: Target) -> None:
        super().remove(binding, target)
        if binding.pattern not in self._targets:
            del self._conditions[binding.pattern]

    def match(self, subject: Subject, budget: Budget) -> Iterator[Iterable[Target]]:
        headers = subject.headers
        for pattern, condition in tuple(self._conditions.items()):
            is_spent = budget.spend(condition.work(headers))
            if subject.satisfies(condition):
                yield tuple(self._targets.get(pattern, ()))
            elif is_spent:
                yield ()


INDEXES: Final[dict[str, Callable[[], _Index]]] = {
    "direct": _DirectIndex,
    "topic": lambda: _TrieIndex(check_topic_pattern, topic_words, topic_targets),
    "fanout": _FanoutIndex,
    "headers": _HeadersIndex,
    "filter": _FilterIndex,
    "mqtt": lambda: _TrieIndex(check_mqtt_pattern, mqtt_levels, mqtt_targets),
}
