"""What scans do to those who work beside them: the cache stays theirs, what is read is held, and time is left."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Message, NotFound, StoreCorrupt, encode
from penstock.embedded import open_store
from penstock.model.rows import BatchHead, BatchRow
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.limits import Limits
from penstock.store.memory.engine import MemoryStore
from penstock.store.sqlite.engine import SqliteStore
from tests.nodes import node_of
from tests.scenarios.rig import numbered


class WatchedStore(MemoryStore):
    """Says what is read, and reads only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.missing: int | None = None
        """The base of a batch that got lost."""

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        self.reads.append((start, end))
        await self.may_read.wait()
        rows = await super().read(lane, start, end, bytes_most)
        return [row for row in rows if row.base != self.missing]

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        await self.may_read.wait()
        return await super().heads(lane, start, batches_most, bytes_most)


async def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        await asyncio.sleep(0.001)


def lane_of(broker: LocalBroker, queue: str = "log") -> int:
    return node_of(broker).catalog.queues["default", queue].lanes[0]


async def fill(broker: LocalBroker, batches: int, size: int = 10) -> None:
    for number in range(batches):
        await broker.publish_batch("log", encode(numbered(size, number * size)))


# The cache -----------------------------------------------------------------------------------------------


def test_a_scan_takes_what_is_in_memory_and_pushes_nothing_out() -> None:
    async def scenario() -> None:
        store = WatchedStore()
        async with await open_store(store, SystemClock(), cache_bytes=20_000) as broker:
            await broker.declare_queue("log", retain_messages=1_000_000)
            await fill(broker, 100)
            cache, lane = node_of(broker).cache, lane_of(broker)
            kept = [base for base in range(0, 1_000, 10) if cache.has(lane, base)]
            assert 0 < len(kept) < 100
            cache.get(lane, kept[0])  # used last: it stays longest, and comes after the others
            before = (list(cache._batches), cache.bytes, cache.hits, cache.misses)
            found = await broker.scan("log", 0, 0, 1_000)
            assert [one.offset for one in found.messages()] == list(range(1_000))
            assert store.reads
            store.reads.clear()
            assert (await broker.scan("log", 0, kept[0], 1_000)).next_offset == 1_000
            assert store.reads == [], "all of it was in memory"
            assert (list(cache._batches), cache.bytes, cache.hits, cache.misses) == before, "in the same order, too"

    asyncio.run(scenario())


def test_pages_of_heads_that_others_use_stay() -> None:
    async def scenario() -> None:
        async with await open_store(WatchedStore(), SystemClock()) as broker:
            await broker.declare_queue("log", retain_messages=1_000_000)
            await fill(broker, 20)
            lane = node_of(broker).lanes.get(lane_of(broker))
            assert lane is not None
            lane.log.tail.clear()
            assert (await broker.scan("log", 0, 0, 200, payload=False)).next_offset == 200
            assert lane.log.pages == []

    asyncio.run(scenario())


# Pins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [True, False])
def test_what_is_being_read_does_not_go_meanwhile(payload: bool) -> None:
    async def scenario() -> None:
        store = WatchedStore()
        async with await open_store(store, SystemClock(), cache_bytes=0) as broker:
            await broker.declare_queue("log")
            await fill(broker, 4)
            lane = node_of(broker).lanes.get(lane_of(broker))
            assert lane is not None
            claim = await broker.claim("log", max=40)
            lane.log.tail.clear()  # so that heads must be read, too
            lane.log.pages.clear()
            store.may_read.clear()
            scan = asyncio.ensure_future(broker.scan("log", 0, 10, 40, payload=payload))
            await soon(lambda: lane.pins)
            await broker.ack(claim)  # the only group is done with all of it, and it would go
            assert lane.first <= 10
            store.may_read.set()
            found = await scan
            assert [(part.offset, part.end) for part in found.slices] == [(10, 20), (20, 30), (30, 40)]
            assert not lane.pins

    asyncio.run(scenario())


def test_a_scan_that_is_given_up_or_fails_holds_nothing() -> None:
    async def scenario() -> None:
        store = WatchedStore()
        async with await open_store(store, SystemClock(), cache_bytes=0, limits=Limits(scans=1)) as broker:
            await broker.declare_queue("log", retain_messages=1_000)
            await fill(broker, 4)
            lane = node_of(broker).lanes.get(lane_of(broker))
            assert lane is not None
            store.may_read.clear()
            scan = asyncio.ensure_future(broker.scan("log", 0, 0, 40))
            await soon(lambda: lane.pins)
            scan.cancel()
            await asyncio.wait([scan])
            assert not lane.pins
            store.may_read.set()
            assert (await broker.scan("log", 0, 0, 40)).next_offset == 40, "its place is free again"

    asyncio.run(scenario())


def test_a_queue_that_is_deleted_meanwhile_is_not_found() -> None:
    async def scenario() -> None:
        store = WatchedStore()
        async with await open_store(store, SystemClock(), cache_bytes=0) as broker:
            await broker.declare_queue("log", retain_messages=1_000)
            await fill(broker, 4)
            store.may_read.clear()
            scan = asyncio.ensure_future(broker.scan("log", 0, 0, 40))
            await soon(lambda: store.reads)
            await broker.delete_queue("log")
            store.may_read.set()
            with pytest.raises(NotFound, match="deleted while it was scanned"):
                await scan

    asyncio.run(scenario())


def test_a_hole_in_the_log_is_no_end_of_it() -> None:
    """A batch that is missing from the store is an error, in the middle of a read as well as at its start."""

    async def scenario() -> None:
        store = WatchedStore()
        async with await open_store(store, SystemClock(), cache_bytes=0) as broker:
            await broker.declare_queue("log", retain_messages=1_000)
            await fill(broker, 4)
            store.missing = 20
            for start in (0, 10, 20):
                with pytest.raises(StoreCorrupt, match=r"offsets? 20 .*should be in the store"):
                    await broker.scan("log", 0, start, 40)
            assert (await broker.scan("log", 0, 30, 40)).next_offset == 40

    asyncio.run(scenario())


# Time ----------------------------------------------------------------------------------------------------


def test_one_at_a_time_where_the_limit_says_so() -> None:
    async def scenario() -> None:
        store = WatchedStore()
        async with await open_store(store, SystemClock(), cache_bytes=0, limits=Limits(scans=1)) as broker:
            await broker.declare_queue("log", retain_messages=1_000)
            await fill(broker, 4)
            store.may_read.clear()
            scans = [asyncio.ensure_future(broker.scan("log", 0, start, start + 10)) for start in (0, 10, 20)]
            await soon(lambda: store.reads)
            await asyncio.sleep(0.01)
            assert store.reads == [(0, 10)]
            store.may_read.set()
            assert [scan.next_offset for scan in await asyncio.gather(*scans)] == [10, 20, 30]

    asyncio.run(scenario())


def test_bytes_a_second_are_what_the_limit_says() -> None:
    async def scenario() -> None:
        limits = Limits(scan_bytes_per_second=100_000)
        async with await open_store(MemoryStore(), SystemClock(), limits=limits) as broker:
            await broker.declare_queue("log", retain_messages=1_000)
            for number in range(10):
                await broker.publish("log", Message(number.to_bytes(1) * 1, headers={"pad": "x" * 5_000}))
            size = (await broker.lanes("log")).lanes[0].bytes
            began, start = time.monotonic(), 0
            while start < 10:
                start = (await broker.scan("log", 0, start, 10, max_bytes=1)).next_offset
            assert time.monotonic() - began >= size / 100_000 * 0.9

    asyncio.run(scenario())


def test_a_publisher_hardly_notices_a_scan(tmp_path: Path) -> None:
    """The middle of its answers' times beside two scans that never rest, against the same without them."""

    async def publish(broker: LocalBroker, seconds: float) -> float:
        spans: list[float] = []
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.perf_counter()
            await broker.publish("orders", Message(b"x" * 200))
            spans.append(time.perf_counter() - began)
        return statistics.median(spans)

    async def scan(broker: LocalBroker, ended: asyncio.Event) -> int:
        rows = start = 0
        while not ended.is_set():
            found = await broker.scan("log", 0, start, 200_000, where="n >= 0")
            rows += found.next_offset - start
            start = found.next_offset % 200_000
        return rows

    async def scenario() -> None:
        async with await open_store(await SqliteStore.open(tmp_path / "q.db"), SystemClock()) as broker:
            await broker.declare_queue("log", retain_messages=1_000_000)
            await broker.declare_queue("orders")
            batch = encode([Message(b"y" * 200, headers={"n": number}) for number in range(1_000)])
            for _ in range(200):
                await broker.publish_batch("log", batch)
            alone = await publish(broker, 1.0)
            ended = asyncio.Event()
            scans = [asyncio.ensure_future(scan(broker, ended)) for _ in range(2)]
            beside = await publish(broker, 2.0)
            ended.set()
            assert sum(await asyncio.gather(*scans)) > 1_000, "there was a scan to notice"
            # A step of a scan, a rest of the same length, and some room for a machine that others use.
            assert beside < alone * 3 + 0.010, f"{alone * 1000:.1f} ms alone, {beside * 1000:.1f} ms beside scans"

    asyncio.run(scenario())
