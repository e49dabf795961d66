"""What scans may take of a node: places, bytes a second, and half of the loop's time while others work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.model.errors import Overloaded
from penstock.node.consume import scan_limit
from penstock.node.consume.scan_limit import ScanLimit
from tests.simulation.virtual_loop import VirtualLoop, run


class Others:
    """What a node does beside scans."""

    commits = 0

    def count(self) -> int:
        return self.commits


def play(story: Coroutine[Any, Any, None]) -> None:
    """On a loop whose time passes only where somebody sleeps: spans are exact."""
    loop = VirtualLoop(turns_max=20_000)
    began.clear()
    began.append(loop.time())
    run(loop, story)


began: list[float] = []


def now() -> float:
    """Seconds since the story began."""
    return asyncio.get_running_loop().time() - began[0]


def test_so_many_at_a_time_and_the_others_in_their_order() -> None:
    async def story() -> None:
        limit = ScanLimit(2, 0, Others().count)
        inside: list[int] = []
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            async with limit.place():
                inside.append(number)
                most = max(most, len(inside) - len(left))
                await asyncio.sleep(1.0)
                left.append(number)

        left: list[int] = []
        await asyncio.gather(*map(one, range(6)))
        assert (inside, most) == ([0, 1, 2, 3, 4, 5], 2)
        assert now() == pytest.approx(3.0)

    play(story())


def test_who_finds_no_place_in_time_is_turned_away() -> None:
    async def story() -> None:
        limit = ScanLimit(1, 0, Others().count)
        async with limit.place():
            with pytest.raises(Overloaded, match="1 scans were under way for 10 seconds"):
                async with limit.place():
                    pytest.fail("there was no place")
            assert now() == pytest.approx(scan_limit.LINE_SECONDS)
        async with limit.place():
            pass

    play(story())


def test_a_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_limit, "LINE_MAX", 3)

    async def story() -> None:
        limit = ScanLimit(1, 0, Others().count)

        async def wait() -> None:
            async with limit.place():
                pass

        async with limit.place():
            waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="3 scans are waiting"):
                await wait()
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
            waiting.append(asyncio.ensure_future(wait()))  # its place in the line is free again
        await asyncio.gather(*waiting[1:])

    play(story())


def test_bytes_a_second() -> None:
    async def story() -> None:
        limit = ScanLimit(2, 1_000, Others().count)
        assert limit.bytes_most(10_000_000) == 4_000, "an answer takes no longer than a client waits"
        assert limit.bytes_most(100) == 100

        async def scan() -> None:
            for _ in range(3):
                async with limit.place():
                    await limit.used(0.0, 1_000)

        await asyncio.gather(scan(), scan())
        assert now() == pytest.approx(6.0), "two scans share the one allowance"

    play(story())


def test_without_a_limit_on_bytes_nobody_waits() -> None:
    async def story() -> None:
        limit = ScanLimit(2, 0, Others().count)
        assert limit.bytes_most(10_000_000) == 10_000_000
        for _ in range(100):
            async with limit.place():
                await limit.used(1.0, 10_000_000)
        assert now() == pytest.approx(0.0)

    play(story())


def test_half_of_the_time_is_left_to_others_while_they_work() -> None:
    async def story() -> None:
        others = Others()
        limit = ScanLimit(2, 0, others.count)
        held = 0.0

        async def scan() -> None:
            nonlocal held
            for _ in range(10):
                others.commits += 1
                async with limit.place():
                    held += 0.02
                    await limit.used(0.02)

        await asyncio.gather(scan(), scan())
        assert now() == pytest.approx(held), "all scans together hold the loop no longer than they leave it"

    play(story())


def test_sending_counts_too() -> None:
    async def story() -> None:
        others = Others()
        limit = ScanLimit(1, 0, others.count)
        others.commits += 1
        async with limit.place():
            await limit.used(0.0, 8 * 1024 * 1024)
        assert now() == pytest.approx(8 * 1024 * 1024 * scan_limit.SEND_SECONDS_PER_BYTE)

    play(story())


def test_others_count_for_a_while_after_they_worked() -> None:
    async def story() -> None:
        others = Others()
        limit = ScanLimit(1, 0, others.count)
        others.commits += 1
        await limit.used(0.01)
        assert now() == pytest.approx(0.01)
        await limit.used(0.01)
        assert now() == pytest.approx(0.02)
        await asyncio.sleep(scan_limit.OTHERS_SECONDS)
        before = now()
        await limit.used(0.01)
        assert now() == pytest.approx(before), "nobody is there to leave it to"

    play(story())
