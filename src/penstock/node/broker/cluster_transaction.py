"""A transaction of a node among others: collected here, committed by this node or by the one that owns it all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from penstock.api.results import LeaseLike, Receipt
from penstock.api.transaction import Transaction
from penstock.model import Message
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Verdict

Step = Callable[[Transaction], Transaction]
Commit = Callable[[Transaction, Step], Awaitable[Receipt]]
"""Takes what was collected for this node, and what collects it once more for another."""


class ClusterTransaction(Transaction):
    """Collects for the local broker, which says at once what is wrong, and remembers the steps for another node."""

    def __init__(self, local: Transaction, commit: Commit) -> None:
        self._local = local
        self._commit = commit
        self._steps: list[Step] = []
        self._ended = False
        self.receipt: Receipt | None = None

    def publish(self, queue: str, *messages: Message) -> Self:
        return self._step(lambda transaction: transaction.publish(queue, *messages))

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        return self._step(lambda transaction: transaction.publish_to(exchange, *messages))

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        return self._step(lambda transaction: transaction.settle(lease, verdicts))

    def _step(self, step: Step) -> Self:
        step(self._local)
        self._steps.append(step)
        return self

    def _replay(self, transaction: Transaction) -> Transaction:
        for step in self._steps:
            step(transaction)
        return transaction

    async def commit(self) -> Receipt:
        if self._ended:
            raise InvalidArgument("this transaction was committed before; begin another")
        self.receipt = await self._commit(self._local, self._replay)
        self._ended = True
        return self.receipt

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._ended:
            await self.commit()
