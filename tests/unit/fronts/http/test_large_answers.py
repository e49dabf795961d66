"""Large answers are decoded one after the other, and not for clients that have gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from penstock.fronts.answers import LARGE_BYTES, Answers
from penstock.fronts.http.handlers.large_answers import decoded_answer
from penstock.fronts.http.request import Answer


class Slice:
    unfolded = LARGE_BYTES

    def payloads(self) -> list[bytes]:
        return []


class Call:
    def __init__(self) -> None:
        self.server = self
        self.answers = Answers(100 * LARGE_BYTES)


class Making:
    """Counts how many are made at once, and in all."""

    def __init__(self) -> None:
        self.under_way = self.most = self.made = 0

    async def make(self) -> Answer:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        self.made += 1
        return Answer(200, b"")


def ask(call: Call, making: Making) -> asyncio.Task[Answer]:
    return asyncio.create_task(decoded_answer(cast("Any", call), cast("Any", [Slice()]), making.make))


def test_they_are_made_one_after_the_other() -> None:
    async def check() -> None:
        call, making = Call(), Making()
        await asyncio.gather(*(ask(call, making) for _ in range(5)))
        assert (making.most, making.made) == (1, 5)

    asyncio.run(check())


def test_for_clients_that_have_gone_none_is_made() -> None:
    async def check() -> None:
        call, making = Call(), Making()
        async with call.answers.making:
            tasks = [ask(call, making) for _ in range(5)]
            await asyncio.sleep(0)
            assert call.answers.bytes == 5 * LARGE_BYTES
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert making.made == 0
        assert call.answers.bytes == 0

    asyncio.run(check())
