"""Looking at messages and at what became of them, over HTTP."""

from __future__ import annotations

from typing import Literal

from penstock.api.inspect import HistoryEntry, Inspection, Page, QueueStats
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests
from penstock.model.errors import InvalidArgument
from penstock.wire.http.shapes import HistoryAnswer, PageAnswer


class ClientInspection(Requests, Inspection):
    """Looks."""

    async def browse(
        self,
        queue: str,
        *,
        group: str | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
        partition: str | None = None,
        state: Literal["ready", "leased", "waiting", "dead", "done"] | None = None,
        filter: str | None = None,
        max: int = 100,
        after: tuple[int, int] | None = None,
    ) -> Page:
        path = with_query(
            self._target("queues", queue, "messages"),
            group=group,
            offset=offset,
            time_ms=time_ms,
            lane=lane,
            partition=partition,
            state=state,
            filter=filter,
            max=max,
            after=None if after is None else _place(after),
        )
        answer = await self._get(PageAnswer, path)
        following: tuple[int, int] | None = None
        if answer.next is not None:
            place, _, start = answer.next.partition(":")
            following = (int(place), int(start))
        return Page([body.received() for body in answer.messages], following)

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        if lane is None:
            lanes = (await self.stats(queue)).lanes
            if lanes > 1:
                raise InvalidArgument(f"queue {queue!r} has lanes 0 to {lanes - 1}: say which one with lane=")
            lane = 0
        path = self._target("queues", queue, "messages", str(lane), str(offset), "history")
        return (await self._get(HistoryAnswer, path)).history

    async def stats(self, queue: str) -> QueueStats:
        return await self._get(QueueStats, self._target("queues", queue, "stats"))


def _place(after: object) -> str:
    if not isinstance(after, tuple | list) or len(after) != 2:
        raise InvalidArgument(f"after is {after!r}; it must be a page's next: (lane, offset)")
    return f"{after[0]}:{after[1]}"
