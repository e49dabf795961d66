"""The loop and the clock that everything in a simulation stands on."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.virtual_loop import EPOCH_MS, SimulatedClock, Stuck, VirtualLoop, run


def test_an_hour_passes_at_once() -> None:
    loop = VirtualLoop()
    clock = SimulatedClock(loop)

    async def sleep() -> int:
        await asyncio.sleep(3600)
        return clock.now_ms()

    assert run(loop, sleep()) == EPOCH_MS + 3_600_000


def test_timers_fire_in_order_of_time() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    async def main() -> None:
        loop.call_later(0.2, seen.append, "second")
        loop.call_later(0.1, seen.append, "first")
        loop.call_later(0.3, seen.append, "third")
        await asyncio.sleep(1)

    run(loop, main())
    assert seen == ["first", "second", "third"]


def test_a_deadlock_is_an_error() -> None:
    loop = VirtualLoop()

    async def wait_for_nobody() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing is left"):
        run(loop, wait_for_nobody())


def test_a_program_that_spins_is_an_error() -> None:
    loop = VirtualLoop(turns_max=1_000)

    async def spin() -> None:
        while loop.is_running():  # for ever
            await asyncio.sleep(0)
            assert loop.time() == 0.0

    with pytest.raises(Stuck, match="spins"):
        run(loop, spin())


def test_what_is_left_behind_is_ended() -> None:
    loop = VirtualLoop()
    ended: list[str] = []

    async def linger() -> None:
        try:
            await loop.create_future()
        finally:
            ended.append("lingering")

    async def main() -> None:
        task = loop.create_task(linger())
        await asyncio.sleep(0)
        assert not task.done()

    run(loop, main())
    assert ended == ["lingering"]
