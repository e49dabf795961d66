"""LIKE: a pattern taken apart, once for all back ends, and a matcher of whole strings without backtracking.

May not know: the AST, filters, messages. Whether a value is a string is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

LIKE_CHARACTERS_MAX: Final = 512
"""Of a LIKE pattern between its quotes, a doubled quote as one and escape characters included."""
MISLEADING_MAX: Final = 16
"""Places of a part's longest run at which the rest of the part may be missing, before it is looked for otherwise."""


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
    """A matcher whose time grows with the text alone: the leftmost place of each part is as good as any other."""
    first, *rest = map(_Part, like_parts(pattern, escape))
    if not rest:
        return first.text.__eq__ if first.is_plain else lambda text: len(text) == first.length and first.stands(text, 0)
    last = rest.pop()
    middles = [part for part in rest if part.length]
    if not middles and not last.length and first.is_plain:
        return lambda text: text.startswith(first.text)

    def match(text: str) -> bool:
        stop = len(text) - last.length
        if stop < first.length or not first.stands(text, 0) or not last.stands(text, stop):
            return False
        position = first.length
        for middle in middles:
            position = middle.end_in(text, position, stop)
            if position < 0:
                return False
        return True

    return match


class _Part:
    """What stands between two `%`: of fixed length, as literal runs with `_` between them."""

    __slots__ = ("_characters", "_longest", "_runs", "is_plain", "length", "text")

    def __init__(self, characters: Sequence[str | None]) -> None:
        self.length = len(characters)
        self.is_plain = None not in characters
        self.text = "".join(character or "" for character in characters)
        self._characters = characters
        self._runs: list[tuple[int, str]] = []
        """(place, literal text)"""
        for is_gap, run in groupby(enumerate(characters), key=lambda item: item[1] is None):
            places, found = zip(*run, strict=True)
            if not is_gap:
                self._runs.append((places[0], "".join(found)))
        self._longest = max(self._runs, key=lambda run: len(run[1]), default=(0, ""))

    def stands(self, text: str, at: int) -> bool:
        """Whether it is in the text at a place behind which there is room for it."""
        return all(text.startswith(run, at + place) for place, run in self._runs)

    def end_in(self, text: str, start: int, stop: int) -> int:
        """The end of its leftmost place in text[start:stop]; -1 if it is not there.

        Python finds its longest run in linear time. If that misleads too often, all places are followed at once.
        """
        place, run = self._longest
        for _ in range(MISLEADING_MAX):
            found = text.find(run, start + place, stop)
            start = found - place
            if found < 0 or start + self.length > stop:
                return -1
            if self.stands(text, start):
                return start + self.length
            start += 1
        return self._followed(text, start, stop)

    def _followed(self, text: str, start: int, stop: int) -> int:
        """The same, a step a character: bit n of `state` says that the last n + 1 characters are how it begins."""
        anything = sum(1 << place for place, character in enumerate(self._characters) if character is None)
        bits: dict[str, int] = {}
        for place, character in enumerate(self._characters):
            if character is not None:
                bits[character] = bits.get(character, anything) | 1 << place
        whole, state = 1 << (self.length - 1), 0
        for at in range(start, stop):
            state = (state << 1 | 1) & bits.get(text[at], anything)
            if state & whole:
                return at + 1
        return -1
