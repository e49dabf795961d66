"""Messages in and out: publish, claim and settle, read streams, transactions over both.

Next stop: `api/results.py` for what these operations give back, `node/broker/messages.py` for what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from penstock.api.arguments import Ranges, nacked, verdicts_of, waiting_ms
from penstock.api.results import Claim, LeaseLike, Published, Receipt, StreamRead
from penstock.batch import EncodedBatch
from penstock.model import DEFAULT_GROUP, Message
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Verdict


class Publishing(Protocol):
    """Messages into queues and exchanges."""

    async def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Published:
        """Publish one message; returns when it is durable."""

    async def publish_many(self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None) -> Receipt:
        """Publish messages together, all or none, in their order.

        `publish_id` names the whole call. Publishing again under the same id, within the queue's dedup window, stores
        nothing and returns where the messages are. One id for many messages costs far less than one each.
        """

    async def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Receipt:
        """Publish an encoded batch, stored as it is: the fastest way in."""

    async def publish_to(
        self,
        exchange: str,
        messages: Message | Sequence[Message] | EncodedBatch,
        *,
        mandatory: bool = False,
        publish_id: str | None = None,
    ) -> Receipt:
        """Publish to an exchange: each message goes to every queue that its key and headers lead to, or to none.

        With `mandatory`, a message that reaches no queue raises `Unroutable` and nothing is published.
        """


class Consuming(Protocol):
    """Messages out of work groups: claim, then settle or extend."""

    async def claim(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        max: int = 1,
        min: int = 1,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        partition: str | None = None,
        consumer: str | None = None,
        ack: bool = False,
        priority: int = 0,
    ) -> Claim:
        """Lease up to `max` messages, waiting up to `wait` seconds for the first `min` of them.

        The messages are this consumer's until the lease ends: settle them before, or extend the lease. With `ack` they
        are done as they are handed out: at most once. The claim is empty when no message came in time. Among waiting
        claims, a higher `priority` is served first.

        A claim returns at most about 16 MiB, and a few thousand messages if each must be checked (filter, delay, TTL,
        partitions). Fewer than `max` does not mean that the queue is empty.
        """

    async def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> None:
        """Carry out any mix of verdicts on messages of a lease, all or none.

        Raises `LeaseLost` when the lease has ended, or some of the messages were settled before.
        """

    async def settle_and_claim(
        self,
        lease: LeaseLike,
        verdicts: Sequence[Verdict] | None = None,
        *,
        max: int = 1,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Claim:
        """Settle a lease (ack all of it, without verdicts) and claim the next messages of its queue and group.

        Both are one commit, and over HTTP one request. The claim does not wait: it is empty when there is no message.
        Raises `LeaseLost` as `settle` does; then nothing is claimed.
        """

    async def ack(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """These messages are done (all of the lease, without offsets)."""
        await self.settle(lease, verdicts_of("ack", offsets))

    async def nack(
        self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = ""
    ) -> None:
        """Report failure.

        The messages are retried after a backoff (or `delay` seconds), and dead-lettered after the last attempt.
        """
        await self.settle(lease, nacked(offsets, delay, error))

    async def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> None:
        """Dead-letter these messages at once, with the error."""
        await self.settle(lease, verdicts_of("reject", offsets, None, error))

    async def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> None:
        """Deliver these messages again after `delay` seconds, without counting an attempt.

        An ordered partition waits for them.
        """
        await self.settle(lease, verdicts_of("postpone", offsets, waiting_ms(delay)))

    async def release(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """Return these messages to the queue at once, without counting an attempt."""
        await self.settle(lease, verdicts_of("release", offsets))

    async def extend(self, lease: LeaseLike, seconds: float | None = None) -> int:
        """Keep the lease for another span from now (the queue's, unless given).

        Returns its new deadline in milliseconds since the epoch.
        """


class Streaming(Protocol):
    """Messages of the log in order, without leases."""

    async def read(
        self,
        queue: str,
        group: str,
        *,
        max: int = 100,
        wait: float = 0.0,
        consumer: str | None = None,
        turn: str | None = None,
        lost: Sequence[str] = (),
    ) -> StreamRead:
        """The next messages for a stream group, waiting up to `wait` seconds for the first.

        What is damaged in the store is passed over, and `damaged` names it. A read that finds only damaged messages
        returns at once, empty.

        `turn` names this read alone, and `lost` the reads of the same consumer whose answers did not arrive: what they
        were given is read again, and one that arrives only now is refused. The Python client sees to both.
        """

    async def commit(
        self, queue: str, group: str, offset: int, *, lane: int | None = None, only_forward: bool = False
    ) -> None:
        """A stream group has processed everything below `offset` (of lane 0, 1, 2 …, where the queue has several).

        With `only_forward`, nothing changes where the group has already committed a higher offset.
        """

    async def read_from(
        self,
        queue: str,
        offset: int | None = None,
        *,
        time_ms: int | None = None,
        max: int = 100,
        lane: int | None = None,
        wait: float = 0.0,
    ) -> StreamRead:
        """Messages of the log from an offset or a time on (from the beginning without either); no group needed.

        Where there are none yet, it waits up to `wait` seconds for the first. What is damaged in the store is passed
        over, and `damaged` names it.
        """


class Messages(Publishing, Consuming, Streaming, Protocol):
    """Everything that moves messages."""


class Transaction(Protocol):
    """Verdicts and publishes, over any queues, that become one commit: all of it or nothing."""

    receipt: Receipt | None = None
    """Where the messages went; None until the commit."""

    def publish(self, queue: str, *messages: Message) -> Self:
        """Publish to a queue."""
        ...

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        """Publish to an exchange."""
        ...

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        """Any mix of verdicts on a lease; without any it stays as it is, and must only not have ended."""
        ...

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Self:
        """These messages are done."""
        return self.settle(lease, verdicts_of("ack", offsets))

    def nack(self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = "") -> Self:
        """Report failure of these messages."""
        return self.settle(lease, nacked(offsets, delay, error))

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> Self:
        """Dead-letter these messages at once, with the error."""
        return self.settle(lease, verdicts_of("reject", offsets, None, error))

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> Self:
        """Deliver these messages again after `delay` seconds, without counting an attempt."""
        return self.settle(lease, verdicts_of("postpone", offsets, waiting_ms(delay)))

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> Self:
        """Return these messages to the queue at once, without counting an attempt."""
        return self.settle(lease, verdicts_of("release", offsets))

    async def commit(self) -> Receipt:
        """Do it all. Raises, and does nothing, if any part cannot be done."""
        if self.receipt is not None:
            raise InvalidArgument("this transaction was committed before; begin another")
        self.receipt = await self._commit()
        return self.receipt

    async def _commit(self) -> Receipt: ...

    async def __aenter__(self) -> Self:
        """Begin to collect; the end of the block commits, unless it raises or `commit` was called."""
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and self.receipt is None:
            await self.commit()
