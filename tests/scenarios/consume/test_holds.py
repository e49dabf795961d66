"""Groups that hold: retention of every kind stays behind what they have committed, and goes on when they do."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import InvalidArgument, Message
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, play, turns, until

LIMITS: list[dict[str, Any]] = [
    {"retain_ms": 1},
    {"retain_bytes": 1},
    {"retain_messages": 1},
    {"retain_ms": 1, "retain_bytes": 1, "retain_messages": 1},
    {},
    {"keep_done_ms": 1},
]


async def first_kept(broker: LocalBroker, queue: str) -> int:
    page = await broker.browse(queue, max=1)
    return page.messages[0].offset if page.messages else 20


async def filled(home: Home, broker: LocalBroker, options: dict[str, Any], *, holds: bool) -> None:
    await broker.declare_queue("q", **options)
    await broker.declare_group("q", "archive", kind="stream", auto_commit=False, holds=holds)
    for number in range(20):
        await broker.publish("q", Message(b"%d" % number))
    assert len(await claim_all(broker, "q")) == 20
    home.pass_time(broker, 5_000)


@pytest.mark.parametrize("options", LIMITS, ids=lambda options: "-".join(options) or "done")
def test_nothing_beyond_the_committed_offset_goes(home: Home, options: dict[str, Any]) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await filled(home, broker, options, holds=True)

        async def reach(offset: int) -> None:
            async def reached() -> bool:
                home.pass_time(broker, 2_000)
                await broker.publish("q", Message(b"more"))  # after a restart, what is done goes with the next commits
                await claim_all(broker, "q")
                return await first_kept(broker, "q") == offset

            await until(reached)

        for committed in (0, 7, 13):
            await broker.commit("q", "archive", committed)
            await reach(committed)
            for _ in range(3):
                home.pass_time(broker, 100_000)
                await turns(50)
            assert await first_kept(broker, "q") == committed
            broker = await home.reopen(broker)
        await broker.delete_group("q", "archive")

        async def gone() -> bool:
            home.pass_time(broker, 2_000)
            await broker.publish("q", Message(b"last"))
            await claim_all(broker, "q")
            return await first_kept(broker, "q") >= 20

        await until(gone)

    play(home, scenario)


def test_without_holds_limits_pass_a_stream_group_by(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await filled(home, broker, {"retain_messages": 1}, holds=False)

        async def passed() -> bool:
            home.pass_time(broker, 2_000)
            return await first_kept(broker, "q") == 19

        await until(passed)
        # It may begin to hold later, from what is left on, and stop again.
        await broker.declare_group("q", "archive", holds=True)
        for number in range(5):
            await broker.publish("q", Message(b"%d" % number))
        await claim_all(broker, "q")
        for _ in range(3):
            home.pass_time(broker, 2_000)
            await turns(50)
        assert await first_kept(broker, "q") == 19
        assert (await broker.groups("q"))["archive"]["holds"] is True
        await broker.declare_group("q", "archive", holds=False)

        async def goes_on() -> bool:
            home.pass_time(broker, 2_000)
            return await first_kept(broker, "q") == 24

        await until(goes_on)

    play(home, scenario)


def test_holds_is_for_stream_groups(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        with pytest.raises(InvalidArgument, match="holds is for stream groups"):
            await broker.declare_group("q", "g", holds=True)
        await broker.declare_group("q", "g", kind="stream", holds=True)
        broker = await home.reopen(broker)
        assert (await broker.groups("q"))["g"] == {"kind": "stream", "holds": True}

    play(memory_home, scenario)


def test_limits_come_back_when_a_reader_has_gone(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await filled(home, broker, {"retain_messages": 1}, holds=True)
        lane = next(lane for lane in node_of(broker).lanes.loaded() if lane.config.retain_messages == 1)
        lane.pin(3)
        await broker.commit("q", "archive", 20)

        async def up_to_the_reader() -> bool:
            home.pass_time(broker, 2_000)
            return await first_kept(broker, "q") == 3

        await until(up_to_the_reader)
        for _ in range(5):  # it looks again and again, in vain
            home.pass_time(broker, 2_000)
            await turns(50)
        lane.unpin(3)

        async def further() -> bool:  # without any commit
            home.pass_time(broker, 2_000)
            await turns(50)
            return await first_kept(broker, "q") == 19

        await until(further)

    play(memory_home, scenario)


@pytest.mark.parametrize("holds", [True, False])
def test_a_queue_that_nobody_uses_stays_as_long_as_somebody_holds_it(home: Home, holds: bool) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", unused_ms=1_000)
        await broker.declare_group("q", "archive", kind="stream", holds=holds)
        await broker.publish("q", Message(b"m"))
        home.pass_time(broker, 5_000)
        await turns()
        if not holds:
            await until(lambda: not broker.knows_queue("q", "browse"))
            return
        assert "q" in await broker.queues()
        await broker.delete_group("q", "archive")
        home.pass_time(broker, 5_000)
        await until(lambda: not broker.knows_queue("q", "browse"))

    play(home, scenario)
