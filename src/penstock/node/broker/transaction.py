"""Verdicts and publishes, collected by a user and committed as one. Next stop: `node/publish/transactions.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.api.results import Claim, Lease, Receipt
from penstock.model import SPAN_MS_MAX, Message
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Verdict
from penstock.node.arguments import Ranges, check_verdict, milliseconds, verdicts_of
from penstock.node.publish import append, route, transactions
from penstock.node.publish.parts import Part

if TYPE_CHECKING:
    from penstock.node.broker.messages import Messages

LeaseLike = Claim | Lease | str


class Transaction:
    """Verdicts and publishes, over any queues, that become one commit: all of it or nothing."""

    def __init__(self, broker: Messages) -> None:
        self._broker = broker
        self._settles: dict[Lease, list[Verdict]] = {}
        self._parts: list[Part] = []
        self._count = 0
        self._ended = False
        self.receipt: Receipt | None = None

    def publish(self, queue: str, *messages: Message) -> Transaction:
        """Publish to a queue."""
        home = self._broker._known_target(queue)
        indexes = list(range(self._count, self._count + len(messages)))
        self._parts += append.parts_of_messages(home, list(messages), indexes)
        self._count += len(messages)
        return self

    def publish_to(self, exchange: str, *messages: Message) -> Transaction:
        """Publish to an exchange."""
        node, namespace = self._broker._node, self._broker._namespace
        self._broker._check_exchange(exchange)
        for part in route.route_messages(node, namespace, exchange, list(messages), mandatory=False):
            indexes = [self._count + index for index in part.indexes or ()]
            self._parts.append(msgspec.structs.replace(part, indexes=indexes))
        self._count += len(messages)
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Transaction:
        """Any mix of verdicts on a lease."""
        for verdict in verdicts:
            check_verdict(verdict)
        self._settles.setdefault(self._broker._known_lease(lease), []).extend(verdicts)
        return self

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Transaction:
        """These messages are done."""
        return self.settle(lease, verdicts_of("ack", offsets))

    def nack(
        self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = ""
    ) -> Transaction:
        """These failed."""
        delay_ms = None if delay is None else milliseconds(delay, "delay", 0, SPAN_MS_MAX)
        return self.settle(lease, verdicts_of("nack", offsets, delay_ms, error))

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> Transaction:
        """These will never succeed."""
        return self.settle(lease, verdicts_of("reject", offsets, None, error))

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> Transaction:
        """These again after `delay` seconds, without spending an attempt."""
        return self.settle(lease, verdicts_of("postpone", offsets, milliseconds(delay, "delay", 0, SPAN_MS_MAX)))

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> Transaction:
        """These back at once, as if never handed out."""
        return self.settle(lease, verdicts_of("release", offsets))

    async def commit(self) -> Receipt:
        """Do it all. Raises, and does nothing, if any part cannot be done."""
        if self._ended:
            raise InvalidArgument("this transaction was committed before; begin another")
        self._broker._node.check_open()
        self.receipt = await transactions.commit(self._broker._node, self._settles, self._count, self._parts)
        self._ended = True
        return self.receipt

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._ended:
            await self.commit()
