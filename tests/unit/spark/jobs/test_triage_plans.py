"""Which requests redrive a plan: every wanted letter once, no other dead letter in reach, none too large."""

from __future__ import annotations

import random

import pytest

from penstock.spark.jobs.triage.plans import Found, Piece, pieces, plans_id


def test_wanted_letters_are_joined_over_what_is_not_dead() -> None:
    found = [Found(0, 0, 3, True), Found(0, 10, 12, True), Found(0, 20, 21, False), Found(0, 30, 31, True)]
    found += [Found(1, 0, 2, True)]
    assert list(pieces(found, 100)) == [Piece(0, 0, 12, 5), Piece(0, 30, 31, 1), Piece(1, 0, 2, 2)]


def test_a_long_range_is_cut() -> None:
    assert list(pieces([Found(0, 5, 15, True)], 4)) == [Piece(0, 5, 9, 4), Piece(0, 9, 13, 4), Piece(0, 13, 15, 2)]
    assert list(pieces([], 4)) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_lanes(seed: int) -> None:
    chance = random.Random(seed)
    found: list[Found] = []
    for lane in range(3):
        offset = 0
        for _ in range(chance.randrange(20)):
            start = offset + chance.randrange(3)
            offset = start + 1 + chance.randrange(5)
            found.append(Found(lane, start, offset, chance.random() < 0.6))
    most = chance.randrange(1, 8)
    letters = {(one.lane, offset): one.is_wanted for one in found for offset in range(one.start, one.end)}
    reached: list[tuple[int, int]] = []
    for piece in pieces(found, most):
        inside = [(piece.lane, at) for at in range(piece.start, piece.end) if (piece.lane, at) in letters]
        assert all(letters[place] for place in inside)
        assert 0 < len(inside) == piece.letters <= most
        reached += inside
    assert reached == [place for place, is_wanted in letters.items() if is_wanted]


def test_plans_of_other_questions_are_others() -> None:
    assert len({plans_id("*", None), plans_id("*", "g"), plans_id("a", None), plans_id("a", "g")}) == 4
