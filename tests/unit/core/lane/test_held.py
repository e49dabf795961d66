"""A lane remembers the group that holds its log back: what else lets the log go must not be missed for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.group.settings import settings_of
from penstock.model import GroupConfig, QueueConfig
from tests.unit.core.lanes import GROUP, Bench, plain

NOW = 1_000_000
SLOW, SLOWER = 2, 3


def claimed_by_one() -> Bench:
    """Ten batches of one message each. Group 1 is done with eight, another with four, a third with none."""
    bench = Bench()
    for group in (SLOW, SLOWER):
        bench.lane.add_group(group, settings_of(QueueConfig(), GroupConfig()), 0)
    for _ in range(10):
        bench.publish(NOW, *plain(1))
    bench.lane.work(GROUP).claim(NOW, 8, "ann", 1, settle=True)
    take(bench, SLOW, 4)
    bench.commit(NOW)
    assert bench.lane.first == 0
    return bench


def take(bench: Bench, group: int, most: int) -> None:
    for lease in range(most):  # each claim ends with its batch
        bench.lane.work(group).claim(NOW, 1, "bob", 100 * group + lease, settle=True)


LET_GO: dict[str, tuple[Callable[[Bench], object], int]] = {
    "the group itself moves on": (lambda bench: take(bench, SLOWER, 3), 3),
    "it moves past the next one": (lambda bench: take(bench, SLOWER, 6), 4),
    "it is removed": (lambda bench: bench.lane.remove_group(SLOWER), 4),
    "it is purged": (lambda bench: bench.lane.work(SLOWER).purge(NOW), 4),
}


@pytest.mark.parametrize("what", LET_GO)
def test_the_log_goes_when(what: str) -> None:
    bench = claimed_by_one()
    command, first = LET_GO[what]
    command(bench)
    bench.commit(NOW)
    assert bench.lane.first == first


def test_what_another_group_does_lets_nothing_go() -> None:
    bench = claimed_by_one()
    take(bench, SLOW, 2)
    bench.commit(NOW)
    assert bench.lane.first == 0


def test_the_log_goes_when_a_queue_that_kept_it_by_age_does_not_any_more() -> None:
    bench = claimed_by_one()
    bench.lane.configure(QueueConfig(retain_ms=60_000), {})
    take(bench, SLOWER, 10)
    bench.commit(NOW)
    assert bench.lane.first == 0
    bench.lane.configure(QueueConfig(), {})
    take(bench, SLOW, 1)
    bench.commit(NOW)
    assert bench.lane.first == 5


def test_the_log_goes_when_a_reader_has_let_go_of_it() -> None:
    bench = claimed_by_one()
    bench.lane.pin(2)
    take(bench, SLOWER, 4)
    bench.commit(NOW)
    assert bench.lane.first == 2
    bench.lane.unpin(2)
    bench.commit(NOW)
    assert bench.lane.first == 4


def test_the_log_goes_when_a_head_that_was_missing_has_been_read() -> None:
    bench = claimed_by_one()
    bench.reload()
    bench.lane.add_group(SLOWER, settings_of(QueueConfig(), GroupConfig()), 0)
    for group in (GROUP, SLOWER):
        bench.lane.groups[group].next = 6
        bench.lane.mark(bench.lane.groups[group])
    bench.commit(NOW)
    assert (bench.lane.first, bench.lane.trim_wants) == (0, 6)
    bench.lane.log.feed(bench.store.heads(6, 1))
    bench.lane.trim_again()
    bench.commit(NOW)
    assert bench.lane.first == 6


def test_a_group_that_is_behind_counts_again_after_a_seek() -> None:
    bench = claimed_by_one()
    take(bench, SLOWER, 3)
    bench.commit(NOW)
    bench.lane.work(GROUP).seek(NOW, 3)
    take(bench, SLOWER, 4)
    bench.commit(NOW)
    assert bench.lane.first == 3
