"""Verdicts and publishes collected at the client, sent as one request and carried out as one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import msgspec

from penstock.api.arguments import check_verdict, lease_of
from penstock.api.messages import Transaction
from penstock.api.results import Lease, LeaseLike, Receipt
from penstock.client.operations.codec import receipt_of, verdict_body
from penstock.client.operations.messages import unsure_of
from penstock.client.operations.requests import TAKES_JSON
from penstock.client.transport.channel import Request, is_repeat
from penstock.model import Message, check_message
from penstock.model.errors import LeaseLost
from penstock.model.verdict import Verdict
from penstock.wire.http.shapes import LeaseVerdicts, TargetMessages, TransactionRequest, encode_json, message_body

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient


class ClientTransaction(Transaction):
    """Collects a request."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._settles: dict[Lease, list[Verdict]] = {}
        self._publishes: list[TargetMessages] = []
        self._is_repeatable = True

    def publish(self, queue: str, *messages: Message) -> Self:
        return self._publish(TargetMessages(queue=queue, messages=[]), messages)

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        return self._publish(TargetMessages(exchange=exchange, messages=[]), messages)

    def _publish(self, target: TargetMessages, messages: Sequence[Message]) -> Self:
        for message in messages:
            check_message(message)
            if message.dedup_id is None:
                if self._client._idempotent:
                    message = msgspec.structs.replace(message, dedup_id=self._client._ids.new())
                else:
                    self._is_repeatable = False
            target.messages.append(message_body(message))
        if target.messages:
            self._publishes.append(target)
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        for verdict in verdicts:
            check_verdict(verdict)
        self._settles.setdefault(lease_of(lease), []).extend(verdicts)
        return self

    async def _commit(self) -> Receipt:
        if not (self._settles or self._publishes):
            return Receipt(0, [])
        body = TransactionRequest(
            settle=[
                LeaseVerdicts(str(lease), [verdict_body(verdict) for verdict in verdicts])
                for lease, verdicts in self._settles.items()
            ],
            publish=self._publishes,
        )
        # Publishes have ids, and a lease is settled once: what was carried out is not carried out again.
        request = Request(
            b"POST",
            self._client._target("transactions"),
            encode_json(body),
            TAKES_JSON,
            is_repeatable=self._is_repeatable or any(self._settles.values()),
        )
        try:
            return receipt_of((await self._client._channel.send(request, self._client._retry)).body)
        except LeaseLost as error:
            if is_repeat(error):
                raise unsure_of(error, "committed") from error
            raise
