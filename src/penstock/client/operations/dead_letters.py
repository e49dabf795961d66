"""Dead letters of a group, over HTTP."""

from __future__ import annotations

from typing import Unpack

import msgspec

from penstock.api.arguments import span_of
from penstock.api.dead_letters import DeadLetters, DeadMessage, DeadOptions, DeadRanges, DeadReason
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests
from penstock.model import DEFAULT_GROUP
from penstock.wire.http.shapes import DeadAnswer, DeadChoice, ReasonsAnswer


class ClientDeadLetters(Requests, DeadLetters):
    """Lists, redrives and purges dead letters."""

    async def dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, max: int = 100, **choice: Unpack[DeadOptions]
    ) -> list[DeadMessage]:
        chosen = msgspec.structs.asdict(_choice(choice))
        start, end = chosen.pop("offsets") or (None, None)
        path = with_query(self._dead(queue, group), max=max, start=start, end=end, **chosen)
        answer = await self._get(DeadAnswer, path)
        return [
            DeadMessage(body.message.received(), body.reason, body.error, body.attempts, body.consumer, body.dead_ms)
            for body in answer.dead
        ]

    def _dead(self, queue: str, group: str, *more: str) -> bytes:
        return self._target("queues", queue, "groups", group, "dead", *more)

    async def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10_000
    ) -> DeadRanges:
        lane, offset = (None, None) if after is None else after
        path = with_query(self._dead(queue, group, "ranges"), lane=lane, offset=offset, max=max)
        return await self._get(DeadRanges, path)

    async def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        return (await self._get(ReasonsAnswer, self._dead(queue, group, "reasons"))).reasons

    async def redrive(self, queue: str, group: str = DEFAULT_GROUP, **choice: Unpack[DeadOptions]) -> int:
        return await self._count(self._dead(queue, group, "redrive"), _choice(choice))

    async def purge_dead(self, queue: str, group: str = DEFAULT_GROUP, **choice: Unpack[DeadOptions]) -> int:
        return await self._count(self._dead(queue, group, "purge"), _choice(choice))


def _choice(given: DeadOptions) -> DeadChoice:
    chosen = DeadChoice(**given)
    if chosen.offsets is not None:
        chosen.offsets = span_of(chosen.offsets)
    return chosen
