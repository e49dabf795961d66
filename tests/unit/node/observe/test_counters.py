"""The node's counters: which event counts as what, once and only when durable; histograms at their bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import Message
from penstock.api.measures import COUNTERS, Histogram
from penstock.model.events import Event
from penstock.model.rows import BatchRow, Commit, LaneChange
from penstock.node.broker import LocalBroker
from penstock.node.observe.counters import Counters
from tests.local import open_local
from tests.nodes import node_of


def counts(measures: Counters, group: int) -> dict[str, int]:
    return {name: count for name, count in zip(COUNTERS, measures.groups[group], strict=True) if count}


@pytest.mark.parametrize(
    ("kind", "detail", "expected"),
    [
        ("claimed", "", {"delivered": 7}),
        ("acked", "", {"acked": 7}),
        ("nacked", "expired", {"nacked": 7}),  # an error's text is nobody's reason
        ("expired", "", {"lease_expired": 7}),
        ("left", "", {"left": 7}),
        ("dead", "attempts", {"dead": 7}),
        ("dead", "rejected", {"dead": 7, "rejected": 7}),
        ("dead", "expired", {"dead": 7, "expired": 7}),
        ("dropped", "expired", {"expired": 7}),
        ("dropped", "overflow", {"dropped": 7}),
        ("redriven", "attempts", {"redriven": 7}),
        ("purged", "dead", {"purged": 7}),
        ("committed", "", {"committed": 7}),
        ("sought", "", {}),
    ],
)
def test_events_are_counted_by_message(kind: str, detail: str, expected: dict[str, int]) -> None:
    measures = Counters()
    event = Event(kind, [(0, 5), (8, 10)], 0, detail=detail)  # type: ignore[arg-type]
    measures.happened(1, [event], exists=True)
    assert counts(measures, 1) == expected
    assert measures.totals == measures.groups[1]


def test_a_group_that_is_gone_counts_in_the_totals_alone() -> None:
    measures = Counters()
    measures.happened(1, [Event("acked", [(0, 3)], 0)], exists=False)
    measures.read(2, 4, exists=False)
    assert measures.groups == {}
    assert dict(zip(COUNTERS, measures.totals, strict=True)) | {"acked": 3, "delivered": 4} == dict(
        zip(COUNTERS, measures.totals, strict=True)
    )


def test_only_groups_that_are_left_are_kept() -> None:
    measures = Counters()
    for group in (1, 2, 3):
        measures.read(group, 1, exists=True)
    measures.keep({2, 9})
    assert set(measures.groups) == {2}


def test_a_histogram_at_its_bounds() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 1.1, 10.0, 10.1):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("10.0", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(22.7)


def test_a_commit_is_counted_with_its_size() -> None:
    measures = Counters()
    rows = [BatchRow(0, 3, 1, 4, b"ab", b"cd"), BatchRow(3, 4, 1, 8, b"", b"abcd")]
    measures.applied(Commit(lanes=[LaneChange(1, 0, 7, 8, batches=rows)]), 0.003)
    assert measures.commit_messages.sum == 7
    assert measures.commit_bytes.sum == 8
    assert measures.commit_seconds.cumulative()[2:4] == [("0.0025", 0), ("0.005", 1)]


def test_cache_hits_and_misses_are_counted_once_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with await open_local(tmp_path / "q.db", cache_bytes=0) as broker:
            await deliver(broker)
            assert (node_of(broker).cache.hits, node_of(broker).cache.misses) == (0, 2)
        async with await open_local(tmp_path / "r.db") as broker:
            await deliver(broker)
            assert (node_of(broker).cache.hits, node_of(broker).cache.misses) == (2, 0)

    async def deliver(broker: LocalBroker) -> None:
        await broker.declare_queue("q")
        for _ in range(2):
            await broker.publish_many("q", [Message(b"x") for _ in range(3)])
        claim = await broker.claim("q", max=6)
        assert len(claim) == 6

    asyncio.run(main())


def test_stream_reads_are_deliveries() -> None:
    async def main() -> None:
        async with await open_local(None) as broker:
            await broker.declare_queue("q", retain_messages=1_000)
            await broker.declare_group("q", "s", kind="stream")
            await broker.publish_many("q", [Message(b"x") for _ in range(5)])
            assert len(await broker.read("q", "s", max=3)) == 3
            await broker.commit("q", "s", 3)
            [group] = node_of(broker).counters.groups
            assert counts(node_of(broker).counters, group) == {"delivered": 3, "committed": 3}

    asyncio.run(main())
