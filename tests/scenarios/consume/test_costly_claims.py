"""Claims and reads through filters that cost much: other work has its turn, and every group comes to the end."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from penstock import Message
from penstock.batch import Meta
from penstock.core.filters import Filter
from penstock.model.work import SLICE_WORK, Budget, Pause
from penstock.node.broker import LocalBroker
from penstock.node.consume import waiters
from tests.scenarios.rig import Home, cancelled, play, texts, until

FILTER = "text LIKE '%a_b%'"
LENGTH = 5_000
COUNT = 100
AT_ONCE = SLICE_WORK + LENGTH
"""The last message may be any."""


class Meter:
    """How many messages filters were tried on, and the most work within one turn of the event loop."""

    def __init__(self) -> None:
        self.total = self.most = self._work = self._seen = 0
        self.begun = asyncio.Event()

    def patched(self) -> Any:
        original = Filter.matches_at

        def counted(condition: Filter, columns: Meta, index: int) -> bool:
            self.total += 1
            self.begun.set()
            self._work += condition.work_at(columns, index)
            return original(condition, columns, index)

        return patch.object(Filter, "matches_at", counted)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self._work - self._seen)
            self._seen = self._work
            await asyncio.sleep(0)


async def publish_long(broker: LocalBroker) -> None:
    """Messages that the filter passes over, and behind them one that it finds."""
    headers = {"text": "a" * LENGTH}
    await broker.publish_many("q", [Message(str(number).encode(), headers=headers) for number in range(COUNT)])
    await broker.publish("q", Message(b"last", headers={"text": "axb"}))


def test_others_have_their_turn_while_a_claim_goes_through_a_filter(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "g", filter=FILTER)
        await publish_long(broker)
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            claim = await broker.claim("q", group="g", max=10)
            await cancelled(watching)
        assert texts(claim.messages) == ["last"]
        assert meter.total == COUNT + 1
        assert SLICE_WORK // 2 < meter.most <= AT_ONCE

    play(home, scenario)


def test_groups_that_wait_are_served_in_turns(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        for name in ("all of it", "filtered", "nothing"):
            condition = {"all of it": "TRUE", "filtered": FILTER, "nothing": FILTER + " AND text = 'none'"}[name]
            await broker.declare_group("q", name, filter=condition)
        meter = Meter()
        claims = [
            asyncio.create_task(broker.claim("q", group=name, max=1_000, wait=60))
            for name in ("nothing", "filtered", "all of it")
        ]
        await until(lambda: broker._services.waiters.count == 3)
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            await publish_long(broker)
            nothing, filtered, everything = claims
            assert texts((await filtered).messages) == ["last"]
            assert (await everything).messages
            await cancelled(watching)
            await cancelled(nothing)
            assert (await broker.claim("q", group="nothing")).messages == []
        assert meter.most <= 3 * AT_ONCE  # before a commit, after one, and what was paused: rarely in one turn
        assert meter.total <= 3 * (COUNT + 1)  # each group looked at each message once

    play(home, scenario)


def test_a_claim_that_nobody_waits_for_ends_its_walk(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "g", filter=FILTER)
        await publish_long(broker)
        meter = Meter()
        with meter.patched():
            claiming = asyncio.create_task(broker.claim("q", group="g", max=10))
            await meter.begun.wait()
            await cancelled(claiming)
            assert meter.total < COUNT
            assert texts((await broker.claim("q", group="g", max=10)).messages) == ["last"]
        assert meter.total == COUNT + 1

    play(home, scenario)


def test_a_stream_is_read_through_its_filter_in_slices(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", stream=True)
        await broker.declare_group("q", "s", kind="stream", filter=FILTER)
        await publish_long(broker)
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            read = await broker.read("q", "s")
            await cancelled(watching)
        assert texts(read.messages) == ["last"]
        assert meter.total == COUNT + 1
        assert SLICE_WORK // 2 < meter.most <= AT_ONCE

    play(home, scenario)


def test_expired_messages_are_swept_through_a_filter_in_slices(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ttl_ms=200)
        await broker.declare_group("q", "g", filter=FILTER, dead_kept=True, expired="dead")
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            await publish_long(broker)
            dead: list[Any] = []
            while not dead:
                await asyncio.sleep(0.01)
                dead = await broker.dead("q", group="g")
            await cancelled(watching)
        assert [one.received.payload for one in dead] == [b"last"]
        assert meter.total == COUNT + 1
        assert SLICE_WORK // 2 < meter.most <= AT_ONCE

    play(home, scenario)


def test_many_consumers_in_line_are_served_in_turns(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        claims = [asyncio.create_task(broker.claim("q", wait=60)) for _ in range(30)]
        await until(lambda: broker._services.waiters.count == 30)
        served, most = 0, 0
        original = waiters.Waiters.take

        def counted(self: waiters.Waiters, *args: Any, **options: Any) -> Any:
            nonlocal served
            served += 1
            return original(self, *args, **options)

        async def watch() -> None:
            nonlocal most
            seen = 0
            while True:
                seen, most = served, max(most, served - seen)
                await asyncio.sleep(0)

        with (
            patch.object(waiters.Waiters, "take", counted),
            patch.object(waiters, "SERVE_WORK", SLICE_WORK // 5),
        ):
            watching = asyncio.create_task(watch())
            await broker.publish_many("q", [Message(str(number).encode()) for number in range(30)])
            got = [texts((await claim).messages) for claim in claims]
            await cancelled(watching)
        assert got == [[str(number)] for number in range(30)]
        assert most <= 2 * 5

    play(home, scenario)


def test_a_group_that_was_not_reached_comes_first_in_the_next_turn(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        names = ("a", "b", "c", "d")
        for name in names:
            await broker.declare_group("q", name)
        claims = [asyncio.create_task(broker.claim("q", group=name, wait=60)) for name in names]
        await until(lambda: broker._services.waiters.count == len(names))
        home_queue = broker._services.catalog.queues["default", "q"]
        ids = {home_queue.groups[name].id: name for name in names}
        turns: list[str] = []

        def serve_line(_: waiters.Waiters, _lane: Any, group_id: int, line: Any, budget: Budget) -> None:
            turns.append(ids[group_id])
            if budget.left <= 0:
                raise Pause
            budget.left -= SLICE_WORK // 2
            if len(turns) > 12:
                for waiter in line:
                    waiter.future.set_result(None)

        with patch.object(waiters.Waiters, "_serve_line", serve_line):
            lane = broker._services.lanes.get(home_queue.lanes[0])
            assert lane is not None
            broker._services.waiters.serve(lane)
            await asyncio.gather(*claims)
        assert "".join(turns[:12]) == "abc" + "cda" + "abc" + "cda"

    play(home, scenario)
