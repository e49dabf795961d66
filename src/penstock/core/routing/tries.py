"""Tries: topic and MQTT patterns word by word, what their wildcards match, and which patterns are well formed.

May not know: exchanges, bindings, messages. A key goes in, and the targets of the patterns that match come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.model import NAME_CHARACTERS_MAX
from penstock.model.errors import InvalidArgument
from penstock.model.work import MESSAGE_WORK, Budget

PATTERN_CHARACTERS_MAX: Final = NAME_CHARACTERS_MAX
"""Of a key or a topic pattern; a filter's text has its own limit."""


class Target(NamedTuple):
    """Where a binding leads: (`queue` or `exchange`, name)."""

    kind: str
    name: str


def discard(targets: Counter[Target], target: Target) -> None:
    """Take one off: two bindings that differ only in what a kind ignores have the same target."""
    targets[target] -= 1
    if not targets[target]:
        del targets[target]


class TrieNode:
    """One word of a pattern: what may follow it, and the targets of the patterns that end here."""

    __slots__ = ("children", "targets")

    def __init__(self) -> None:
        self.children: dict[str, TrieNode] = {}
        self.targets: Counter[Target] = Counter()


class Trie:
    """Patterns word by word. A wildcard is a word like any other here; the functions below give it its meaning."""

    def __init__(self) -> None:
        self.root = TrieNode()

    def add(self, words: list[str], target: Target) -> None:
        node = self.root
        for word in words:
            node = node.children.setdefault(word, TrieNode())
        node.targets[target] += 1

    def remove(self, words: list[str], target: Target) -> None:
        """Remove a target, and prune the nodes that lead nowhere: bindings come and go."""
        path = [self.root]
        for word in words:
            path.append(path[-1].children[word])
        discard(path[-1].targets, target)
        for parent, word, node in zip(reversed(path[:-1]), reversed(words), reversed(path), strict=False):
            if node.children or node.targets:
                break
            del parent.children[word]


# Topics: words between dots; `*` is one word, `#` any number of them, none included ---------------------


def topic_targets(trie: Trie, key: str, budget: Budget) -> Iterator[Iterable[Target]]:
    """The targets of the topic patterns that match a key, none where the budget is spent first; one may come twice."""
    # All places a pattern can be at after each word, as a set: trying them one after the other instead
    # would take time exponential in the number of `#`.
    places: set[TrieNode] = set()
    repeating: set[TrieNode] = set()
    _enter(trie.root, places, repeating)
    for word in topic_words(key):
        before, places = places, set(repeating)
        for node in before:
            if budget.spend(MESSAGE_WORK):
                yield ()
            for name in (word, "*"):
                child = node.children.get(name)
                if child is not None:
                    _enter(child, places, repeating)
    for node in places:
        budget.left -= MESSAGE_WORK
        yield tuple(node.targets)


def _enter(node: TrieNode, places: set[TrieNode], repeating: set[TrieNode]) -> None:
    """Be at a node, and at the `#` nodes that can follow it without a word. Once in a `#`, one can always stay."""
    places.add(node)
    following = node.children.get("#")
    while following is not None and following not in places:
        places.add(following)
        repeating.add(following)
        following = following.children.get("#")


def topic_words(text: str) -> list[str]:
    """The words of a key or a pattern; the empty text has none."""
    return text.split(".") if text else []


def check_topic_pattern(pattern: str) -> None:
    """Raise unless each word is `*`, `#` or has neither in it."""
    check_pattern(pattern, "a topic pattern")
    for word in topic_words(pattern):
        if word not in ("*", "#") and ("*" in word or "#" in word):
            raise InvalidArgument(
                f"topic pattern {pattern!r} has the word {word!r}; '*' and '#' stand for whole words between dots"
            )


# MQTT: levels between slashes; `+` is one level, a last `#` the level before it and all below -----------


def mqtt_targets(trie: Trie, key: str, budget: Budget) -> Iterator[Iterable[Target]]:
    """The targets of the MQTT patterns that match a key, node by node; one may come twice."""
    places = [trie.root]
    # The server's own topics are not for those who asked for everything.
    wildcards = not key.startswith("$")
    for level in mqtt_levels(key):
        following: list[TrieNode] = []
        for node in places:
            budget.left -= MESSAGE_WORK
            yield _targets_of(node.children.get("#")) if wildcards else ()
            names = (level, "+") if wildcards and level != "+" else (level,)
            following += [node.children[name] for name in names if name in node.children and name != "#"]
        places, wildcards = following, True
    for node in places:
        yield _targets_of(node)
        yield _targets_of(node.children.get("#"))


def _targets_of(node: TrieNode | None) -> Iterable[Target]:
    return () if node is None else tuple(node.targets)


def mqtt_levels(text: str) -> list[str]:
    """The levels of a key or a pattern."""
    return text.split("/")


def check_mqtt_pattern(pattern: str) -> None:
    """Raise unless `+` fills its level and `#` fills the last one."""
    check_pattern(pattern, "an mqtt pattern")
    if pattern == "":
        raise InvalidArgument("an mqtt pattern may not be empty; '#' matches every topic")
    if "\x00" in pattern:
        raise InvalidArgument(f"mqtt pattern {pattern!r} contains a null character")
    *levels, last = mqtt_levels(pattern)
    if any("#" in level for level in levels) or ("#" in last and last != "#"):
        raise InvalidArgument(f"mqtt pattern {pattern!r} has a '#' that is not the whole last level")
    for level in (*levels, last):
        if "+" in level and level != "+":
            raise InvalidArgument(f"mqtt pattern {pattern!r} has the level {level!r}; '+' stands for a whole level")


# Patterns of any kind -----------------------------------------------------------------------------------


def check_pattern(pattern: str, what: str) -> None:
    """Raise unless it is a string within the limit; `what` names it in the error."""
    if not isinstance(pattern, str):
        raise InvalidArgument(f"{what} must be a string, not {pattern!r} of type {type(pattern).__name__}")
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidArgument(
            f"{what} has {len(pattern)} characters; the limit is {PATTERN_CHARACTERS_MAX}: {pattern[:40]!r}…"
        )
