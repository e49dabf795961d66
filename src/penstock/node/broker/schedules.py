"""Schedules. Next stop: `node/background/schedules.py`."""

from __future__ import annotations

from penstock.api.schedules import Schedule, Schedules
from penstock.core.schedule import check_schedule
from penstock.model import Message
from penstock.model.errors import Forbidden
from penstock.node.broker.names import Names


class LocalSchedules(Names, Schedules):
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
        self._check_registrars("schedule", name, "declare")
        document = check_schedule(
            self._namespace,
            name,
            message,
            queue=queue,
            exchange=exchange,
            cron=cron,
            interval_ms=interval_ms,
            timezone=timezone,
            paused=paused,
            description=description,
            now_ms=self._services.clock.now_ms(),
        )
        if queue is not None and self._known_target(queue).session is not None:
            raise Forbidden(f"queue {queue!r} is exclusive and goes with its session; a schedule needs one that stays")
        if exchange is not None:
            self._check("exchange", exchange, "publish")
            # Whether messages may be published there at all; that no queue takes them yet is no error.
            self._services.catalog.router(self._namespace).route(exchange, message)
        return await self._services.schedules.declare(self._namespace, name, document)

    async def delete_schedule(self, name: str) -> None:
        self._check_registrars("schedule", name, "declare")
        await self._services.schedules.delete(self._namespace, name)

    async def schedule(self, name: str) -> Schedule:
        self._check_registrars("schedule", name, "browse")
        return self._services.schedules.one(self._namespace, name)

    async def schedules(self) -> list[Schedule]:
        self._check_listing()
        self._check_registrar()
        return self._services.schedules.all(self._namespace)
