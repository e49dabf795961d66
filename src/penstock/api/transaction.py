"""A transaction: verdicts and publishes, collected by the caller and committed as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from penstock.api.arguments import Ranges, nacked, verdicts_of, waiting_ms
from penstock.api.results import LeaseLike, Receipt
from penstock.model import Message
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Verdict


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
        """Any mix of verdicts on a lease."""
        ...

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Self:
        """These messages are done."""
        return self.settle(lease, verdicts_of("ack", offsets))

    def nack(self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = "") -> Self:
        """These failed."""
        return self.settle(lease, nacked(offsets, delay, error))

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> Self:
        """These will never succeed."""
        return self.settle(lease, verdicts_of("reject", offsets, None, error))

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> Self:
        """These again after `delay` seconds, without spending an attempt."""
        return self.settle(lease, verdicts_of("postpone", offsets, waiting_ms(delay)))

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> Self:
        """These back at once, as if never handed out."""
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
