"""Dead letters: taking parts of rows, what a seal writes, and the cost of taking many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.group.dead import Dead
from penstock.model.rows import DeadRow


def row(start: int, end: int, reason: str = "rejected") -> DeadRow:
    return DeadRow(1, start, end, 1, reason, "", "ann", 5)


def offsets(rows: list[DeadRow]) -> list[int]:
    return [offset for found in rows for offset in range(found.start, found.end)]


def test_a_row_is_cut_at_both_ends() -> None:
    dead = Dead()
    dead.add(row(0, 10))
    dead.seal(1)
    assert dead.take(3, 5) == [row(3, 5)]
    assert dead.seal(1)[0] == [row(0, 3), row(5, 10)]
    assert dead.count == 8
    assert dead.take(0, 3) == [row(0, 3)]
    assert dead.seal(1) == ([], [(1, 0)])
    assert dead.starts[0] == 5
    assert dead.overlapping(0, 5) == []
    assert dead.overlapping(9, 20) == [row(9, 10)]


def test_what_came_and_went_writes_nothing() -> None:
    dead = Dead()
    dead.add(row(4, 6))
    assert dead.take(0, 100) == [row(4, 6)]
    assert dead.seal(1) == ([], [])
    assert not dead.starts


def test_a_loaded_row_is_not_written_again() -> None:
    dead = Dead()
    dead.load(row(4, 6))
    assert dead.seal(1) == ([], [])
    dead.take(4, 6)
    assert dead.seal(1) == ([], [(1, 4)])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=6),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6),
)
def test_taking_any_ranges(shape: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    dead, at = Dead(), 0
    left: set[int] = set()
    for gap, count in shape:
        dead.add(row(at + gap, at + gap + count))
        left |= set(range(at + gap, at + gap + count))
        at += gap + count
    for start, end in ranges:
        wanted = left & set(range(start, end))
        assert offsets(dead.overlapping(start, end)) == sorted(wanted)
        assert offsets(dead.take(start, end)) == sorted(wanted)
        left -= wanted
        assert offsets(dead.overlapping(0, 100)) == sorted(left)
        assert dead.count == len(left)
        assert min(dead.starts, default=None) == min(left, default=None)


def test_many_are_taken_at_once() -> None:
    dead = Dead()
    for start in range(0, 400_000, 2):
        dead.add(row(start, start + 1))
    assert len(dead.take(0, 400_000)) == 200_000  # minutes, if each were taken out of a list by itself
    assert dead.count == 0
    assert dead.starts == []
