"""A transaction of a node among others: collected here, committed by this node or by the one that owns it all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from penstock.api.messages import Transaction
from penstock.api.results import LeaseLike, Receipt
from penstock.model import Message
from penstock.model.verdict import Verdict

Step = Callable[[Transaction], Transaction]
CarryOut = Callable[[Transaction, Step], Awaitable[Receipt]]
"""Takes what was collected for this node, and what collects it once more for another."""


class ClusterTransaction(Transaction):
    """Collects for the local broker, which says at once what is wrong, and remembers the steps for another node."""

    def __init__(self, local: Transaction, carry_out: CarryOut) -> None:
        self._local = local
        self._carry_out = carry_out
        self._steps: list[Step] = []

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

    async def _commit(self) -> Receipt:
        return await self._carry_out(self._local, self._replay)
