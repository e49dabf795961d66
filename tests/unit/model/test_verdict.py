"""Verdicts that say the same of offsets that follow each other are one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.verdict import Verdict, join_into

VERDICT = st.builds(
    lambda action, start, length, delay_ms, error: Verdict(action, start, start + length, delay_ms, error),
    st.sampled_from(["ack", "nack"]),
    st.integers(0, 8),
    st.integers(0, 3),
    st.sampled_from([None, 5]),
    st.sampled_from(["", "why"]),
)


def said(verdicts: list[Verdict]) -> list[tuple[object, ...]]:
    """What each verdict says of each offset, empty ranges included."""
    found: list[tuple[object, ...]] = []
    for one in verdicts:
        offsets = range(one.start or 0, one.end) or [-1]
        found += [(one.action, offset, one.delay_ms, one.error) for offset in offsets]
    return sorted(found, key=repr)


@given(st.lists(VERDICT))
def test_joining_changes_nothing_that_is_said(verdicts: list[Verdict]) -> None:
    verdicts.sort(key=lambda verdict: verdict.start or 0)
    joined: list[Verdict] = []
    join_into(joined, verdicts[:3])
    join_into(joined, verdicts[3:])
    assert said(joined) == said(verdicts)


def test_what_continues_is_joined() -> None:
    joined: list[Verdict] = []
    join_into(joined, [Verdict("ack", offset, offset + 1) for offset in range(9)])
    join_into(joined, [Verdict("nack", 9, 10), Verdict("nack", 10, 11, error="why")])
    assert joined == [Verdict("ack", 0, 9), Verdict("nack", 9, 10), Verdict("nack", 10, 11, error="why")]
