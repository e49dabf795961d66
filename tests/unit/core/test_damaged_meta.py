"""Batches whose metadata fails its checksum: dead as a whole for work groups, a gap for streams; others flow around."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.log import DAMAGED
from penstock.model import GroupConfig, Message
from tests.damage import flipped
from tests.unit.core.lanes import Bench, keyed, plain

GROUPS = [
    GroupConfig(),
    GroupConfig(ordered=True),
    GroupConfig(prioritized=True),
    GroupConfig(filter="$key IS NULL"),
]


def bench_with(group: GroupConfig, *damaged: int, **options: Any) -> Bench:
    """Three batches of two messages of one partition, of which those at these offsets are damaged; loaded anew."""
    bench = Bench(group, **options)
    for _ in range(3):
        bench.publish(0, *keyed("p", "p"))
    for base in damaged:
        row = bench.store.batches[base]
        bench.store.batches[base] = replace(row, meta=flipped(row.meta, -1))
    bench.reload()
    return bench


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_it_is_dead_and_what_is_around_it_is_handed_out(group: GroupConfig, most: int) -> None:
    bench = bench_with(group, 2)
    found: list[int] = []
    for lease in range(1, 20):
        claimed = bench.claim(10, most, lease)
        found += claimed
        bench.lane.check()
        if not claimed:
            break
        bench.settle(10, lease, "ack")
    assert found == [0, 1, 4, 5]
    assert bench.dead() == [2, 3]
    [row] = bench.work.dead.overlapping(0, 100)
    assert (row.reason, row.attempts, row.consumer) == ("damaged", 0, "")
    assert bench.commit(10) is not None
    bench.reload()
    assert bench.dead() == [2, 3]


def test_it_locks_no_partition() -> None:
    bench = bench_with(GroupConfig(ordered=True), 0)
    assert bench.claim(10, 1) == [2]
    assert bench.claim(10, 1, lease=2) == []  # the partition is locked by what was handed out, as ever
    bench.settle(10, 1, "ack")
    assert bench.claim(10, 1, lease=3) == [3]


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_redriven_comes_again(group: GroupConfig) -> None:
    """Whoever claims it finds the damage in the bytes, and sets it aside again."""
    bench = bench_with(group, 2)
    bench.lane.log.feed(bench.store.heads(0, 3))
    assert bench.claim(10, 100) == [0, 1, 4, 5]
    assert bench.ask(lambda: bench.work.redrive(20, [(0, 100)])) == 2
    assert bench.claim(20, 100, lease=2) == [2, 3]
    bench.work.set_aside(20, 2, 2, 4, "damaged again")
    assert bench.dead() == [2, 3]
    bench.lane.check()


@pytest.mark.parametrize("group", [GroupConfig(), GroupConfig(filter="$key IS NULL")])
def test_a_ttl_does_not_hide_it(group: GroupConfig) -> None:
    bench = bench_with(group, 2, ttl_ms=100)
    bench.ask(lambda: bench.lane.tick(1_000))
    assert bench.work.next == 6
    assert bench.dead() == [2, 3]
    bench.lane.check()


@pytest.mark.parametrize("group", [GroupConfig(kind="stream"), GroupConfig(kind="stream", filter="$key IS NULL")])
def test_a_stream_reads_it_alone(group: GroupConfig) -> None:
    bench = bench_with(group, 2)
    reads = [bench.ask(lambda: bench.stream.read(10, 3, "ann")) for _ in range(4)]
    assert reads == [[(0, 2)], [(2, 4)], [(4, 6)], []]
    bench.lane.check()


def test_a_stream_passes_over_the_rest_of_a_batch_unless_it_was_moved() -> None:
    bench = Bench(GroupConfig(kind="stream"))
    bench.publish(0, *plain(10))
    assert bench.stream.read(10, 2, "ann") == [(0, 2)]
    bench.stream.pass_over("ann", 0, 10)
    assert (bench.stream.next, bench.stream.committed) == (10, 0)
    bench.stream.read(20, 2, "ann")  # as any read, it commits what was before
    assert bench.stream.committed == 10
    bench.stream.seek(30, 0)
    bench.stream.pass_over("ann", 0, 10)
    assert bench.stream.next == 0
    bench.lane.check()


def test_heads_say_which_are_damaged() -> None:
    bench = bench_with(GroupConfig(), 0, 4)
    assert bench.lane.log.feed(bench.store.heads(0, 3)) == [(0, 2), (4, 6)]
    assert [bool(bench.lane.log.find(base).columns & DAMAGED) for base in (0, 2, 4)] == [True, False, True]


def test_a_batch_without_metadata_has_none_that_could_be_damaged() -> None:
    bench = Bench()
    bench.publish(0, Message(b"plain"))
    bench.reload()
    assert bench.lane.log.feed(bench.store.heads(0, 1)) == []
