"""Dead letters of a group, over HTTP."""

from __future__ import annotations

from penstock.api.arguments import span_of
from penstock.api.dead_letters import DeadLetters, DeadMessage, DeadRanges, DeadReason
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests
from penstock.model import DEFAULT_GROUP
from penstock.wire.http.shapes import (
    DeadAnswer,
    DeadChoice,
    ReasonsAnswer,
)


class ClientDeadLetters(Requests, DeadLetters):
    """Lists, redrives and purges dead letters."""

    async def dead(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        max: int = 100,
        reason: str | None = None,
        error: str | None = None,
        offsets: tuple[int, int] | None = None,
        filter: str | None = None,
        lane: int | None = None,
        until_ms: int | None = None,
    ) -> list[DeadMessage]:
        start, end = (None, None) if offsets is None else span_of(offsets)
        path = with_query(
            self._dead(queue, group),
            max=max,
            reason=reason,
            error=error,
            start=start,
            end=end,
            filter=filter,
            lane=lane,
            until_ms=until_ms,
        )
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

    async def redrive(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        reason: str | None = None,
        error: str | None = None,
        offsets: tuple[int, int] | None = None,
        filter: str | None = None,
        lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:
        choice = DeadChoice(
            reason=reason,
            error=error,
            offsets=offsets and span_of(offsets),
            filter=filter,
            lane=lane,
            until_ms=until_ms,
        )
        return await self._count(self._dead(queue, group, "redrive"), choice)

    async def purge_dead(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        reason: str | None = None,
        error: str | None = None,
        offsets: tuple[int, int] | None = None,
        filter: str | None = None,
        lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:
        choice = DeadChoice(
            reason=reason,
            error=error,
            offsets=offsets and span_of(offsets),
            filter=filter,
            lane=lane,
            until_ms=until_ms,
        )
        return await self._count(self._dead(queue, group, "purge"), choice)
