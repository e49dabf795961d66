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
WINDOW_CHARACTERS: Final = 128
"""Of a text, in which all places of a part are looked at together; the next window is twice as long."""


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

    __slots__ = ("_longest", "_places", "_runs", "is_plain", "length", "text")

    def __init__(self, characters: Sequence[str | None]) -> None:
        self.length = len(characters)
        self.is_plain = None not in characters
        self.text = "".join(character or "" for character in characters)
        self._places: dict[str, list[int]] = {}
        """Where each literal character stands."""
        for place, character in enumerate(characters):
            if character is not None:
                self._places.setdefault(character, []).append(place)
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

        Python finds its longest run in linear time. If that misleads too often, all places are looked at together.
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
        """The same for all places at once, in windows that grow: little is looked at behind the place that is found."""
        window = WINDOW_CHARACTERS
        while start + self.length <= stop:
            end = min(stop, start + self.length - 1 + window)
            found = self._place_in(text[start:end])
            if found >= 0:
                return start + found + self.length
            start, window = start + window, window * 2
        return -1

    def _place_in(self, text: str) -> int:
        """Its leftmost place in a text; -1 if it is not there. A bit a place, the highest is the first."""
        if not all(character in text for character in self._places):
            return -1
        planes, every = _bit_planes(text), (1 << len(text)) - 1
        left = every >> (self.length - 1) << (self.length - 1)
        for character, places in self._places.items():
            stands = every
            for bit, plane in enumerate(planes):
                stands &= plane if ord(character) >> bit & 1 else plane ^ every
            for place in places:
                left &= stands << place
            if not left:
                return -1
        return len(text) - left.bit_length()


_ASCII_BITS: Final = 7
_UNICODE_BITS: Final = 21
_IS_SET: Final = [bytes(b"01"[byte >> bit & 1] for byte in range(256)) for bit in range(8)]
"""For each bit, a table from a byte to the digit that it has there."""


def _bit_planes(text: str) -> list[int]:
    """For each bit of a character's number, the places where it is set; the first place is the highest bit."""
    if text.isascii():
        data, width, bits = text.encode(), 1, _ASCII_BITS
    else:
        data, width, bits = text.encode("utf-32-le", "surrogatepass"), 4, _UNICODE_BITS
    return [int(data[bit // 8 :: width].translate(_IS_SET[bit % 8]), 2) for bit in range(bits)]
