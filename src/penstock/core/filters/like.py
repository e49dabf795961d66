"""LIKE: a pattern taken apart, once for all back ends, and a matcher of whole strings without backtracking.

May not know: the AST, filters, messages. Whether a value is a string is the caller's to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, cast

LIKE_CHARACTERS_MAX: Final = 512
"""Of a LIKE pattern between its quotes, a doubled quote as one and escape characters included."""


def like_parts(pattern: str, escape: str | None) -> list[list[str | None]]:
    """A LIKE pattern as what stands between its `%`: lists of literal characters and None for each `_`.

    ValueError if the pattern is too long, or if its escape character stands before anything but `%`, `_` or itself.
    """
    if len(pattern) > LIKE_CHARACTERS_MAX:
        raise ValueError(f"the LIKE pattern has {len(pattern)} characters; the limit is {LIKE_CHARACTERS_MAX}")
    parts: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                raise ValueError(f"the escape character {escape!r} must be followed by '%', '_' or itself")
            parts[-1].append(following)
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    return parts


def like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A matcher without backtracking: the leftmost place of each part in turn is as good as any other."""
    first, *rest = like_parts(pattern, escape)
    if not rest and None not in first:
        return "".join(cast("list[str]", first)).__eq__
    if not rest:
        whole = _part_regex(first)
        return lambda text: whole.fullmatch(text) is not None
    head, last = _part_regex(first), _part_regex(rest[-1])
    middles = [_part_regex(part) for part in rest[:-1] if part]
    head_length, last_length = len(first), len(rest[-1])
    if not middles and not last_length and None not in first:
        prefix = "".join(cast("list[str]", first))
        return lambda text: text.startswith(prefix)

    def match(text: str) -> bool:
        stop = len(text) - last_length
        if stop < head_length or not head.match(text) or not last.match(text, stop):
            return False
        position = head_length
        for middle in middles:
            found = middle.search(text, position, stop)
            if found is None:
                return False
            position = found.end()
        return True

    return match


def _part_regex(part: list[str | None]) -> re.Pattern[str]:
    """Of fixed length: no repetition, so a hostile pattern costs text times pattern at the most."""
    return re.compile("".join("." if character is None else re.escape(character) for character in part), re.DOTALL)
