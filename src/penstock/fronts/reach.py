"""The broker as a front beside HTTP sees it in a cluster: whatever this node does not own, it asks of who does.

The same methods as `Broker`. Each is tried here first; where `Elsewhere` says that another node must do it, the same
call goes to that node over the HTTP API, in the name of the same session. What was declared every node knows, so
questions about that are answered here. Knows no protocol. Next stop: `http/inside.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from penstock.api.inspect import QueueStats
from penstock.api.marks import Mark
from penstock.api.principal import Caller
from penstock.api.results import Claim, LeaseLike, Published, Receipt, StreamRead
from penstock.api.scan import QueueLanes
from penstock.api.ticket import Ticket
from penstock.batch import EncodedBatch
from penstock.client.client import AsyncClient, client_over
from penstock.fronts.http.inside import Inside
from penstock.model import DEFAULT_GROUP, Headers, Message, check_name, options_of
from penstock.model.errors import Elsewhere, ExclusiveQueue
from penstock.model.verdict import Verdict
from penstock.node.broker import LocalBroker, LocalTransaction
from penstock.node.session import Session

if TYPE_CHECKING:
    from penstock.fronts.http.server import HttpServer
    from penstock.node.broker.services import Services
    from penstock.node.catalog import Queue

Result = TypeVar("Result")


def broker_of(server: HttpServer) -> LocalBroker:
    """The broker for the fronts beside an HTTP server: as it is, or with the way to other nodes where there are any."""
    broker = server.broker
    if server.forwarding is None:
        return broker
    return Reach(broker._services, broker.namespace, None, server, broker._caller)


def _or_there(there: Callable[[], Awaitable[Result]]) -> Callable[[BaseException], Ticket[Result]]:
    """For what has failed: ask the node that must do it, where that is why."""
    return lambda error: Ticket.of(there()) if isinstance(error, Elsewhere) else Ticket.failed(error)


class Reach(LocalBroker):
    """A broker of several nodes."""

    def __init__(
        self, services: Services, namespace: str, session: Session | None, server: HttpServer, caller: Caller
    ) -> None:
        super().__init__(services, namespace, session, caller)
        self._server = server
        self._there = client_over(Inside(server, self.consumer_name, self.session_key), namespace, self.consumer_name)

    def _view(self, namespace: str, caller: Caller) -> Reach:
        return Reach(self._services, namespace, self._session, self._server, caller)

    def begin_session(self, name: str) -> Reach:
        session = Session(self._services.ownership.incarnation, check_name(name, "a session"))
        return Reach(self._services, self._namespace, session, self._server, self._caller)

    async def _anywhere(self, here: Awaitable[Result], there: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await here
        except Elsewhere:
            return await there()

    async def _declared(self, here: Awaitable[None], there: Callable[[], Awaitable[None]]) -> None:
        """The same for what changes what is declared: who asked for it finds it so, here too."""
        try:
            await here
        except Elsewhere:
            await there()
            assert self._services.cluster is not None
            await self._services.cluster.catalog_feed.refresh()

    # What was declared ------------------------------------------------------------------------------------

    def _known(self, name: str) -> Queue:
        """A queue, whoever owns it."""
        self._services.lifecycle.check_open()
        self.authorize("browse", "queue", name)
        queue = self._services.catalog.queue(self._namespace, name)
        if queue.session is not None and queue.session != self._session:
            raise ExclusiveQueue(f"queue {name!r} is exclusive to another session")
        return queue

    async def queue_options(self, name: str) -> dict[str, Any]:
        return options_of(self._known(name).config)

    async def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        return {group.name: options_of(group.config) for group in self._known(queue).groups.values()}

    # Declarations -----------------------------------------------------------------------------------------

    async def declare_queue(self, name: str, **options: Any) -> None:
        here = super().declare_queue(name, **options)
        await self._declared(here, lambda: self._there.declare_queue(name, **options))

    async def delete_queue(self, name: str) -> None:
        await self._declared(super().delete_queue(name), lambda: self._there.delete_queue(name))

    async def declare_group(self, queue: str, name: str, **options: Any) -> None:
        here = super().declare_group(queue, name, **options)
        await self._declared(here, lambda: self._there.declare_group(queue, name, **options))

    async def delete_group(self, queue: str, name: str) -> None:
        await self._declared(super().delete_group(queue, name), lambda: self._there.delete_group(queue, name))

    async def declare_exchange(self, name: str, **options: Any) -> None:
        here = super().declare_exchange(name, **options)
        await self._declared(here, lambda: self._there.declare_exchange(name, **options))

    async def delete_exchange(self, name: str) -> None:
        await self._declared(super().delete_exchange(name), lambda: self._there.delete_exchange(name))

    async def bind(
        self, exchange: str, target: str, pattern: str = "", *, target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None, match: Literal["all", "any"] = "all",
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"target_kind": target_kind, "headers": headers, "match": match}
        here = super().bind(exchange, target, pattern, **options)
        await self._declared(here, lambda: self._there.bind(exchange, target, pattern, **options))

    async def unbind(
        self, exchange: str, target: str, pattern: str = "", *, target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None, match: Literal["all", "any"] = "all",
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"target_kind": target_kind, "headers": headers, "match": match}
        here = super().unbind(exchange, target, pattern, **options)
        await self._declared(here, lambda: self._there.unbind(exchange, target, pattern, **options))

    # Publish ----------------------------------------------------------------------------------------------

    def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Ticket[Published]:
        here = super().publish(queue, message, publish_id=publish_id)
        return here.recover(_or_there(lambda: self._there.publish(queue, message, publish_id=publish_id)))

    def publish_many(
        self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None
    ) -> Ticket[Receipt]:
        here = super().publish_many(queue, messages, publish_id=publish_id)
        return here.recover(_or_there(lambda: self._there.publish_many(queue, messages, publish_id=publish_id)))

    def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Ticket[Receipt]:
        here = super().publish_batch(queue, batch, publish_id=publish_id)
        return here.recover(_or_there(lambda: self._there.publish_batch(queue, batch, publish_id=publish_id)))

    def publish_to(
        self, exchange: str, messages: Message | Sequence[Message] | EncodedBatch, *, mandatory: bool = False,
        publish_id: str | None = None,
    ) -> Ticket[Receipt]:  # fmt: skip
        options: dict[str, Any] = {"mandatory": mandatory, "publish_id": publish_id}
        here = super().publish_to(exchange, messages, **options)
        return here.recover(_or_there(lambda: self._there.publish_to(exchange, messages, **options)))

    # Consume ----------------------------------------------------------------------------------------------

    async def claim(self, queue: str, **options: Any) -> Claim:
        """As `Broker.claim`."""
        options.setdefault("consumer", self.consumer_name)
        return await self._anywhere(super().claim(queue, **options), lambda: self._there.claim(queue, **options))

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict], *, deferred: bool = False) -> Ticket[None]:
        here = super().settle(lease, verdicts, deferred=deferred)
        return here.recover(_or_there(lambda: self._there.settle(lease, verdicts)))

    async def extend(self, lease: LeaseLike, seconds: float | None = None) -> int:
        return await self._anywhere(super().extend(lease, seconds), lambda: self._there.extend(lease, seconds))

    def transaction(self) -> LocalTransaction:
        self._services.lifecycle.check_open()
        return _Transaction(self, self._there)

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        name = self.consumer_name if consumer is None else consumer
        here = super().attach(queue, group, consumer=name, exclusive=exclusive)
        if not group:  # no path leads to it: who reads another node's queue without a group is not counted there
            with suppress(Elsewhere):
                await here
            return name
        there = lambda: self._there.attach(queue, group, consumer=name, exclusive=exclusive)  # noqa: E731
        return await self._anywhere(here, there)

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        name = self.consumer_name if consumer is None else consumer
        here = super().detach(queue, group, consumer=name, keep=keep)
        if not group:
            with suppress(Elsewhere):
                await here
            return
        await self._anywhere(here, lambda: self._there.detach(queue, group, consumer=name, keep=keep))

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        name = self.consumer_name if consumer is None else consumer
        here = super().stop_waiting(queue, group, consumer=name)
        await self._anywhere(here, lambda: self._there.stop_waiting(queue, group, consumer=name))

    # Streams and looking ----------------------------------------------------------------------------------

    async def read(self, queue: str, group: str, **options: Any) -> StreamRead:
        """As `Broker.read`."""
        options.setdefault("consumer", self.consumer_name)
        here = super().read(queue, group, **options)
        return await self._anywhere(here, lambda: self._there.read(queue, group, **options))

    async def commit(
        self, queue: str, group: str, offset: int, *, lane: int | None = None, only_forward: bool = False
    ) -> None:
        options: dict[str, Any] = {"lane": lane, "only_forward": only_forward}
        here = super().commit(queue, group, offset, **options)
        await self._anywhere(here, lambda: self._there.commit(queue, group, offset, **options))

    async def read_from(self, queue: str, offset: int | None = None, **options: Any) -> StreamRead:
        """As `Broker.read_from`."""
        here = super().read_from(queue, offset, **options)
        return await self._anywhere(here, lambda: self._there.read_from(queue, offset, **options))

    async def lanes(self, queue: str, time_ms: int | None = None) -> QueueLanes:
        return await self._anywhere(super().lanes(queue, time_ms), lambda: self._there.lanes(queue, time_ms))

    async def seek(self, queue: str, group: str = DEFAULT_GROUP, **options: Any) -> None:
        """As `Broker.seek`."""
        here = super().seek(queue, group, **options)
        await self._anywhere(here, lambda: self._there.seek(queue, group, **options))

    async def stats(self, queue: str) -> QueueStats:
        return await self._anywhere(super().stats(queue), lambda: self._there.stats(queue))

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        return await self._anywhere(super().purge(queue, group), lambda: self._there.purge(queue, group))

    # Marks ------------------------------------------------------------------------------------------------

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        here = super().put_mark(name, value, expected_version=expected_version)
        return await self._anywhere(here, lambda: self._there.put_mark(name, value, expected_version=expected_version))

    async def delete_mark(self, name: str) -> None:
        await self._anywhere(super().delete_mark(name), lambda: self._there.delete_mark(name))


class _Transaction(LocalTransaction):
    """A transaction that another node may have to commit: it is collected twice and carried out once."""

    def __init__(self, broker: Reach, there: AsyncClient) -> None:
        super().__init__(broker)
        self._there = there.transaction()

    def publish(self, queue: str, *messages: Message) -> Self:
        super().publish(queue, *messages)
        self._there.publish(queue, *messages)
        return self

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        super().publish_to(exchange, *messages)
        self._there.publish_to(exchange, *messages)
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        super().settle(lease, verdicts)
        self._there.settle(lease, verdicts)
        return self

    async def commit(self) -> Receipt:
        try:
            return await super().commit()
        except Elsewhere:
            self.receipt = await self._there.commit()
            self._ended = True
            return self.receipt
