"""Listing queues where there are many: page by page, and with turns for others between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from penstock.api.slices import SLICE_ITEMS
from penstock.node.broker import LocalBroker
from tests.local import open_local

COUNT = 3 * SLICE_ITEMS


async def with_queues(count: int) -> LocalBroker:
    broker = await open_local()
    await asyncio.gather(*(broker.declare_queue(f"q-{number:05}") for number in range(count)))
    return broker


async def turns_of_others(work: Awaitable[object]) -> int:
    """How often something else had its turn meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        await work
    finally:
        counting.cancel()
    return turns


def test_pages_are_by_name_and_complete() -> None:
    async def check() -> None:
        async with await with_queues(25) as broker:
            await broker.declare_queue("another")
            await broker.declare_queue("q-00003", max_attempts=7)
            await broker.in_namespace("elsewhere").declare_queue("q-99999")
            found: list[str] = []
            after = ""
            while True:
                page = await broker.queues_page("q-", after=after, max=10)
                assert len(page.queues) <= 10
                found += [name for name, _ in page.queues]
                if page.next is None:
                    break
                assert page.next == found[-1]
                after = page.next
            assert found == [f"q-{number:05}" for number in range(25)]
            assert dict((await broker.queues_page("q-", max=25)).queues)["q-00003"] == {"max_attempts": 7}
            assert (await broker.queues_page("q-", max=25)).next is None
            assert (await broker.queues_page("q-", max=24)).next == "q-00023"
            assert (await broker.queues_page("nothing")).queues == []

    asyncio.run(check())


def test_others_have_their_turn_while_many_queues_are_looked_through() -> None:
    async def check() -> None:
        async with await with_queues(COUNT) as broker:
            for work in (broker.queues(), broker.queues_page(max=10), broker.queues("nothing")):
                assert await turns_of_others(work) >= COUNT // SLICE_ITEMS

    asyncio.run(check())
