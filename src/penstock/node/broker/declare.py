"""Declarations: queues, groups, exchanges and bindings, who consumes, and schedules."""

from __future__ import annotations

from typing import Any, Literal

from penstock.model import DEFAULT_GROUP, Binding, Headers, Message, check_headers, check_name, options_of
from penstock.model.errors import ExclusiveConsumer, Forbidden, InvalidArgument
from penstock.model.rows import home_slot
from penstock.node.arguments import check_is_text
from penstock.node.background import schedules
from penstock.node.background.schedules import Schedule
from penstock.node.broker.names import Names


class Declaring(Names):
    """The part of a broker that declares."""

    async def declare_queue(self, name: str, **options: Any) -> None:
        """Create a queue, or change the options named here of the one that exists (see `QueueConfig`)."""
        self._node.check_open()
        check_name(name, "a queue's name")
        if (self._namespace, name) in self._node.catalog.queues:
            self._queue(name)
        else:
            self._node.ownership.check(home_slot(self._namespace, name))
        await self._node.declarations.declare_queue(self._namespace, name, options, self._session)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it."""
        await self._node.declarations.delete_queue(self._queue(name))

    async def declare_group(self, queue: str, name: str, **options: Any) -> None:
        """Create a consumer group, or change the options named here (see `GroupConfig`)."""
        await self._node.declarations.declare_group(self._queue(queue), name, options)

    async def delete_group(self, queue: str, name: str) -> None:
        """Delete a group with its leases, waiting and dead messages."""
        home = self._queue(queue)
        await self._node.declarations.delete_group(home, self._group(home, name))

    async def pause(self, queue: str, group: str | None = None) -> None:
        """Hand out nothing more of a queue (or to one group of it); what is leased can still be settled."""
        await self._pause(queue, group, True)

    async def resume(self, queue: str, group: str | None = None) -> None:
        """Undo `pause`."""
        await self._pause(queue, group, False)

    async def _pause(self, queue: str, group: str | None, paused: bool) -> None:
        if group is None:
            self._queue(queue)
            await self.declare_queue(queue, paused=paused)
        else:
            self._group(self._queue(queue), group)
            await self.declare_group(queue, group, paused=paused)

    async def declare_exchange(self, name: str, **options: Any) -> None:
        """Create an exchange (see `ExchangeConfig`)."""
        self._check_registrar()
        self._check_exchange(name)
        await self._node.exchanges.declare(self._namespace, name, options)

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange with the bindings from and to it."""
        self._check_registrar()
        self._check_exchange(name)
        await self._node.exchanges.delete(self._namespace, name)

    async def bind(
        self,
        exchange: str,
        target: str,
        pattern: str = "",
        *,
        target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None,
        match: Literal["all", "any"] = "all",
    ) -> None:
        """Bind a queue (or exchange) to an exchange: see `Binding` for what the pattern means to each kind."""
        binding = self._binding(exchange, target, pattern, target_kind, headers, match)
        await self._node.exchanges.bind(self._namespace, binding)

    async def unbind(
        self,
        exchange: str,
        target: str,
        pattern: str = "",
        *,
        target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None,
        match: Literal["all", "any"] = "all",
    ) -> None:
        """Remove a binding."""
        binding = self._binding(exchange, target, pattern, target_kind, headers, match)
        await self._node.exchanges.unbind(self._namespace, binding)

    def _binding(
        self,
        exchange: str,
        target: str,
        pattern: str,
        target_kind: Literal["queue", "exchange"],
        headers: Headers | None,
        match: Literal["all", "any"],
    ) -> Binding:
        self._check_registrar()
        self._check_exchange(exchange)
        if target_kind not in ("queue", "exchange"):
            raise InvalidArgument(f"target_kind is {target_kind!r}; it must be queue or exchange")
        if match not in ("all", "any"):
            raise InvalidArgument(f"match is {match!r}; it must be all or any")
        if headers is not None:
            check_headers(headers)
        if target_kind == "queue":
            self._known_target(target)
        else:
            self._check_exchange(target)
        return Binding(
            exchange=exchange, target=target, target_kind=target_kind, pattern=pattern, headers=headers, match=match
        )

    def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The queues of this namespace by name, each with its options that differ from the defaults.

        With a prefix, only those whose names begin so.
        """
        return {
            queue.name: options_of(queue.config)
            for queue in self._node.catalog.queues.values()
            if queue.namespace == self._namespace and not queue.deleting and queue.name.startswith(prefix)
        }

    def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name in this namespace."""
        queue = self._node.catalog.queues.get((self._namespace, name))
        return queue is not None and not queue.deleting

    def queue_options(self, name: str) -> dict[str, Any]:
        """The options of one queue that differ from the defaults."""
        return options_of(self._queue(name).config)

    def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        """The groups of a queue by name, each with its options that differ from the defaults."""
        return {group.name: options_of(group.config) for group in self._queue(queue).groups.values()}

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """The exchanges of this namespace by name, each with its options that differ from the defaults."""
        self._node.check_open()
        declared = self._node.catalog.router(self._namespace).exchanges()
        return {name: options_of(config) for name, config in declared.items()}

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""
        self._check_exchange(exchange)
        return self._node.catalog.router(self._namespace).bindings(exchange)

    # Consumers that are known to come and go --------------------------------------------------------------

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        """Say that a consumer is there; its name. Queues with `auto_delete` live as long as one is.

        With `exclusive` it is the queue's only one: `Forbidden` where another is there, and for all that come after it.
        """
        home = self._queue(queue)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        if group:  # '' is none: who reads from an offset on needs none
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
        """Say that a consumer has gone: what it holds returns at once, counted as an attempt.

        With `keep` it takes no more, and may still settle what it holds; detached again without, that returns too.
        """
        home = self._queue(queue)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        chosen = self._group(home, group) if group else None
        await self._node.sessions.consumer_left(home, chosen, name, keep=keep)
        if self._session is not None and not keep:
            self._node.sessions.detached(self._session, home, group, name)

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        """Answer the claims that wait for this consumer now: with nothing, unless messages were on their way to it."""
        home = self._queue(queue)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        self._node.waiters.stop_waiting(home, self._group(home, group), name)

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
        """Publish a message to a queue or exchange again and again. Replaces the schedule of that name if there is one.

        `cron` has five fields, or six with seconds first, read in `timezone`. `interval_ms` is at least 100; its ticks
        are its whole multiples since the epoch. Each tick publishes one message, with the headers `schedule` (the name)
        and `scheduled_ms` (the tick). Ticks that were missed because no broker ran are made up for by one message, that
        of the latest; those missed while paused are not. Where the clocks change, a five-field expression with a fixed
        minute and hour fires once a day: at the first minute after a gap, and the first of two equal times; all others
        follow real time.
        """
        self._check_registrar()
        document = schedules.check_schedule(
            self._namespace, name, message, queue=queue, exchange=exchange, cron=cron, interval_ms=interval_ms,
            timezone=timezone, paused=paused, description=description, now_ms=self._node.clock.now_ms(),
        )  # fmt: skip
        if queue is not None and self._known_target(queue).session is not None:
            raise Forbidden(f"queue {queue!r} is exclusive and goes with its session; a schedule needs one that stays")
        if exchange is not None:
            self._check_exchange(exchange)
            # Whether messages may be published there at all; that no queue takes them yet is no error.
            self._node.catalog.router(self._namespace).route(exchange, message.key or "", message.headers, message)
        return await self._node.schedules.declare(self._namespace, name, document)

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""
        self._check_registrar()
        check_is_text(name, "a schedule's name")
        await self._node.schedules.delete(self._namespace, name)

    def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""
        self._check_registrar()
        check_is_text(name, "a schedule's name")
        return self._node.schedules.one(self._namespace, name)

    def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""
        self._check_registrar()
        return self._node.schedules.all(self._namespace)
