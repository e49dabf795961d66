"""Receipts: where each of many messages went, of all of them and of a part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.results import Receipt
from penstock.model.appended import Appended


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    """Of messages that went to a lane each, and of which some were known already."""
    lanes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=30))
    known = draw(st.lists(st.booleans(), min_size=len(lanes), max_size=len(lanes)))
    parts = []
    for lane in sorted(set(lanes)):
        indexes = [index for index, of in enumerate(lanes) if of == lane]
        duplicates = {position: 7 + position for position, index in enumerate(indexes) if known[index]}
        appended = Appended(100 * (lane + 1), len(indexes) - len(duplicates), duplicates)
        is_all = len(indexes) == len(lanes) and draw(st.booleans())
        parts.append(("q", lane, appended, None if is_all else indexes))
    return Receipt(len(lanes), parts)


@given(receipts(), st.data())
def test_a_slice_says_of_its_messages_what_the_whole_says(receipt: Receipt, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(receipt) - 1))
    end = data.draw(st.integers(start + 1, len(receipt)))
    part = receipt.slice(start, end)
    assert len(part) == end - start
    assert part.numbered() == [(index - start, place) for index, place in receipt.numbered() if start <= index < end]
    assert part.duplicates == sum(place.duplicate for _, place in part.numbered())
    assert part.stored + part.duplicates == end - start
    assert part.first() in part.results()


def test_a_slice_of_what_is_in_the_spool_is_in_the_spool() -> None:
    part = Receipt(5, (), buffered_for="q").slice(1, 3)
    assert part.buffered
    assert [place.buffered for place in part] == [True, True]
