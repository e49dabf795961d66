"""Two sides of a lane in small pieces, and where they differ: plain numbers, no Spark, no broker.

A side is summed up in cells of consecutive offsets: how many messages, the sum of their places and of the squares of
their places (which betray any hole or double, whatever else makes up for it), and a hash of every row that does not
depend on order. Only cells that differ are looked at row by row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

CELL_OFFSETS: Final = 100_000


class Lane(msgspec.Struct, frozen=True):
    """One lane of one queue."""

    queue: str
    queue_id: int
    lane: int


class Cell(msgspec.Struct, frozen=True):
    """Offsets of one lane and day that lie in one piece [number * CELL_OFFSETS, …) of it, summed up."""

    lane: Lane
    date: str
    number: int
    messages: int
    first: int
    last: int
    places: int
    """The sum of the offsets, counted from the beginning of the piece."""
    squares: int
    hash: int


class Total(msgspec.Struct):
    """A piece of a lane over all days."""

    messages: int = 0
    places: int = 0
    squares: int = 0
    hash: int = 0

    def add(self, cell: Cell) -> None:
        self.messages += cell.messages
        self.places += cell.places
        self.squares += cell.squares
        self.hash ^= cell.hash


class Difference(msgspec.Struct, frozen=True):
    """Offsets [start, end) of a lane with which something is wrong."""

    queue: str
    queue_id: int
    lane: int
    start: int
    end: int
    what: str


Span = tuple[int, int]
"""[start, end) of offsets."""
Totals = dict[tuple[Lane, int], Total]


def totals(cells: Iterable[Cell]) -> Totals:
    """Cells of all days together."""
    found: Totals = defaultdict(Total)
    for cell in cells:
        found[cell.lane, cell.number].add(cell)
    return dict(found)


def expected(number: int, span: Span) -> Total:
    """What a piece is that has every offset of the span once; without a hash."""
    low = max(span[0] - number * CELL_OFFSETS, 0)
    high = min(span[1] - number * CELL_OFFSETS, CELL_OFFSETS)
    if high <= low:
        return Total()
    return Total(high - low, _sum(high) - _sum(low), _squares(high) - _squares(low))


def _sum(end: int) -> int:
    return end * (end - 1) // 2


def _squares(end: int) -> int:
    return (end - 1) * end * (2 * end - 1) // 6


def incomplete(found: Totals, spans: Mapping[Lane, Span]) -> list[tuple[Lane, int]]:
    """The pieces that do not have every offset of their lane's span exactly once."""
    wrong = []
    for lane, span in spans.items():
        numbers = set(_numbers(span)) | {number for one, number in found if one == lane}
        for number in sorted(numbers):
            have, want = found.get((lane, number), Total()), expected(number, span)
            if (have.messages, have.places, have.squares) != (want.messages, want.places, want.squares):
                wrong.append((lane, number))
    return wrong


def unequal(one: Totals, other: Totals) -> list[tuple[Lane, int]]:
    """The pieces in which two sides differ."""
    keys = sorted(one.keys() | other.keys(), key=lambda key: (key[0].queue, key[0].queue_id, key[0].lane, key[1]))
    return [key for key in keys if one.get(key, Total()) != other.get(key, Total())]


def _numbers(span: Span) -> range:
    return range(span[0] // CELL_OFFSETS, -(-span[1] // CELL_OFFSETS)) if span[1] > span[0] else range(0)


def cell_span(number: int) -> Span:
    return number * CELL_OFFSETS, (number + 1) * CELL_OFFSETS


# Row by row ----------------------------------------------------------------------------------------------


def holes(lane: Lane, offsets: Iterable[int], span: Span, number: int) -> list[Difference]:
    """What a piece of the lake lacks of its lane's span, or has twice or beyond it."""
    counts = Counter(offsets)
    low, high = max(span[0], number * CELL_OFFSETS), min(span[1], (number + 1) * CELL_OFFSETS)
    missing = (offset for offset in range(low, high) if offset not in counts)
    double = (offset for offset, count in sorted(counts.items()) if count > 1)
    beyond = (offset for offset in sorted(counts) if not span[0] <= offset < span[1])
    return [
        *_ranges(lane, missing, "missing in the lake"),
        *_ranges(lane, double, "more than once in the lake"),
        *_ranges(lane, beyond, "in the lake beyond its mark"),
    ]


def row_differences(lane: Lane, lake: Mapping[int, int], broker: Mapping[int, int]) -> list[Difference]:
    """By offset and hash: what only one side has, and what differs."""
    changed = (offset for offset in lake.keys() & broker.keys() if lake[offset] != broker[offset])
    return [
        *_ranges(lane, sorted(broker.keys() - lake.keys()), "in the broker and not in the lake"),
        *_ranges(lane, sorted(lake.keys() - broker.keys()), "in the lake and not in the broker"),
        *_ranges(lane, sorted(changed), "different in lake and broker"),
    ]


def _ranges(lane: Lane, offsets: Iterable[int], what: str) -> list[Difference]:
    """Neighbours together."""
    spans: list[list[int]] = []
    for offset in offsets:
        if spans and spans[-1][1] == offset:
            spans[-1][1] = offset + 1
        else:
            spans.append([offset, offset + 1])
    return [Difference(lane.queue, lane.queue_id, lane.lane, start, end, what) for start, end in spans]
