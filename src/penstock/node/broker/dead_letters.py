"""Dead letters of a group. Next stop: `node/consume/dead_letters.py`."""

from __future__ import annotations

from typing import Unpack

from penstock.api.dead_letters import DeadLetters, DeadList, DeadOptions, DeadPage, DeadRanges, DeadReason
from penstock.model import BATCH_MESSAGES_MAX, DEFAULT_GROUP, check_integer
from penstock.node.arguments import choice_of, place_after
from penstock.node.broker.names import Names


class LocalDeadLetters(Names, DeadLetters):
    """Lists, redrives and purges dead letters."""

    async def dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, max: int = 100, **choice: Unpack[DeadOptions]
    ) -> DeadList:
        home = self._queue(queue, "browse")
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        chosen = choice_of(home, **choice)
        return await self._services.dead_letters.listed(home, self._group(home, group), chosen, max)

    async def dead_page(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 100
    ) -> DeadPage:
        home = self._queue(queue, "browse")
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        start = (home.lanes[0], 0) if after is None else place_after(after, home)
        return await self._services.dead_letters.page(home, self._group(home, group), start, max)

    async def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10_000
    ) -> DeadRanges:
        home = self._queue(queue, "browse")
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        start = (home.lanes[0], 0) if after is None else place_after(after, home)
        return await self._services.dead_letters.ranges(home, self._group(home, group), start, max)

    async def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        home = self._queue(queue, "browse")
        return await self._services.dead_letters.reasons(home, self._group(home, group))

    async def redrive(self, queue: str, group: str = DEFAULT_GROUP, **choice: Unpack[DeadOptions]) -> int:
        home = self._queue(queue, "manage")
        chosen = choice_of(home, **choice)
        return await self._services.dead_letters.redrive(home, self._group(home, group), chosen)

    async def purge_dead(self, queue: str, group: str = DEFAULT_GROUP, **choice: Unpack[DeadOptions]) -> int:
        home = self._queue(queue, "manage")
        chosen = choice_of(home, **choice)
        return await self._services.dead_letters.purge(home, self._group(home, group), chosen)
