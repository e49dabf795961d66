"""Queues, groups, exchanges and bindings, from a client: declare, change, delete, list.

Every one of these may be sent twice without harm, so all of them are tried again after a lost connection.
"""

from __future__ import annotations

from typing import Any, Unpack

from penstock.api.declare import BindingOptions, Declarations
from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests
from penstock.client.transport.channel import is_repeat
from penstock.model import DEFAULT_GROUP, Binding
from penstock.model.errors import NotFound
from penstock.wire.http.shapes import (
    AttachRequest,
    BindingsAnswer,
    ConsumerRequest,
    DetachRequest,
    ExchangesAnswer,
    GroupsAnswer,
    QueueBody,
    QueuesAnswer,
    binding_body,
)


class ClientDeclarations(Requests, Declarations):
    """Declares and lists."""

    async def declare_queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        await self._send(b"PUT", self._target("queues", name), options)

    async def delete_queue(self, name: str) -> None:
        await self._delete("queues", name)

    async def declare_group(self, queue: str, name: str, **options: Unpack[GroupOptions]) -> None:
        await self._send(b"PUT", self._target("queues", queue, "groups", name), options)

    async def delete_group(self, queue: str, name: str) -> None:
        await self._delete("queues", queue, "groups", name)

    async def declare_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> None:
        await self._send(b"PUT", self._target("exchanges", name), options)

    async def delete_exchange(self, name: str) -> None:
        await self._delete("exchanges", name)

    async def bind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        body = binding_body(Binding(exchange=exchange, target=target, pattern=pattern, **options))
        await self._send(b"POST", self._target("exchanges", exchange, "bind"), body)

    async def unbind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        body = binding_body(Binding(exchange=exchange, target=target, pattern=pattern, **options))
        try:
            await self._send(b"POST", self._target("exchanges", exchange, "unbind"), body)
        except NotFound as error:
            if not is_repeat(error):
                raise

    async def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
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
        try:
            await self.queue_options(name)
        except NotFound:
            return False
        return True

    async def queue_options(self, name: str) -> dict[str, Any]:
        return (await self._get(QueueBody, self._target("queues", name))).options

    async def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        answer = await self._get(GroupsAnswer, self._target("queues", queue, "groups"))
        return {group.name: group.options for group in answer.groups}

    async def exchanges(self) -> dict[str, dict[str, Any]]:
        answer = await self._get(ExchangesAnswer, self._target("exchanges"))
        return {exchange.name: exchange.options for exchange in answer.exchanges}

    async def bindings(self, exchange: str) -> list[Binding]:
        answer = await self._get(BindingsAnswer, self._target("exchanges", exchange, "bindings"))
        return [body.binding(exchange) for body in answer.bindings]

    # Consumers that are known to come and go --------------------------------------------------------------

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        name = self.consumer_name if consumer is None else consumer
        body = AttachRequest(consumer=name, exclusive=exclusive)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "attach"), body)
        return name

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        name = self.consumer_name if consumer is None else consumer
        body = DetachRequest(consumer=name, keep=keep)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "detach"), body)

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        name = self.consumer_name if consumer is None else consumer
        body = ConsumerRequest(consumer=name)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "stop-waiting"), body)
