"""Filters that cost much: tried in slices, within a budget a page, and no longer than somebody waits."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from penstock import Message
from penstock.core.filters import Filter
from penstock.model.work import MESSAGE_WORK, SLICE_WORK
from penstock.node.broker import LocalBroker
from penstock.node.consume import streams
from tests.scenarios.rig import Home, cancelled, play, texts

FILTER = "text LIKE '%a_b%'"
LENGTH = 5_000
PER_SLICE = -(-SLICE_WORK // (LENGTH + MESSAGE_WORK))


async def long_texts(broker: LocalBroker, count: int, **options: Any) -> None:
    await broker.declare_queue("q", **options)
    headers = {"text": "a" * LENGTH}
    await broker.publish_many("q", [Message(str(number).encode(), headers=headers) for number in range(count - 1)])
    await broker.publish("q", Message(b"last", headers={"text": "axb"}))


class Meter:
    """How many messages a filter was tried on, and how many within one turn of the event loop at the most."""

    def __init__(self) -> None:
        self.total = self.most = self._seen = 0

    def patched(self) -> Any:
        original = Filter.matches

        def counted(condition: Filter, message: Message) -> bool:
            self.total += 1
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
            while not meter.total:
                await asyncio.sleep(0)
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
