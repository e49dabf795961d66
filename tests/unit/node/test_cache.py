"""The hot tail: what it keeps, what it lets go, and that it forgets what is gone from the log."""

from __future__ import annotations

import asyncio
import os

from penstock import Message
from penstock.batch import encode
from penstock.model.rows import BatchRow
from penstock.node.cache import BatchCache
from tests.local import open_local
from tests.nodes import node_of


def row(base: int, count: int = 1) -> BatchRow:
    batch = encode([Message(b"%d" % number) for number in range(base, base + count)])
    return BatchRow(base, count, 0, 0, batch.meta, batch.body)


def filled(lane: int, *rows: BatchRow) -> BatchCache:
    cache = BatchCache(1 << 20)
    for one in rows:
        cache.put(lane, one)
    return cache


def kept(cache: BatchCache, lane: int = 7) -> list[int]:
    return [base for base in range(100) if cache.has(lane, base)]


def test_what_was_trimmed_is_forgotten() -> None:
    cache = filled(7, row(0, 3), row(3), row(4, 2), row(6))
    left = cache.get(7, 6)
    assert left is not None
    cache.trimmed(7, 0, 6)
    assert kept(cache) == [6]
    assert cache.bytes == left.cost
    cache.trimmed(7, 6, 7)
    assert cache.bytes == 0


def test_other_lanes_keep_theirs() -> None:
    cache = filled(7, row(0), row(1))
    cache.put(8, row(0))
    cache.trimmed(7, 0, 2)
    assert (kept(cache, 7), kept(cache, 8)) == ([], [0])


def test_a_trim_of_nothing_forgets_nothing() -> None:
    cache = filled(7, row(0), row(1))
    cache.trimmed(7, 0, 0)
    cache.trimmed(7, 1, 1)
    cache.trimmed(9, 0, 2)
    assert kept(cache) == [0, 1]


def test_behind_a_gap_batches_are_pushed_out_in_their_time() -> None:
    """Where a batch was pushed out before, the bounds of those behind it are not known: they grow old and go."""
    cache = filled(7, row(0), row(1, 2), row(3), row(4))
    cache.forget(7, 1)
    cache.trimmed(7, 0, 4)
    assert kept(cache) == [3, 4]
    cache.trimmed(7, 4, 5)
    assert kept(cache) == [3]
    cost = cache.bytes
    cache.bytes_max = 2 * cost
    for base in (8, 9):
        cache.put(7, row(base))
    assert kept(cache) == [8, 9]
    assert cache.bytes == 2 * cost


def test_the_bytes_are_those_of_what_is_kept_after_any_order_of_steps() -> None:
    cache = filled(7, *(row(base) for base in range(10)))
    cache.put(7, row(3))  # in place of the older one
    cache.get(7, 0)
    cache.trimmed(7, 0, 5)
    batches = [cache.get(7, base) for base in kept(cache)]
    assert kept(cache) == [5, 6, 7, 8, 9]
    assert cache.bytes == sum(batch.cost for batch in batches if batch is not None)


def test_a_queue_that_is_worked_off_leaves_nothing_in_memory() -> None:
    async def story() -> None:
        async with await open_local(None, events=False) as broker:
            await broker.declare_queue("q")
            node = node_of(broker)
            [lane_id] = node.catalog.queue("default", "q").lanes
            for number in range(50):
                await broker.publish("q", Message(b"%d" % number * 100))
            await broker.claim("q", max=30, lease_seconds=3_600)
            rest = await broker.claim("q", max=100)
            assert rest.offsets() == list(range(30, 50))
            full = node.cache.bytes
            await broker.ack(rest)
            assert node.cache.bytes == full, "those before them are still leased, so the log keeps them all"
            await broker.seek("q", offset=20)
            left = sum(batch.cost for base in range(20, 50) if (batch := node.cache.get(lane_id, base)) is not None)
            assert 0 < left == node.cache.bytes < full
            while len(claim := await broker.claim("q", max=7)):
                await broker.ack(claim)
            assert node.cache.bytes == 0
            await broker.publish("q", Message(b"another"))
            assert (await broker.claim("q")).payloads() == [b"another"]

    asyncio.run(story())


def test_a_log_with_limits_leaves_in_memory_what_it_keeps() -> None:
    async def story() -> None:
        async with await open_local(None, events=False) as broker:
            await broker.declare_queue("log", retain_messages=10)
            node = node_of(broker)
            [lane_id] = node.catalog.queue("default", "log").lanes
            for number in range(100):
                await broker.publish("log", Message(b"%d" % number))
            deadline = asyncio.get_running_loop().time() + 20
            while (await broker.stats("log")).messages > 10:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            await node.commits.commit()
            assert [base for base in range(100) if node.cache.has(lane_id, base)] == list(range(90, 100))

    asyncio.run(story())


def test_a_backlog_of_large_messages_is_read_from_memory_as_far_as_it_fits() -> None:
    """What is behind it is not put there: it would push out what is read sooner."""

    async def story() -> None:
        async with await open_local(None, events=False, cache_bytes=1_000_000) as broker:
            await broker.declare_queue("q")
            await broker.declare_group("q", "default")
            node = node_of(broker)
            [lane_id] = node.catalog.queue("default", "q").lanes
            for _ in range(15):
                await broker.publish_many("q", [Message(os.urandom(5_000)) for _ in range(20)])
            assert [base for base in range(0, 300, 20) if node.cache.has(lane_id, base)] == list(range(0, 180, 20))
            assert 900_000 < node.cache.bytes < 1_000_000

    asyncio.run(story())
