"""Declarations: queues, groups, exchanges, bindings and schedules, and who consumes.

Next stop: `node/declarations.py`, `node/exchanges.py`, `node/background/schedules.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, Unpack

from penstock.api.declare import BindingOptions, Declarations, Schedule
from penstock.api.front_broker import QueuePage
from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
from penstock.api.principal import Action
from penstock.api.slices import in_slices
from penstock.core.schedule import check_schedule
from penstock.model import DEFAULT_GROUP, DEFAULT_NAMESPACE, Binding, Message, check_headers, check_name
from penstock.model.errors import ExclusiveConsumer, Forbidden, InvalidArgument
from penstock.model.options import options_of
from penstock.model.rows import home_slot
from penstock.node.broker.names import Names
from penstock.node.catalog import Queue

_name: Final = attrgetter("name")


class LocalDeclarations(Names, Declarations):
    """Declares, and says what is declared."""

    async def declare_queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        self._services.lifecycle.check_open()
        check_name(name, "a queue's name")
        if (self._namespace, name) in self._services.catalog.queues:
            self._queue(name, "declare")
        else:
            self.authorize("declare", "queue", name)
            self._services.ownership.check(home_slot(self._namespace, name))
        await self._services.declarations.declare_queue(self._namespace, name, {**options}, self._session)

    async def delete_queue(self, name: str) -> None:
        await self._services.declarations.delete_queue(self._queue(name, "declare"))

    async def declare_group(self, queue: str, name: str, **options: Unpack[GroupOptions]) -> None:
        await self._services.declarations.declare_group(self._queue(queue, "declare"), name, {**options})

    async def delete_group(self, queue: str, name: str) -> None:
        home = self._queue(queue, "declare")
        await self._services.declarations.delete_group(home, self._group(home, name))

    async def declare_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> None:
        self._check("exchange", name, "declare")
        self._check_registrar()
        await self._services.exchanges.declare(self._namespace, name, {**options})

    async def delete_exchange(self, name: str) -> None:
        self._check("exchange", name, "declare")
        self._check_registrar()
        await self._services.exchanges.delete(self._namespace, name)

    async def bind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        binding = self._binding(Binding(exchange=exchange, target=target, pattern=pattern, **options))
        await self._services.exchanges.bind(self._namespace, binding)

    async def unbind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        binding = self._binding(Binding(exchange=exchange, target=target, pattern=pattern, **options))
        await self._services.exchanges.unbind(self._namespace, binding)

    def _binding(self, binding: Binding) -> Binding:
        """A binding that makes sense, between what the principal may change."""
        self._check("exchange", binding.exchange, "declare")
        self._check_registrar()
        if binding.target_kind not in ("queue", "exchange"):
            raise InvalidArgument(f"target_kind is {binding.target_kind!r}; it must be queue or exchange")
        if binding.match not in ("all", "any"):
            raise InvalidArgument(f"match is {binding.match!r}; it must be all or any")
        if binding.headers is not None:
            check_headers(binding.headers)
        if binding.target_kind == "queue":
            self._known_target(binding.target, "declare")
        else:
            self._check("exchange", binding.target, "declare")
        return binding

    async def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        self._check_listing()
        found = await in_slices(list(self._services.catalog.queues.values()), lambda some: self._listed(some, prefix))
        return dict(await in_slices(found, lambda some: [(queue.name, options_of(queue.config)) for queue in some]))

    async def queues_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> QueuePage:
        self._check_listing()
        chosen: list[Queue] = []

        def look(some: Sequence[Queue]) -> tuple[()]:
            chosen.extend(queue for queue in self._listed(some, prefix) if queue.name > after)
            if len(chosen) > 2 * max:
                cut()
            return ()

        def cut() -> None:
            chosen.sort(key=_name)
            del chosen[max + 1 :]

        await in_slices(list(self._services.catalog.queues.values()), look)
        cut()
        page = await in_slices(chosen[:max], lambda some: [(queue.name, options_of(queue.config)) for queue in some])
        return QueuePage(page, page[-1][0] if len(chosen) > max else None)

    def _listed(self, queues: Sequence[Queue], prefix: str) -> list[Queue]:
        return [
            queue
            for queue in queues
            if queue.namespace == self._namespace and not queue.deleting and queue.name.startswith(prefix)
        ]

    async def has_queue(self, name: str) -> bool:
        return self.knows_queue(name, "browse")

    def knows_queue(self, name: str, action: Action) -> bool:
        self.authorize(action, "queue", name)
        queue = self._services.catalog.queues.get((self._namespace, name))
        return queue is not None and not queue.deleting

    def knows_namespace(self) -> bool:
        return self._namespace == DEFAULT_NAMESPACE or self._services.catalog.knows_namespace(self._namespace)

    def knows_exchange(self, name: str, action: Action) -> bool:
        self.authorize(action, "exchange", name)
        return name in self._services.catalog.router(self._namespace).exchanges()

    async def queue_options(self, name: str) -> dict[str, Any]:
        return options_of(self._queue(name, "browse").config)

    async def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        return {group.name: options_of(group.config) for group in self._queue(queue, "browse").groups.values()}

    async def exchanges(self) -> dict[str, dict[str, Any]]:
        self._check_listing()
        declared = self._services.catalog.router(self._namespace).exchanges()
        return {name: options_of(config) for name, config in declared.items()}

    async def bindings(self, exchange: str) -> list[Binding]:
        self._check("exchange", exchange, "browse")
        return self._services.catalog.router(self._namespace).bindings(exchange)

    # Schedules --------------------------------------------------------------------------------------------

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

    # Consumers that are known to come and go --------------------------------------------------------------

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        home = self._queue(queue, "consume")
        name = self.consumer_name if consumer is None else check_name(consumer, "consumer")
        if group:  # '' is none: a reader from an offset on needs none
            await self._work_group(home, group)
        place = (group, name)
        if home.only_consumer not in (None, place):
            raise ExclusiveConsumer(f"queue {queue!r} has a consumer that asked to be alone")
        others = len(home.consumers.keys() - {place})
        if exclusive and others:
            raise ExclusiveConsumer(f"queue {queue!r} has {others} consumers; none can be alone there")
        home.consumers = {**home.consumers, place: self._session}
        home.had_consumer = True
        home.only_consumer = place if exclusive else None
        return name

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        home = self._queue(queue, "consume")
        name = self.consumer_name if consumer is None else check_name(consumer, "consumer")
        chosen = self._group(home, group) if group else None
        await self._services.sessions.consumer_left(home, chosen, name, keep=keep)
        if self._session is not None and not keep:
            self._services.sessions.detached(self._session, home, group, name)

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        home = self._queue(queue, "consume")
        name = self.consumer_name if consumer is None else check_name(consumer, "consumer")
        self._services.waiters.stop_waiting(home, self._group(home, group), name)
