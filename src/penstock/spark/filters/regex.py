"""Patterns as regular expressions of Java, which is what Spark matches with: LIKE, topic and MQTT patterns.

Each part between two wildcards of any length is looked for at its first place only (an atomic group), which is as good
as any other because a part's own length is fixed. So a hostile pattern costs the length of the text times its own,
where plain backtracking would take time exponential in its wildcards.

May not know: Spark, columns, bindings. What a pattern means is said in `core/filters/like.py` and
`core/routing/tries.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.filters import like_parts
from penstock.core.routing.tries import check_mqtt_pattern, check_topic_pattern, topic_words

_START: Final = r"(?s)\A"  # (?s): a dot is any character, line ends included
_END: Final = r"\z"  # not $, which also stands before a last line end

# A key as `topic_regex` wants it: a dot in front of every word, so that no words and one word are told apart.
_ANY_WORD: Final = r"\.[^.]*+"
_WORD_ENDS: Final = r"(?![^.])"
_ANY_LEVEL: Final = r"[^/]*+"
_NO_DOLLAR: Final = r"(?!\$)"


def literal(text: str) -> str:
    """A text that matches itself alone, whatever characters are in it."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text
    )


def like_regex(pattern: str, escape: str | None) -> str:
    parts = ["".join("." if one is None else literal(one) for one in part) for part in like_parts(pattern, escape)]
    return _anchored(parts, ".")


def topic_regex(pattern: str) -> str:
    """Of a key with a dot in front, or of the empty text for the empty key, which has no words."""
    check_topic_pattern(pattern)
    parts = [""]
    for word in topic_words(pattern):
        if word == "#":
            parts.append("")
        else:
            parts[-1] += _ANY_WORD if word == "*" else rf"\.{literal(word)}{_WORD_ENDS}"
    return _anchored(parts, f"(?:{_ANY_WORD})")


def mqtt_regex(pattern: str) -> str:
    """Of a key as it is. What begins with a dollar is the server's own: no wildcard of the first level takes it."""
    check_mqtt_pattern(pattern)
    if pattern == "#":
        return f"{_START}{_NO_DOLLAR}"
    levels = pattern.split("/")
    is_open = levels[-1] == "#"
    named = levels[:-1] if is_open else levels
    guard = _NO_DOLLAR if named[0] == "+" else ""
    body = "/".join(_ANY_LEVEL if level == "+" else literal(level) for level in named)
    return f"{_START}{guard}{body}{'(?:/|' + _END + ')' if is_open else _END}"


def _anchored(parts: Sequence[str], any_unit: str) -> str:
    """Parts of fixed length with any number of units between them, from the start of the text to its end."""
    first, *rest = parts
    if not rest:
        return f"{_START}{first}{_END}"
    middles = "".join(f"(?>{any_unit}*?{part})" for part in rest[:-1] if part)
    return f"{_START}{first}{middles}{any_unit}*{rest[-1]}{_END}"
