"""Handles: a queue, group or exchange by itself, as in `broker.queue("orders").publish(…)`.

Each method calls the broker's operation with the names filled in; a handle holds nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self, Unpack

from penstock.api.dead_letters import DeadList
from penstock.api.declare import BindingOptions
from penstock.api.inspect import QueueStats
from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
from penstock.api.results import Claim, Published, Receipt, StreamRead
from penstock.batch import EncodedBatch
from penstock.model import DEFAULT_GROUP, Message

if TYPE_CHECKING:
    from penstock.api.broker import Broker


class QueueHandle:
    """One queue."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self.name = name

    async def declare(self, **options: Unpack[QueueOptions]) -> Self:
        """Create it, or change the options named here (see `QueueConfig`)."""
        await self._broker.declare_queue(self.name, **options)
        return self

    async def delete(self) -> None:
        """Delete it with everything in it."""
        await self._broker.delete_queue(self.name)

    def group(self, name: str = DEFAULT_GROUP) -> GroupHandle:
        """One of its groups."""
        return GroupHandle(self._broker, self.name, name)

    async def publish(self, message: Message) -> Published:
        """Publish one message; returns when it is durable."""
        return await self._broker.publish(self.name, message)

    async def publish_many(self, messages: Sequence[Message]) -> Receipt:
        """Publish messages together, all or none, in their order."""
        return await self._broker.publish_many(self.name, messages)

    async def claim(self, *, max: int = 1, wait: float = 0.0, lease_seconds: float | None = None) -> Claim:
        """Lease messages of the default group."""
        return await self._broker.claim(self.name, max=max, wait=wait, lease_seconds=lease_seconds)

    async def stats(self) -> QueueStats:
        """Counts of it and its groups."""
        return await self._broker.stats(self.name)

    async def pause(self) -> None:
        """Hand out nothing more of it."""
        await self._broker.pause(self.name)

    async def resume(self) -> None:
        """Undo `pause`."""
        await self._broker.resume(self.name)


class GroupHandle:
    """One group of a queue."""

    def __init__(self, broker: Broker, queue: str, name: str) -> None:
        self._broker = broker
        self.queue = queue
        self.name = name

    async def declare(self, **options: Unpack[GroupOptions]) -> Self:
        """Create it, or change the options named here (see `GroupConfig`)."""
        await self._broker.declare_group(self.queue, self.name, **options)
        return self

    async def delete(self) -> None:
        """Delete it with its leases, waiting and dead messages."""
        await self._broker.delete_group(self.queue, self.name)

    async def claim(self, *, max: int = 1, wait: float = 0.0, lease_seconds: float | None = None) -> Claim:
        """Lease messages."""
        return await self._broker.claim(self.queue, group=self.name, max=max, wait=wait, lease_seconds=lease_seconds)

    async def read(self, *, max: int = 100, wait: float = 0.0) -> StreamRead:
        """The next messages of a stream group."""
        return await self._broker.read(self.queue, self.name, max=max, wait=wait)

    async def commit(self, offset: int, *, lane: int | None = None) -> None:
        """Everything below `offset` is processed."""
        await self._broker.commit(self.queue, self.name, offset, lane=lane)

    async def seek(
        self,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move it: everything before the place is done, everything from it on is new again."""
        await self._broker.seek(self.queue, self.name, to=to, offset=offset, time_ms=time_ms, lane=lane)

    async def dead(self, *, max: int = 100) -> DeadList:
        """Its dead letters with why they died."""
        return await self._broker.dead(self.queue, self.name, max=max)

    async def redrive(self) -> int:
        """Give all its dead letters to it again; how many."""
        return await self._broker.redrive(self.queue, self.name)

    async def pause(self) -> None:
        """Hand out nothing more to it."""
        await self._broker.pause(self.queue, self.name)

    async def resume(self) -> None:
        """Undo `pause`."""
        await self._broker.resume(self.queue, self.name)


class ExchangeHandle:
    """One exchange."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self.name = name

    async def declare(self, **options: Unpack[ExchangeOptions]) -> Self:
        """Create it (see `ExchangeConfig`)."""
        await self._broker.declare_exchange(self.name, **options)
        return self

    async def delete(self) -> None:
        """Delete it with the bindings from and to it."""
        await self._broker.delete_exchange(self.name)

    async def bind(self, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> Self:
        """Bind a queue (or exchange) to it."""
        await self._broker.bind(self.name, target, pattern, **options)
        return self

    async def publish(
        self, messages: Message | Sequence[Message] | EncodedBatch, *, mandatory: bool = False
    ) -> Receipt:
        """Publish to it: each message goes to every queue that its key and headers lead to, or to none."""
        return await self._broker.publish_to(self.name, messages, mandatory=mandatory)
