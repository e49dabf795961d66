"""Drafts: many verdicts carried out aside and taken over at once come to what `settle` comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import decode_meta, encode
from penstock.core.group import draft as drafting
from penstock.model import GroupConfig, Message
from penstock.model.errors import InvalidArgument, LeaseLost, PenstockError
from penstock.model.verdict import Verdict
from penstock.model.work import at_once
from tests.unit.core.lanes import Bench

NOW = 1_000
COUNT = 24

VERDICTS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "nack", "reject", "release", "postpone"]),
        st.integers(0, COUNT),
        st.integers(0, 4),
        st.sampled_from([None, 0, 50]),
        st.sampled_from(["", "why"]),
    ),
    min_size=1,
    max_size=10,
)
OPTIONS = st.fixed_dictionaries(
    {
        "max_attempts": st.sampled_from([1, 3]),
        "dead_kept": st.booleans(),
        "dead_letter_to": st.sampled_from([None, "letters"]),
        "expired": st.sampled_from(["drop", "dead"]),
        "single_active_consumer": st.booleans(),
    }
)


def claimed(options: dict[str, Any]) -> Bench:
    """A lease of several ranges of different states, beside messages that wait and are dead."""
    bench = Bench(GroupConfig(**options))
    messages = [Message(ttl_ms=[None, 20][number % 5 == 0], priority=number % 3) for number in range(COUNT)]
    batch = encode(messages)
    bench.lane.append_batch(NOW - 30, batch, decode_meta(batch.meta, batch.count))
    bench.commit(NOW - 30)
    bench.claim(NOW - 30, 10, lease=7)
    bench.settle(NOW - 30, 7, "release", (2, 4), (6, 8))
    bench.settle(NOW - 30, 7, "reject", (8, 9))
    bench.claim(NOW - 30, COUNT, lease=1)
    bench.settle(NOW - 29, 7, "nack", delay_ms=0)
    bench.commit(NOW - 20)
    return bench


def outcome(bench: Bench) -> Any:
    bench.lane.check()
    sealed = bench.lane.seal(NOW)
    assert sealed is not None
    change = sealed.change
    parts = (change.leases, change.leases_deleted, change.waiting, change.waiting_deleted, change.dead)
    events = sorted(map(msgspec.structs.astuple, sealed.events[0][1])) if sealed.events else []
    return (
        [sorted(map(repr, part)) for part in (*parts, change.dead_deleted, sealed.died)],
        events,
        bench.claim(NOW, lease=9),
    )


@settings(max_examples=300, deadline=None)
@given(VERDICTS, OPTIONS, st.integers(1, 4))
def test_a_draft_that_is_taken_over_comes_to_what_settle_comes_to(
    given_verdicts: list[tuple[Any, int, int, int | None, str]], options: dict[str, Any], at_a_time: int
) -> None:
    verdicts = [
        Verdict(action, start, start + length, delay_ms, error)
        for action, start, length, delay_ms, error in sorted(given_verdicts, key=lambda one: one[1])
    ]
    expected, bench = claimed(options), claimed(options)
    failure: type[PenstockError] | None = None
    try:
        expected.work.settle(NOW, 1, verdicts)
    except PenstockError as error:
        failure = type(error)
    with patch.object(drafting, "VERDICTS_AT_ONCE", at_a_time):
        if failure is not None:
            with pytest.raises((InvalidArgument, LeaseLost)):
                at_once(bench.work.draft(NOW, 1, verdicts))
            assert not bench.lane.dirty
            return
        made = at_once(bench.work.draft(NOW, 1, verdicts))
    assert not bench.lane.dirty
    bench.work.adopt(NOW, made)
    assert outcome(bench) == outcome(expected)
    assert bench.work.active_until_ms == expected.work.active_until_ms


def reconfigure(bench: Bench) -> None:
    bench.lane.configure(bench.config, {1: msgspec.structs.replace(bench.settings[1], max_attempts=9)})


CHANGES: list[Callable[[Bench], None]] = [
    lambda bench: bench.settle(NOW, 1, "ack", (COUNT - 1, COUNT)),
    lambda bench: bench.settle(NOW, 1, "ack"),
    reconfigure,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_draft_fits_only_a_lease_that_is_as_it_was(change: Callable[[Bench], None]) -> None:
    bench = claimed({})
    made = at_once(bench.work.draft(NOW, 1, [Verdict("ack", 2, 4)]))
    assert bench.work.fits(made)
    bench.work.extend(NOW, 1, 60_000)
    bench.reload()
    assert bench.work.fits(made)  # its deadline does not matter, nor who has the lane in memory
    change(bench)
    assert not bench.work.fits(made)


@pytest.mark.parametrize(("ordered", "partition"), [(False, None), (False, "p"), (True, None), (True, "p")])
def test_leases_of_partitions_in_order_have_no_drafts(ordered: bool, partition: str | None) -> None:
    bench = Bench(ordered=ordered)
    bench.publish(NOW, *[Message(partition=partition)] * 3)
    bench.claim(NOW)
    can_draft = bench.work.can_draft(1)
    assert can_draft is not (ordered and partition is not None)
    if can_draft:
        made = at_once(bench.work.draft(NOW, 1, [Verdict("nack", 1, 2, 0)]))
        bench.work.adopt(NOW, made)
        bench.lane.check()
        assert bench.claim(NOW, lease=2) == [1]
