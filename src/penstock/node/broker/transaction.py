"""Verdicts and publishes, collected by a user and committed as one. Next stop: `node/publish/transactions.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import msgspec

from penstock.api.arguments import check_verdict
from penstock.api.messages import Transaction
from penstock.api.results import Claim, Lease, Receipt
from penstock.model import Message
from penstock.model.verdict import Verdict
from penstock.node.publish.parts import Part, parts_of_messages, route_messages

if TYPE_CHECKING:
    from penstock.node.broker.messages import LocalMessages

LeaseLike = Claim | Lease | str


class LocalTransaction(Transaction):
    """Collects parts and verdicts for one commit."""

    def __init__(self, broker: LocalMessages) -> None:
        self._broker = broker
        self._settles: dict[Lease, list[Verdict]] = {}
        self._parts: list[Part] = []
        self._count = 0

    def publish(self, queue: str, *messages: Message) -> Self:
        home = self._broker._known_target(queue)
        indexes = list(range(self._count, self._count + len(messages)))
        self._parts += parts_of_messages(home, list(messages), indexes)
        self._count += len(messages)
        return self

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        catalog, namespace = self._broker._services.catalog, self._broker._namespace
        self._broker._check("exchange", exchange, "publish")
        for part in route_messages(catalog, namespace, exchange, list(messages), mandatory=False):
            indexes = [self._count + index for index in part.indexes or ()]
            self._parts.append(msgspec.structs.replace(part, indexes=indexes))
        self._count += len(messages)
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        for verdict in verdicts:
            check_verdict(verdict)
        self._settles.setdefault(self._broker._known_lease(lease), []).extend(verdicts)
        return self

    async def _commit(self) -> Receipt:
        self._broker._services.lifecycle.check_open()
        return await self._broker._services.transactions.commit(self._settles, self._count, self._parts)
