"""Offsets counted by pages: against a plain Counter, whatever their order, number and repetitions."""

from __future__ import annotations

import pickle
import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.staging import VALUE_BYTES_MAX
from penstock.spark.sink.tally import PAGE_OFFSETS, Page, Tally, offsets_digest

# A few pages, and offsets around their ends; beyond 32 bits too.
OFFSETS = st.one_of(
    st.integers(0, 40),
    st.integers(PAGE_OFFSETS - 5, PAGE_OFFSETS + 5),
    st.integers(2**40, 2**40 + 10),
)


def counted(tally: Tally) -> Counter[int]:
    found: Counter[int] = Counter()
    for number, page in tally.pages.items():
        for place in page.present:
            found[number * PAGE_OFFSETS + place] = page.count(place)
    return found


def tally_of(*parts: list[int]) -> Tally:
    tally = Tally()
    for part in parts:
        tally.add(np.array(part, np.int64))
    return tally


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(OFFSETS, max_size=30), max_size=4), st.lists(st.lists(OFFSETS, max_size=30), max_size=4))
def test_counts(ones: list[list[int]], others: list[list[int]]) -> None:
    expected = Counter(offset for part in [*ones, *others] for offset in part)
    whole = tally_of(*ones, *others)
    assert counted(whole) == expected
    merged = tally_of(*ones)
    merged.merge(tally_of(*others))
    assert counted(merged) == expected
    again: Tally = pickle.loads(pickle.dumps(merged))
    assert counted(again) == expected
    for number, page in merged.pages.items():
        again.pages[number] = Page.unpack(msgspec.json.decode(msgspec.json.encode(page.pack())))
    assert counted(again) == expected
    if expected:
        assert again.first == min(expected)
        assert again.end == max(expected) + 1
    for number, page in whole.pages.items():
        flags = np.flatnonzero(page.flags()) + number * PAGE_OFFSETS
        assert set(flags.tolist()) == {offset for offset in expected if offset // PAGE_OFFSETS == number}


def test_flags_follow_what_is_added() -> None:
    page = Page()
    page.add(np.array([1], np.uint32), None)
    assert np.flatnonzero(page.flags()).tolist() == [1]
    page.add(np.array([3], np.uint32), None)
    assert np.flatnonzero(page.flags()).tolist() == [1, 3]
    other = Page()
    other.add(np.array([5], np.uint32), None)
    page.merge(other)
    assert np.flatnonzero(page.flags()).tolist() == [1, 3, 5]


def is_full(tally: Tally) -> bool:
    return tally.pages[0].is_full


def test_a_full_page() -> None:
    tally = Tally()
    tally.add(np.arange(PAGE_OFFSETS - 1, dtype=np.int64))
    assert not is_full(tally)
    tally.add(np.array([PAGE_OFFSETS - 1], np.int64))
    assert is_full(tally)
    assert tally.pages[0].present == Page.full().present
    tally.add(np.array([7], np.int64))
    assert not is_full(tally), "an offset of two rows is more to know"


@pytest.mark.parametrize("kind", ["half of all", "many counts"])
def test_the_worst_page_is_small_enough_for_a_mark(kind: str) -> None:
    chance = random.Random(5)
    page = Page()
    places = np.arange(PAGE_OFFSETS, dtype=np.uint32)
    if kind == "half of all":
        page.add(places[np.array([chance.random() < 0.5 for _ in range(PAGE_OFFSETS)])], None)
    else:
        page.add(places, np.array([chance.randint(1, 200) for _ in range(PAGE_OFFSETS)], np.int64))
    assert len(msgspec.json.encode(page.pack())) < VALUE_BYTES_MAX


@settings(deadline=None)
@given(st.lists(OFFSETS, min_size=1, max_size=50), st.integers(0, 50), st.randoms(use_true_random=False))
def test_the_digest_knows_no_order_and_no_cuts(offsets: list[int], cut: int, chance: random.Random) -> None:
    shuffled = offsets[:]
    chance.shuffle(shuffled)
    whole = offsets_digest(9, np.array(offsets, np.int64))
    parts = [np.array(part, np.int64) for part in (shuffled[:cut], shuffled[cut:])]
    assert (sum(offsets_digest(9, part) for part in parts) - whole) % 2**64 == 0


def test_the_digest_knows_lanes_offsets_and_repetitions() -> None:
    one, other, twice = (np.array(offsets, np.int64) for offsets in ([1, 2], [1, 3], [1, 2, 2]))
    digests = [offsets_digest(9, one), offsets_digest(9, other), offsets_digest(9, twice), offsets_digest(8, one)]
    assert len(set(digests)) == 4


def test_a_report_to_the_driver_is_small_and_holds_everything() -> None:
    tally = Tally()
    tally.add(np.arange(PAGE_OFFSETS, dtype=np.int64))
    tally.add(np.array([3, 3, 9], np.int64))
    tally.pages[0].flags()  # made when asked, and not sent
    sent = pickle.dumps(tally)
    assert len(sent) < 1_000
    page = pickle.loads(sent).pages[0]
    assert (page.count(3), page.count(9), page.count(10), len(page.present)) == (3, 2, 1, PAGE_OFFSETS)
