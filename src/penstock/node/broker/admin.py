"""Moving, emptying and pausing groups; enqueued messages that failed; whether the node is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from penstock.api.admin import Administration, FailedPage
from penstock.api.arguments import check_ids
from penstock.api.ticket import Ticket
from penstock.core.lane import Lane
from penstock.model import DEFAULT_GROUP, INTEGER_MAX, check_integer
from penstock.model.errors import InvalidArgument
from penstock.node.arguments import lane_of
from penstock.node.background.enqueued import FAILED_MAX
from penstock.node.broker.names import Names
from penstock.node.catalog import Group


class LocalAdministration(Names, Administration):
    """Does what an operator asks for."""

    async def seek(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        home = self._queue(queue, "manage")
        if sum(value is not None for value in (to, offset, time_ms)) != 1:
            raise InvalidArgument("seek needs one of to='first', to='last', offset= or time_ms=")
        if to not in (None, "first", "last"):
            raise InvalidArgument(f"to is {to!r}; it must be first or last")
        chosen = await self._work_group(home, group)
        for lane_id in home.lanes if lane is None and offset is None else [lane_of(home, lane)]:
            if to is not None:
                place = await self._services.lanes.offset_at(lane_id, "beginning" if to == "first" else "now")
            else:
                place = await self._place(lane_id, offset, time_ms)
            await self._seek(lane_id, chosen, place)

    async def _seek(self, lane_id: int, group: Group, offset: int) -> None:
        def command(lane: Lane) -> Ticket[None]:
            if not lane.first <= offset <= lane.visible_end:
                raise InvalidArgument(f"offset is {offset}; the lane has {lane.first} to {lane.visible_end}")
            lane.groups[group.id].seek(self._services.clock.now_ms(), offset)
            return self._services.commits.commit(lane)

        await (await self._services.lanes.run(lane_id, command))

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        home = self._queue(queue, "manage")
        chosen = await self._work_group(home, group)
        count = 0
        for lane in await self._services.lanes.together(home.lanes):
            count += lane.work(chosen.id).purge(self._services.clock.now_ms())
            self._services.commits.touch(lane)
        await self._services.commits.commit()
        return count

    async def check_ready(self) -> Literal["ready", "buffering"]:
        return await self._services.readiness.check()

    async def pause(self, queue: str, group: str | None = None) -> None:
        await self._pause(queue, group, True)

    async def resume(self, queue: str, group: str | None = None) -> None:
        await self._pause(queue, group, False)

    async def _pause(self, queue: str, group: str | None, paused: bool) -> None:
        home = self._queue(queue, "manage")
        if group is None:
            await self._services.declarations.declare_queue(self._namespace, queue, {"paused": paused}, self._session)
        else:
            self._group(home, group)
            await self._services.declarations.declare_group(home, group, {"paused": paused})

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        self._services.lifecycle.check_open()
        self.authorize("browse", "enqueued", "")
        check_integer(after, "after", 0, INTEGER_MAX)
        check_integer(max, "max", 1, FAILED_MAX)
        return await self._services.enqueueing.page(self._namespace, after, max)

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        self._services.lifecycle.check_open()
        self.authorize("manage", "enqueued", "")
        return await self._services.enqueueing.retry(self._namespace, check_ids(ids))

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        self._services.lifecycle.check_open()
        self.authorize("manage", "enqueued", "")
        return await self._services.enqueueing.purge(self._namespace, check_ids(ids))
