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


def test_a_turn_runs_what_was_ready_when_it_began() -> None:
    """In the order of asyncio's own loop: what is ready, then timers that are due, then what these make ready."""
    seen: list[str] = []

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(0.0, seen.append, "timer")
        loop.call_soon(lambda: loop.call_soon(seen.append, "next turn"))
        loop.call_soon(seen.append, "this turn")
        loop.call_soon(seen.append, "cancelled").cancel()
        loop.call_later(0.0, seen.append, "cancelled too").cancel()
        await asyncio.sleep(0.1)

    virtual = VirtualLoop()
    run(virtual, main(virtual))
    here, seen = seen, []
    real = asyncio.SelectorEventLoop()
    real.run_until_complete(main(real))
    real.close()
    assert here == seen == ["this turn", "timer", "next turn"]


def test_many_cancelled_timers_are_thrown_away() -> None:
    loop = VirtualLoop()
    seen: list[float] = []

    async def main() -> None:
        timers = [loop.call_later(index / 100, lambda: seen.append(loop.time())) for index in range(300)]
        for timer in timers[1::2] + timers[:100:2]:
            timer.cancel()
        await asyncio.sleep(10)

    run(loop, main())
    assert seen == [index / 100 for index in range(100, 300, 2)]


def test_a_callback_that_fails_stops_no_other() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        loop.call_soon(fail, AssertionError("kept"))
        loop.call_soon(fail, ValueError("a fault"))
        loop.call_soon(seen.append, "behind them")
        await asyncio.sleep(0.1)

    run(loop, main())
    assert seen == ["behind them"]
    assert len(loop.broken) == 1
    assert "kept" in loop.broken[0]


def test_the_loop_tells_whether_something_can_still_run_now() -> None:
    loop = VirtualLoop()
    told: list[bool] = []

    def tell() -> None:
        told.append(loop.has_more_now())

    async def main() -> None:
        loop.call_soon(tell)
        await asyncio.sleep(1)  # alone, until time passes
        loop.call_soon(tell)
        loop.call_soon(told.clear)
        await asyncio.sleep(1)
        loop.call_later(0, tell)
        loop.call_soon(tell)
        await asyncio.sleep(1)

    run(loop, main())
    assert told == [True, False]


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
