"""Entries: splitting, merging, covering, carving, and the bytes of a row; against sets of offsets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.group.entries import (
    Entry,
    carve,
    count_of,
    covers,
    decode_entries,
    encode_entries,
    insert,
    merged,
    ranges_of,
    union,
)
from penstock.model.errors import StoreCorrupt

HUGE = 2**62


def offsets(entries: list[Entry]) -> list[int]:
    return [offset for entry in entries for offset in range(entry.start, entry.end)]


@st.composite
def disjoint(draw: st.DrawFn) -> list[Entry]:
    """Sorted entries with gaps and without."""
    entries, at = [], 0
    for gap, count, attempts in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 1)), max_size=8)
    ):
        entries.append(Entry(at + gap, at + gap + count, attempts))
        at += gap + count
    return entries


def test_a_part_and_a_move_keep_the_rest() -> None:
    entry = Entry(3, 9, 2, 100, 200, 5, "p")
    assert entry.part(4, 6) == Entry(4, 6, 2, 100, 200, 5, "p")
    assert entry.moved(3, 0) == Entry(3, 9, 3, 0, 200, 5, "p")
    assert entry.count == 6


@given(disjoint())
def test_merging_keeps_every_offset_once(entries: list[Entry]) -> None:
    before = {offset: entry.attempts for entry in entries for offset in range(entry.start, entry.end)}
    result = merged(list(reversed(entries)))
    assert {offset: entry.attempts for entry in result for offset in range(entry.start, entry.end)} == before
    assert offsets(result) == sorted(before)
    assert not any(right.continues(left) for left, right in itertools.pairwise(result))


@pytest.mark.parametrize(
    "other",
    [Entry(2, 3, 1), Entry(1, 2, 1), Entry(1, 2, 0, 5), Entry(1, 2, 0, 0, 5), Entry(1, 2, 0, 0, 0, 1),
     Entry(1, 2, 0, 0, 0, 0, "p")],
)  # fmt: skip
def test_entries_that_differ_stay_apart(other: Entry) -> None:
    assert len(merged([Entry(0, 1), other])) == 2


@given(disjoint(), st.integers(-1, 30), st.integers(-1, 30))
def test_covers(entries: list[Entry], start: int, end: int) -> None:
    assert covers(entries, start, end) == (set(range(start, end)) <= set(offsets(entries)))


@given(disjoint(), st.data())
def test_carving(entries: list[Entry], data: st.DataObject) -> None:
    if not entries:
        return
    runs = ranges_of(entries)
    low, high = data.draw(st.sampled_from(runs))
    start = data.draw(st.integers(low, high - 1))
    end = data.draw(st.integers(start + 1, high))
    before = offsets(entries)
    taken = carve(entries, start, end)
    assert offsets(taken) == list(range(start, end))
    assert offsets(entries) == [offset for offset in before if not start <= offset < end]


@given(disjoint(), st.randoms())
def test_inserting_keeps_order(entries: list[Entry], random: st.DataObject) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    result: list[Entry] = []
    for entry in shuffled:
        insert(result, entry)
    assert result == entries


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_union(ranges: list[tuple[int, int]]) -> None:
    result = union(ranges)
    held = {offset for start, end in ranges for offset in range(start, end)}
    assert [offset for start, end in result for offset in range(start, end)] == sorted(held)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(result))


def test_rows_come_back_as_they_were() -> None:
    entries = [Entry(0, HUGE, 65_535, HUGE, HUGE, 255, "ü€"), Entry(HUGE, HUGE + 1)]
    assert decode_entries(encode_entries(iter(entries))) == entries
    assert decode_entries(encode_entries([])) == []
    assert count_of(entries) == HUGE + 1


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x91\x01", b"\x91\xa1x", encode_entries([Entry(0, 1)])[:-1]])
def test_a_row_that_is_none(data: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode_entries(data)
