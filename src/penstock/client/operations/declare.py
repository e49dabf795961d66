"""Queues, groups, exchanges, bindings and schedules, from a client: declare, change, delete, list.

Every one of these may be sent twice without harm, so all of them are tried again after a lost connection.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests, decoded
from penstock.client.transport.channel import is_repeat
from penstock.model import DEFAULT_GROUP, Binding, Headers, Message
from penstock.model.errors import NotFound
from penstock.node.background.schedules import Schedule
from penstock.wire.http.shapes import (
    AttachRequest,
    BindingBody,
    BindingsAnswer,
    ConsumerRequest,
    DetachRequest,
    ExchangesAnswer,
    GroupsAnswer,
    QueueBody,
    QueuesAnswer,
    ScheduleBody,
    ScheduleRequest,
    SchedulesAnswer,
    json_headers,
    message_body,
    plain_headers,
)


class Declaring(Requests):
    """The part of a client that declares and lists."""

    async def declare_queue(self, name: str, **options: Any) -> None:
        """Create a queue, or change the options named here of the one that exists (see `QueueConfig`)."""
        await self._send(b"PUT", self._target("queues", name), options)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it."""
        await self._delete("queues", name)

    async def declare_group(self, queue: str, name: str, **options: Any) -> None:
        """Create a consumer group, or change the options named here (see `GroupConfig`)."""
        await self._send(b"PUT", self._target("queues", queue, "groups", name), options)

    async def delete_group(self, queue: str, name: str) -> None:
        """Delete a group with its leases, waiting and dead messages."""
        await self._delete("queues", queue, "groups", name)

    async def declare_exchange(self, name: str, **options: Any) -> None:
        """Create an exchange (see `ExchangeConfig`)."""
        await self._send(b"PUT", self._target("exchanges", name), options)

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange with the bindings from and to it."""
        await self._delete("exchanges", name)

    async def _delete(self, *parts: str) -> None:
        try:
            await self._send(b"DELETE", self._target(*parts))
        except NotFound as error:
            if not is_repeat(error):  # else it was this call that deleted it
                raise

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
        body = _binding(target, pattern, target_kind, headers, match)
        await self._send(b"POST", self._target("exchanges", exchange, "bind"), body)

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
        body = _binding(target, pattern, target_kind, headers, match)
        try:
            await self._send(b"POST", self._target("exchanges", exchange, "unbind"), body)
        except NotFound as error:
            if not is_repeat(error):
                raise

    async def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The queues of this namespace by name, each with its options that differ from the defaults.

        With a prefix, only those whose names begin so.
        """
        found: dict[str, dict[str, Any]] = {}
        after: str | None = None
        while True:
            query = with_query(self._target("queues"), limit=1_000, after=after, prefix=prefix or None)
            answer = await self._get(QueuesAnswer, query)
            found.update((queue.name, queue.options) for queue in answer.queues)
            if answer.next is None:
                return found
            after = answer.next

    async def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name in this namespace."""
        try:
            await self.queue_options(name)
        except NotFound:
            return False
        return True

    async def queue_options(self, name: str) -> dict[str, Any]:
        """The options of one queue that differ from the defaults."""
        return (await self._get(QueueBody, self._target("queues", name))).options

    async def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        """The groups of a queue by name, each with its options that differ from the defaults."""
        answer = await self._get(GroupsAnswer, self._target("queues", queue, "groups"))
        return {group.name: group.options for group in answer.groups}

    async def exchanges(self) -> dict[str, dict[str, Any]]:
        """The exchanges of this namespace by name, each with its options that differ from the defaults."""
        answer = await self._get(ExchangesAnswer, self._target("exchanges"))
        return {exchange.name: exchange.options for exchange in answer.exchanges}

    async def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""
        answer = await self._get(BindingsAnswer, self._target("exchanges", exchange, "bindings"))
        return [
            Binding(
                exchange=exchange,
                target=body.target,
                target_kind=body.target_kind,
                pattern=body.pattern,
                headers=None if body.headers is None else plain_headers(body.headers),
                match=body.match,
            )
            for body in answer.bindings
        ]

    # Consumers that are known to come and go --------------------------------------------------------------

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        """Say that a consumer is there; its name. Queues with `auto_delete` live as long as one is.

        With `exclusive` it is the queue's only one: `Forbidden` where another is there, and for all that come after it.
        """
        name = self._consumer if consumer is None else consumer
        body = AttachRequest(consumer=name, exclusive=exclusive)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "attach"), body)
        return name

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        """Say that a consumer has gone: what it holds returns at once, counted as an attempt.

        With `keep` it takes no more, and may still settle what it holds; detached again without, that returns too.
        """
        name = self._consumer if consumer is None else consumer
        body = DetachRequest(consumer=name, keep=keep)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "detach"), body)

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        """Answer the claims that wait for this consumer now: with nothing, unless messages were on their way to it."""
        name = self._consumer if consumer is None else consumer
        body = ConsumerRequest(consumer=name)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "stop-waiting"), body)

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
        body = ScheduleRequest(
            queue=queue, exchange=exchange, cron=cron, interval_ms=interval_ms, timezone=timezone,
            message=message_body(message), paused=paused, description=description,
        )  # fmt: skip
        return _schedule(decoded(ScheduleBody, await self._send(b"PUT", self._target("schedules", name), body)))

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""
        await self._delete("schedules", name)

    async def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""
        return _schedule(await self._get(ScheduleBody, self._target("schedules", name)))

    async def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""
        answer = await self._get(SchedulesAnswer, self._target("schedules"))
        return [_schedule(body) for body in answer.schedules]


def _binding(
    target: str,
    pattern: str,
    target_kind: Literal["queue", "exchange"],
    headers: Headers | None,
    match: Literal["all", "any"],
) -> BindingBody:
    return BindingBody(
        target=target,
        target_kind=target_kind,
        pattern=pattern,
        headers=None if headers is None else json_headers(headers),
        match=match,
    )


def _schedule(body: ScheduleBody) -> Schedule:
    return Schedule(
        name=body.name,
        message=body.message.message(),
        queue=body.queue,
        exchange=body.exchange,
        cron=body.cron,
        interval_ms=body.interval_ms,
        timezone=body.timezone,
        paused=body.paused,
        description=body.description,
        next_ms=body.next_ms,
        last_ms=body.last_ms,
        fired=body.fired,
        last_error=body.last_error,
    )
