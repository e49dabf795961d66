"""Which offsets of a lane there are rows of, and how many of each: exact, small, and quick to ask.

A lane's offsets are kept by pages of 2^18. A page is a bitmap of the offsets that have rows, and further bitmaps of
those that have more than one (a message that was split into several rows). Dense pages take a few bytes, the worst
about half a mebibyte. Knows numbers only: no queue, no server, no Spark. Next stop: `ledger.py`.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

PAGE_BITS: Final = 18
PAGE_OFFSETS: Final = 1 << PAGE_BITS

Offsets = npt.NDArray[np.int64]
Packed = dict[str, Any]
"""A page as JSON has it: `rows` in base64 and, by number of rows, `several` in base64."""


class Page:
    """The rows of 2^18 consecutive offsets, each by its place in the page."""

    __slots__ = ("_flags", "present", "several")

    def __init__(self) -> None:
        self.present = BitMap()
        self.several: dict[int, int] = {}
        """Rows of the places that have more than one."""
        self._flags: npt.NDArray[np.bool_] | None = None

    def add(self, places: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64] | None) -> None:
        """Rows of distinct places; `counts` None is one each."""
        self._flags = None
        fresh = BitMap(array("I", places.tobytes()))
        again = fresh & self.present
        self.present |= fresh
        if counts is None:
            self.several.update({place: self.several.get(place, 1) + 1 for place in again})
            return
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            if place in again:
                self.several[place] = self.several.get(place, 1) + count
            elif count > 1:
                self.several[place] = count

    def merge(self, other: Page) -> None:
        """The rows of both."""
        self._flags = None
        again = self.present & other.present
        several = {place: count for place, count in other.several.items() if place not in again}
        several |= {place: self.count(place) + other.count(place) for place in again}
        self.present |= other.present
        self.several |= several

    def count(self, place: int) -> int:
        return self.several.get(place, 1) if place in self.present else 0

    def flags(self) -> npt.NDArray[np.bool_]:
        """For each place whether it has rows."""
        if self._flags is None:
            self._flags = np.zeros(PAGE_OFFSETS, np.bool_)
            self._flags[np.frombuffer(self.present.to_array(), np.uint32)] = True
        return self._flags

    @property
    def is_full(self) -> bool:
        """One row of every offset: nothing is left to know."""
        return len(self.present) == PAGE_OFFSETS and not self.several

    @staticmethod
    def full() -> Page:
        page = Page()
        page.present = BitMap(range(PAGE_OFFSETS))
        return page

    def pack(self) -> Packed:
        by_count: dict[int, list[int]] = {}
        for place, count in self.several.items():
            by_count.setdefault(count, []).append(place)
        packed: Packed = {"rows": _pack(self.present)}
        if by_count:
            packed["several"] = {str(count): _pack(BitMap(places)) for count, places in sorted(by_count.items())}
        return packed

    def __reduce__(self) -> tuple[Callable[[Packed], Page], tuple[Packed]]:
        """Small, for a task's report to its driver."""
        return Page.unpack, (self.pack(),)

    @staticmethod
    def unpack(packed: Packed) -> Page:
        page = Page()
        page.present = _unpack(packed["rows"])
        for count, places in packed.get("several", {}).items():
            page.several.update(dict.fromkeys(_unpack(places), int(count)))
        return page


def _pack(places: BitMap) -> str:
    places.run_optimize()
    return b64encode(places.serialize()).decode("ascii")


def _unpack(text: str) -> BitMap:
    return BitMap.deserialize(b64decode(text, validate=True))


class Tally:
    """Rows by offset, of one lane."""

    def __init__(self) -> None:
        self.pages: dict[int, Page] = {}

    def add(self, offsets: Offsets) -> None:
        """One row of each of these offsets, which may repeat and come in any order."""
        counts: npt.NDArray[np.int64] | None = None
        if len(offsets) > 1 and not bool(np.all(offsets[1:] > offsets[:-1])):
            offsets, counts = np.unique(offsets, return_counts=True)
            counts = None if int(counts.max()) == 1 else counts
        for number, low, high in pages_of(offsets):
            places = (offsets[low:high] & (PAGE_OFFSETS - 1)).astype(np.uint32)
            self.pages.setdefault(number, Page()).add(places, None if counts is None else counts[low:high])

    def merge(self, other: Tally) -> None:
        for number, page in other.pages.items():
            self.pages.setdefault(number, Page()).merge(page)

    @property
    def end(self) -> int:
        """One past the highest offset."""
        number = max(self.pages)
        return (number << PAGE_BITS) + int(self.pages[number].present.max()) + 1

    @property
    def first(self) -> int:
        number = min(self.pages)
        return (number << PAGE_BITS) + int(self.pages[number].present.min())


def pages_of(offsets: Offsets) -> list[tuple[int, int, int]]:
    """Of ascending offsets, each page's number and where in them it begins and ends."""
    if not len(offsets):
        return []
    numbers = offsets >> PAGE_BITS
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(offsets)]
    return [(int(numbers[low]), low, high) for low, high in pairwise(cuts)]


# Checksums that do not depend on the order of rows ----------------------------------------------------------


def offsets_digest(lane: int, offsets: Offsets) -> int:
    """A number of 64 bits that the same rows in any order, cut in any way, add up to."""
    mixed = offsets.astype(np.uint64) + np.uint64(lane & 0xFFFF_FFFF_FFFF_FFFF)
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(np.sum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64))
