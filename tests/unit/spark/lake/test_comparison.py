"""Cells of two sides: every hole, double and change is found by the sums, and told by its offsets."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from penstock.spark.lake import comparison
from penstock.spark.lake.comparison import CELL_OFFSETS, Cell, Difference, Lane, Total

LANE = Lane("orders", 7, 0)


def cells(offsets: Iterable[int], date: str = "2026-03-01") -> list[Cell]:
    """As Spark sums them up."""
    numbers: dict[int, list[int]] = {}
    for offset in offsets:
        numbers.setdefault(offset // CELL_OFFSETS, []).append(offset)
    found = []
    for number, mine in numbers.items():
        places = [offset % CELL_OFFSETS for offset in mine]
        hashed = 0
        for offset in mine:
            hashed ^= hash((offset, "id"))
        squares = sum(place * place for place in places)
        found.append(Cell(LANE, date, number, len(mine), min(mine), max(mine), sum(places), squares, hashed))
    return found


@pytest.mark.parametrize("span", [(0, 10), (5, 250_000), (99_999, 100_001), (100_000, 200_000), (7, 7)])
def test_what_is_whole_is_whole(span: tuple[int, int]) -> None:
    found = comparison.totals(cells(range(*span)))
    assert comparison.incomplete(found, {LANE: span}) == []


def test_days_of_one_piece_are_added_up() -> None:
    found = comparison.totals([*cells(range(40)), *cells(range(40, 100), "2026-03-02")])
    assert comparison.incomplete(found, {LANE: (0, 100)}) == []


def test_any_few_changes_are_found_by_the_sums() -> None:
    """Holes and doubles of the same number, so that counting alone would not see them."""
    chance = random.Random(4)
    for _ in range(300):
        offsets = list(range(1_000))
        for place in chance.sample(range(1_000), chance.randint(1, 4)):
            offsets[place] = chance.choice([other for other in range(1_000) if other != place])
        assert comparison.incomplete(comparison.totals(cells(offsets)), {LANE: (0, 1_000)}) == [(LANE, 0)]


def test_changes_that_make_up_for_each_other_are_found() -> None:
    offsets = [{4: 5, 6: 5}.get(offset, offset) for offset in range(1_000)]  # as many, and with the same sum
    assert comparison.incomplete(comparison.totals(cells(offsets)), {LANE: (0, 1_000)}) == [(LANE, 0)]


def test_a_lane_of_which_nothing_is_left_is_incomplete() -> None:
    assert comparison.incomplete({}, {LANE: (0, 150_000)}) == [(LANE, 0), (LANE, 1)]


def test_holes_doubles_and_strays_are_told_as_ranges() -> None:
    offsets = [*range(10), *range(15, 30), 20, 21, 29, 300]
    assert comparison.holes(LANE, offsets, (0, 35), 0) == [
        Difference("orders", 7, 0, 10, 15, "missing in the lake"),
        Difference("orders", 7, 0, 30, 35, "missing in the lake"),
        Difference("orders", 7, 0, 20, 22, "more than once in the lake"),
        Difference("orders", 7, 0, 29, 30, "more than once in the lake"),
        Difference("orders", 7, 0, 300, 301, "in the lake beyond its mark"),
    ]


def test_rows_are_compared_by_hash() -> None:
    lake = {offset: offset for offset in range(8)}
    broker = {offset: offset for offset in range(2, 10)} | {5: -1}
    assert comparison.row_differences(LANE, lake, broker) == [
        Difference("orders", 7, 0, 8, 10, "in the broker and not in the lake"),
        Difference("orders", 7, 0, 0, 2, "in the lake and not in the broker"),
        Difference("orders", 7, 0, 5, 6, "different in lake and broker"),
    ]


def test_two_sides_differ_where_their_totals_do() -> None:
    one, other = comparison.totals(cells(range(250_000))), comparison.totals(cells(range(250_000)))
    assert comparison.unequal(one, other) == []
    other[LANE, 1].hash ^= 1
    del other[LANE, 2]
    assert comparison.unequal(one, other) == [(LANE, 1), (LANE, 2)]
    assert comparison.expected(3, (0, 250_000)) == Total()
    assert comparison.cell_span(2) == (200_000, 300_000)
