"""Large answers under way: no more bytes at once than allowed, first come, first served, and nothing is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from penstock.fronts.answers import Answers, Share

Scenario = Callable[[Answers], Coroutine[None, None, None]]


def play(scenario: Scenario, bytes_most: int = 100) -> None:
    async def main() -> None:
        answers = Answers(bytes_most)
        await scenario(answers)
        assert (answers.bytes, answers.waiting) == (0, 0)
        answers.close()

    asyncio.run(main())


async def asked(answers: Answers, size: int) -> asyncio.Task[Share]:
    """One that has asked, and perhaps waits."""
    task = asyncio.create_task(answers.take(size))
    await asyncio.sleep(0)
    return task


def test_at_the_limit_and_one_past_it() -> None:
    async def scenario(answers: Answers) -> None:
        first = await answers.take(60)
        second = await answers.take(40)
        third = await asked(answers, 1)
        assert (answers.bytes, answers.waiting, third.done()) == (100, 1, False)
        second.give_back()
        (await third).give_back()
        first.give_back()

    play(scenario)


def test_one_is_let_through_however_large() -> None:
    async def scenario(answers: Answers) -> None:
        whale = await answers.take(1_000)
        small = await asked(answers, 1)
        assert not small.done()
        whale.give_back()
        (await small).give_back()

    play(scenario)


def test_first_come_first_served() -> None:
    async def scenario(answers: Answers) -> None:
        first = await answers.take(90)
        large = await asked(answers, 50)
        small = await asked(answers, 5)
        assert not large.done()
        assert not small.done(), "it would fit, but others came before it"
        first.give_back()
        (await large).give_back()
        (await small).give_back()

    play(scenario)


def test_a_client_that_goes_makes_room_for_those_behind_it() -> None:
    async def scenario(answers: Answers) -> None:
        first = await answers.take(90)
        large = await asked(answers, 50)
        small = await asked(answers, 5)
        large.cancel()
        (await small).give_back()
        first.give_back()

    play(scenario)


def test_a_client_that_goes_when_its_turn_has_come() -> None:
    async def scenario(answers: Answers) -> None:
        first = await answers.take(100)
        second = await asked(answers, 100)
        first.give_back()
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()

    play(scenario)


def test_giving_back_twice_counts_once() -> None:
    async def scenario(answers: Answers) -> None:
        first, second = await answers.take(10), await answers.take(20)
        first.give_back()
        first.give_back()
        assert answers.bytes == 20
        second.give_back()

    play(scenario)


def test_a_client_that_goes_when_room_is_given_back_takes_nobody_elses_turn() -> None:
    """Its wait is cancelled, and it still stands in line."""

    async def scenario(answers: Answers) -> None:
        first = await answers.take(100)
        going, staying = await asked(answers, 60), await asked(answers, 60)
        going.cancel()
        first.give_back()
        share = await asyncio.wait_for(staying, 5)
        assert going.cancelled()
        assert (answers.bytes, answers.waiting) == (60, 0)
        share.give_back()

    play(scenario)
