"""Filters that cost much: tried in slices, within a budget a page, and no longer than somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

from penstock import Message
from penstock.batch import Meta
from penstock.core.filters import Filter
from penstock.core.filters.filter import PREDICATE_WORK
from penstock.core.group.work import WorkGroup
from penstock.model import work
from penstock.model.events import Delivery, decode_delivery
from penstock.model.verdict import Verdict
from penstock.model.work import MESSAGE_WORK, SLICE_WORK
from penstock.node.broker import LocalBroker
from penstock.node.consume import dead_letters, scans, streams
from penstock.node.observe import history
from tests.scenarios.rig import Home, cancelled, play, texts

FILTER = "text LIKE '%a_b%'"
LENGTH = 5_000
PER_SLICE = -(-SLICE_WORK // (LENGTH + MESSAGE_WORK + PREDICATE_WORK))


async def long_texts(broker: LocalBroker, count: int, **options: Any) -> None:
    await broker.declare_queue("q", **options)
    headers = {"text": "a" * LENGTH}
    await broker.publish_many("q", [Message(str(number).encode(), headers=headers) for number in range(count - 1)])
    await broker.publish("q", Message(b"last", headers={"text": "axb"}))


class Meter:
    """How many messages a filter was tried on, and how many within one turn of the event loop at the most."""

    def __init__(self) -> None:
        self.total = self.most = self._seen = 0
        self.begun = asyncio.Event()

    def patched(self) -> Any:
        original = Filter.matches

        def counted(condition: Filter, message: Message) -> bool:
            self.total += 1
            self.begun.set()
            return original(condition, message)

        return patch.object(Filter, "matches", counted)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self.total - self._seen)
            self._seen = self.total
            await asyncio.sleep(0)


def test_others_have_their_turn_while_a_filter_is_tried(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await long_texts(broker, 50)
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            page = await broker.browse("q", filter=FILTER)
            await cancelled(watching)
        assert (texts(page.messages), page.next) == (["last"], None)
        assert (meter.total, meter.most) == (50, PER_SLICE)

    play(home, scenario)


def test_a_page_ends_where_its_filter_has_cost_enough_and_the_next_goes_on(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await long_texts(broker, 30)
        meter, pages, after = Meter(), 0, None
        found: list[str] = []
        with meter.patched(), patch.object(streams, "BROWSE_WORK_MAX", 10 * LENGTH):
            while pages == 0 or after is not None:
                page = await broker.browse("q", filter=FILTER, after=after)
                assert meter.total - 10 * pages <= 10
                found += texts(page.messages)
                after, pages = page.next, pages + 1
        assert (found, meter.total, pages) == (["last"], 30, 3)

    play(home, scenario)


def test_a_browse_that_nobody_waits_for_ends(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await long_texts(broker, 150)
        meter = Meter()
        with meter.patched():
            browsing = asyncio.create_task(broker.browse("q", filter=FILTER))
            await meter.begun.wait()
            await cancelled(browsing)
        assert meter.total < 150

    play(home, scenario)


def test_dead_letters_are_tried_in_slices(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await long_texts(broker, 50)
        await broker.reject(await broker.claim("q", max=50))
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            [dead] = await broker.dead("q", filter=FILTER)
            await cancelled(watching)
        assert dead.received.payload == b"last"
        assert (meter.total, meter.most) == (50, PER_SLICE)

    play(home, scenario)


def test_a_scan_tries_its_condition_in_small_steps(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await long_texts(broker, 50)
        tried: list[int] = []
        original = Filter.select

        def noted(condition: Filter, columns: Meta, indexes: Iterable[int]) -> list[int]:
            chosen = list(indexes)
            tried.append(len(chosen))
            return original(condition, columns, chosen)

        with patch.object(Filter, "select", noted):
            scan = await broker.scan("q", 0, 0, 50, where=FILTER)
        assert scan.next_offset == 50
        assert [part.rows for part in scan.slices] == [b"", None]
        assert sum(tried) == 50
        assert max(tried) == -(-scans.STEP_WORK // (LENGTH + PREDICATE_WORK))

    play(home, scenario)


def test_a_history_is_looked_for_in_slices(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        for number in range(20):
            await broker.publish("q", Message(str(number).encode()))
            await broker.ack(await broker.claim("q"))
        total = most = 0
        original = decode_delivery

        def noted(payload: bytes) -> Delivery:
            nonlocal total
            total += 1
            return original(payload)

        async def watch() -> None:
            nonlocal most
            seen = 0
            while True:
                seen, most = total, max(most, total - seen)
                await asyncio.sleep(0)

        with patch.object(history, "decode_delivery", noted), patch.object(work, "SLICE_WORK", 5 * MESSAGE_WORK):
            watching = asyncio.create_task(watch())
            found = await broker.history("q", 0)
            await cancelled(watching)
        assert [entry.kind for entry in found] == ["claimed", "acked"]
        assert total >= 20
        assert most <= 6

    play(home, scenario)


def test_many_dead_letters_are_redriven_and_purged_some_at_a_time(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", [Message(str(number).encode()) for number in range(20)])
        lease = (await broker.claim("q", max=20)).lease
        assert lease is not None
        await broker.settle(lease, [Verdict("reject", offset, offset + 1, None, str(offset)) for offset in range(20)])
        at_a_time: list[int] = []
        originals = WorkGroup.redrive, WorkGroup.purge_dead

        def redrive(group: WorkGroup, now_ms: int, ranges: list[tuple[int, int]]) -> int:
            at_a_time.append(len(ranges))
            return originals[0](group, now_ms, ranges)

        def purge(group: WorkGroup, now_ms: int, ranges: list[tuple[int, int]]) -> int:
            at_a_time.append(len(ranges))
            return originals[1](group, now_ms, ranges)

        with (
            patch.object(dead_letters, "RANGES_AT_ONCE", 4),
            patch.object(WorkGroup, "redrive", redrive),
            patch.object(WorkGroup, "purge_dead", purge),
        ):
            assert await broker.redrive("q", offsets=(0, 10)) == 10
            assert await broker.purge_dead("q") == 10
        assert at_a_time == [4, 4, 2, 4, 4, 2]
        assert len((await broker.claim("q", max=20)).messages) == 10

    play(home, scenario)
