"""Verdicts and publishes collected at the client, sent as one request and carried out as one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.api.results import Lease, Receipt
from penstock.client.operations.codec import receipt_of, verdict_body
from penstock.client.operations.messages import lease_of, unsure_of
from penstock.client.operations.requests import TAKES_JSON
from penstock.client.transport.channel import Request, is_repeat
from penstock.model import SPAN_MS_MAX, Message, check_message
from penstock.model.errors import InvalidArgument, LeaseLost
from penstock.model.verdict import Verdict
from penstock.node.arguments import Ranges, check_verdict, milliseconds, verdicts_of
from penstock.node.broker import LeaseLike
from penstock.wire.http.shapes import LeaseVerdicts, TargetMessages, TransactionRequest, encode_json, message_body

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient


class ClientTransaction:
    """Verdicts and publishes, over any queues, that become one commit: all of it or nothing."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._settles: dict[Lease, list[Verdict]] = {}
        self._publishes: list[TargetMessages] = []
        self._is_repeatable = True
        self._ended = False
        self.receipt: Receipt | None = None

    def publish(self, queue: str, *messages: Message) -> ClientTransaction:
        """Publish to a queue."""
        return self._publish(TargetMessages(queue=queue, messages=[]), messages)

    def publish_to(self, exchange: str, *messages: Message) -> ClientTransaction:
        """Publish to an exchange."""
        return self._publish(TargetMessages(exchange=exchange, messages=[]), messages)

    def _publish(self, target: TargetMessages, messages: Sequence[Message]) -> ClientTransaction:
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

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> ClientTransaction:
        """Any mix of verdicts on a lease."""
        for verdict in verdicts:
            check_verdict(verdict)
        if verdicts:
            self._settles.setdefault(lease_of(lease), []).extend(verdicts)
        return self

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> ClientTransaction:
        """These messages are done."""
        return self.settle(lease, verdicts_of("ack", offsets))

    def nack(
        self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = ""
    ) -> ClientTransaction:
        """These failed."""
        delay_ms = None if delay is None else milliseconds(delay, "delay", 0, SPAN_MS_MAX)
        return self.settle(lease, verdicts_of("nack", offsets, delay_ms, error))

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> ClientTransaction:
        """These will never succeed."""
        return self.settle(lease, verdicts_of("reject", offsets, None, error))

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> ClientTransaction:
        """These again after `delay` seconds, without spending an attempt."""
        return self.settle(lease, verdicts_of("postpone", offsets, milliseconds(delay, "delay", 0, SPAN_MS_MAX)))

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> ClientTransaction:
        """These back at once, as if never handed out."""
        return self.settle(lease, verdicts_of("release", offsets))

    async def commit(self) -> Receipt:
        """Do it all. Raises, and does nothing, if any part cannot be done."""
        if self._ended:
            raise InvalidArgument("this transaction was committed before; begin another")
        if self._settles or self._publishes:
            self.receipt = await self._commit()
        else:
            self.receipt = Receipt(0, [])
        self._ended = True
        return self.receipt

    async def _commit(self) -> Receipt:
        body = TransactionRequest(
            settle=[
                LeaseVerdicts(str(lease), [verdict_body(verdict) for verdict in verdicts])
                for lease, verdicts in self._settles.items()
            ],
            publish=self._publishes,
        )
        # Publishes have ids, and a lease is settled once: what was carried out is not carried out again.
        request = Request(
            b"POST", self._client._target("transactions"), encode_json(body), TAKES_JSON,
            is_repeatable=self._is_repeatable or bool(self._settles),
        )  # fmt: skip
        try:
            return receipt_of((await self._client._channel.send(request, self._client._retry)).body)
        except LeaseLost as error:
            if is_repeat(error):
                raise unsure_of(error, "committed") from error
            raise

    async def __aenter__(self) -> ClientTransaction:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._ended:
            await self.commit()
