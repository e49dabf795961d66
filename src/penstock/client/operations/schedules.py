"""Schedules, over HTTP."""

from __future__ import annotations

import msgspec

from penstock.api.schedules import Schedule, Schedules
from penstock.client.operations.requests import Requests, decoded
from penstock.model import Message
from penstock.wire.http.shapes import ScheduleBody, ScheduleRequest, SchedulesAnswer, message_body


class ClientSchedules(Requests, Schedules):
    """Declares schedules."""

    async def declare_schedule(
        self,
        name: str,
        *,
        message: Message,
        queue: str | None = None,
        exchange: str | None = None,
        cron: str | None = None,
        interval_ms: int | None = None,
        timezone: str = "UTC",
        paused: bool = False,
        description: str = "",
    ) -> Schedule:
        body = ScheduleRequest(
            queue=queue,
            exchange=exchange,
            cron=cron,
            interval_ms=interval_ms,
            timezone=timezone,
            message=message_body(message),
            paused=paused,
            description=description,
        )
        return _schedule(decoded(ScheduleBody, await self._send(b"PUT", self._target("schedules", name), body)))

    async def delete_schedule(self, name: str) -> None:
        await self._delete("schedules", name)

    async def schedule(self, name: str) -> Schedule:
        return _schedule(await self._get(ScheduleBody, self._target("schedules", name)))

    async def schedules(self) -> list[Schedule]:
        answer = await self._get(SchedulesAnswer, self._target("schedules"))
        return [_schedule(body) for body in answer.schedules]


def _schedule(body: ScheduleBody) -> Schedule:
    return Schedule(**{**msgspec.structs.asdict(body), "message": body.message.message()})
