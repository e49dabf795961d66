"""Budgets of work: a walk over messages stops where it has cost enough, gives what it has, and goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from penstock.batch import Meta, decode_meta, encode
from penstock.core.filters import Filter, parse
from penstock.core.filters.filter import PREDICATE_WORK
from penstock.core.group import claim as claiming
from penstock.core.group import walk
from penstock.core.group.waiting import ADVANCE_WORK
from penstock.core.group.work import WorkGroup
from penstock.model import GroupConfig, Message, work
from penstock.model.work import MESSAGE_WORK, SLICE_WORK, Budget, Pause, Steps, at_once
from tests.unit.core.lanes import Bench

NOW = 1_000
LENGTH = 10_000
LONG = {"text": "a" * LENGTH}
FOUND = {"text": "axb"}
FILTER = "text LIKE '%a_b%'"
PER_SLICE = -(-SLICE_WORK // (LENGTH + MESSAGE_WORK + PREDICATE_WORK))
"""Messages with a long header that one command looks at."""


class Tried:
    """How many messages a filter was tried on by each command."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def begin(self) -> None:
        self.counts.append(0)


@pytest.fixture
def tried() -> Iterator[Tried]:
    noted = Tried()
    original = Filter.matches_at

    def counted(condition: Filter, columns: Meta, index: int) -> bool:
        noted.counts[-1] += 1
        return original(condition, columns, index)

    with patch.object(Filter, "matches_at", counted):
        yield noted


def patiently(tried: Tried, command: Any) -> Any:
    """Repeat a command that pauses, as a node does."""
    while True:
        tried.begin()
        try:
            return command()
        except Pause:
            continue


def fill(bench: Bench, long: int, found: int = 1, now_ms: int = NOW, **options: Any) -> None:
    """Messages that a filter passes over at great cost, and behind them some that it finds."""
    messages = [Message(headers=LONG, **options)] * long + [Message(headers=FOUND, **options)] * found
    publish_batch(bench, messages, now_ms)


def publish_batch(bench: Bench, messages: list[Message], now_ms: int = NOW) -> None:
    batch = encode(messages)
    bench.lane.append_batch(now_ms, batch, decode_meta(batch.meta, batch.count))
    bench.commit(now_ms)


def test_what_a_filter_costs() -> None:
    headers = {"text": "a" * 100, "number": 5}
    assert parse("text = 'a'").work(headers) == PREDICATE_WORK
    assert parse("text LIKE 'a%' OR NOT text LIKE '%b' AND number > 1").work(headers) == 3 * PREDICATE_WORK + 200
    assert parse("number LIKE '5' OR other LIKE 'a' OR $key LIKE 'k'").work(headers) == 3 * PREDICATE_WORK
    assert parse("text LIKE 'a%'").work(None) == PREDICATE_WORK
    columns = Meta(2, headers=[None, headers])
    assert [parse("text LIKE 'a%'").work_at(columns, index) for index in (0, 1)] == [
        PREDICATE_WORK,
        PREDICATE_WORK + 100,
    ]
    assert parse("text LIKE 'a%'").work_at(Meta(1), 0) == PREDICATE_WORK


def test_how_far_a_filter_may_be_tried_for_so_much_work() -> None:
    like, plain = parse("text LIKE 'a%'"), parse("a = 1 AND b = 2")
    columns = Meta(10, headers=[LONG] * 10)
    assert [like.reach(columns, 2, 10, work) for work in (1, LENGTH, 3 * LENGTH, 10**9)] == [3, 3, 5, 10]
    assert [plain.reach(columns, 2, 10, work) for work in (1, 4 * PREDICATE_WORK, 10**9)] == [3, 4, 10]
    assert like.reach(Meta(10), 0, 10, 3 * PREDICATE_WORK) == 3


def test_a_claim_stops_at_its_budget_and_the_next_goes_on(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER))
    fill(bench, 35)
    entries = patiently(tried, lambda: bench.work.claim(NOW, 10, "ann", 1))
    assert [(entry.start, entry.end) for entry in entries] == [(35, 36)]
    assert tried.counts == [PER_SLICE, PER_SLICE, PER_SLICE, 36 - 3 * PER_SLICE]
    bench.lane.check()


def test_a_claim_gives_what_it_found_within_its_budget(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER))
    fill(bench, 0, 2)
    fill(bench, 35)
    tried.begin()
    assert bench.claim(NOW, 10) == [0, 1]
    assert tried.counts == [2 + PER_SLICE]
    assert bench.work.next == 2 + PER_SLICE


def test_a_group_that_filters_everything_out_comes_to_the_end(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER))
    fill(bench, 35, 0)
    assert patiently(tried, lambda: bench.work.claim(NOW, 10, "ann", 1)) == []
    assert max(tried.counts) == PER_SLICE
    assert bench.work.watermark() == 35


def test_a_claim_of_at_least_so_many_collects_them_over_pauses(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER))
    for _ in range(3):
        fill(bench, 15)
    entries = patiently(tried, lambda: bench.work.claim(NOW, 10, "ann", 1, minimum=3))
    assert [entry.start for entry in entries] == [15, 31, 47]
    assert {entry.attempts for entry in entries} == {1}
    assert max(tried.counts) <= PER_SLICE + 3
    bench.lane.check()


def test_more_than_one_claim_may_take_is_enough_for_any_minimum() -> None:
    bench = Bench(ordered=True)
    publish_batch(bench, [Message(partition=str(number)) for number in range(30)])
    with patch.object(work, "SLICE_WORK", 5 * MESSAGE_WORK), patch.object(claiming, "PIECES_MAX", 10):
        with pytest.raises(Pause):
            bench.work.claim(NOW, 30, "ann", 1, minimum=20)
        assert bench.claim(NOW, 30, minimum=20) == list(range(10))
        assert bench.claim(NOW, 30, lease=2) == list(range(10, 15))
    bench.lane.check()


def test_a_prioritized_group_hands_out_nothing_before_it_has_looked_at_all(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER), prioritized=True)
    fill(bench, 1, 1, priority=1)
    fill(bench, 35, 1, priority=9)
    entries = patiently(tried, lambda: bench.work.claim(NOW, 10, "ann", 1))
    assert [entry.start for entry in entries] == [37, 1]
    assert max(tried.counts) <= PER_SLICE + 1
    bench.lane.check()


def test_claims_share_a_budget(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER))
    fill(bench, 35)
    budget = Budget()
    budget.left -= SLICE_WORK // 2
    tried.begin()
    with pytest.raises(Pause):
        bench.work.claim(NOW, 10, "ann", 1, budget=budget)
    assert tried.counts == [PER_SLICE // 2]
    with pytest.raises(Pause):
        bench.work.claim(NOW, 10, "ann", 1, budget=budget)
    assert tried.counts == [PER_SLICE // 2]


def test_ranges_cost_a_claim_next_to_nothing() -> None:
    bench = Bench()
    publish_batch(bench, [Message()] * 100_000)
    assert len(bench.claim(NOW, 60_000)) == 60_000
    bench.settle(NOW, 1, "nack", delay_ms=0)
    assert len(bench.claim(NOW, 100_000)) == 100_000


def test_a_stream_read_stops_at_its_budget_and_the_next_goes_on(tried: Tried) -> None:
    bench = Bench(GroupConfig(kind="stream", filter=FILTER))
    fill(bench, 0, 1)
    fill(bench, 35)
    tried.begin()
    assert bench.stream.read(NOW, 10, "ann") == [(0, 1)]
    assert patiently(tried, lambda: bench.stream.read(NOW, 10, "ann")) == [(36, 37)]
    assert max(tried.counts) <= PER_SLICE + 1
    bench.lane.check()


def test_what_expires_at_once_is_removed_in_several_ticks(tried: Tried) -> None:
    bench = Bench(GroupConfig(filter=FILTER), ttl_ms=10)
    fill(bench, 35)
    patiently(tried, lambda: bench.lane.tick(NOW + 10))
    assert max(tried.counts) <= PER_SLICE
    assert bench.work.next == 36
    bench.lane.check()


def test_parked_messages_that_expire_at_once_are_removed_in_several_ticks() -> None:
    bench = Bench()
    publish_batch(bench, [Message(ttl_ms=10 + number % 2, delay_ms=5) for number in range(100)])
    assert bench.claim(NOW) == []
    ticks: list[int] = []
    with patch.object(work, "SLICE_WORK", 30 * MESSAGE_WORK):
        while bench.work.waiting.count:
            before = bench.work.waiting.count
            with suppress(Pause):
                bench.lane.tick(NOW + 20)
            ticks.append(before - bench.work.waiting.count)
    assert ticks == [30, 30, 30, 10]
    bench.lane.check()


def test_what_becomes_due_at_once_is_made_ready_in_several_ticks_or_claims() -> None:
    for is_claimed in (False, True):
        bench = Bench()
        publish_batch(bench, [Message(delay_ms=5 + number % 2) for number in range(100)])
        assert bench.claim(NOW) == []
        left: list[int] = []
        with patch.object(work, "SLICE_WORK", 30 * ADVANCE_WORK):
            while bench.work.waiting.later:
                with suppress(Pause):
                    bench.claim(NOW + 20, lease=2) if is_claimed else bench.lane.tick(NOW + 20)
                left.append(len(bench.work.waiting.later))
        assert left == [70, 40, 10, 0]
        assert len(bench.claim(NOW + 20, lease=3)) == (0 if is_claimed else 100)
        bench.lane.check()


def test_steps_at_once() -> None:
    def steps() -> Steps[str]:
        yield None
        made: str = yield lambda: "made"
        return made

    assert at_once(steps()) == "made"


def test_an_ended_walk_is_no_pause() -> None:
    """Nothing is left to do where the budget is spent with the last message."""
    bench = Bench(GroupConfig(filter="a = 1"))
    publish_batch(bench, [Message()] * 5)
    group: WorkGroup = bench.work
    with patch.object(work, "SLICE_WORK", 5 * (MESSAGE_WORK + PREDICATE_WORK)), pytest.raises(Pause):
        group.claim(NOW, 1, "ann", 1)
    assert group.claim(NOW, 1, "ann", 1) == []


# A pause leads on, however small the budget ----------------------------------------------------------------


def pauses(command: Any) -> int:
    """How often a command pauses before it ends."""
    for count in range(100):
        try:
            command()
        except Pause:
            continue
        return count
    raise AssertionError("it pauses again and again at the same place")


@pytest.fixture
def next_to_nothing() -> Iterator[None]:
    with patch.object(work, "SLICE_WORK", 1):
        yield


@pytest.mark.usefixtures("next_to_nothing")
def test_a_claim_past_messages_that_expired_while_they_waited_leads_on() -> None:
    bench = Bench()
    publish_batch(bench, [Message(ttl_ms=10, delay_ms=5)] * 3)
    pauses(lambda: bench.work.claim(NOW, 1, "ann", 1))
    assert bench.work.waiting.count == 3
    assert pauses(lambda: bench.work.claim(NOW + 20, 1, "ann", 1)) > 0
    assert bench.work.waiting.count == 0


@pytest.mark.usefixtures("next_to_nothing")
def test_a_claim_that_may_park_no_more_is_at_its_end() -> None:
    bench = Bench()
    publish_batch(bench, [Message(delay_ms=5_000 + number) for number in range(10)])
    with patch.object(walk, "PARKED_MAX", 4):
        assert pauses(lambda: bench.work.claim(NOW, 1, "ann", 1)) == 4
        assert pauses(lambda: bench.work.claim(NOW, 1, "ann", 1)) == 0


@pytest.mark.usefixtures("next_to_nothing")
def test_a_read_past_expired_messages_leads_on() -> None:
    bench = Bench(GroupConfig(kind="stream"), ttl_ms=10)
    publish_batch(bench, [Message()] * 5)
    assert pauses(lambda: bench.stream.read(NOW + 20, 1, "ann")) == 4
    assert bench.stream.next == 5
