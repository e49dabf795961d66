"""Publish to queues and exchanges; transactions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.api.slices import SLICE_ITEMS
from penstock.api.ticket import Ticket
from penstock.fronts.answers import LARGE_BYTES, on_thread
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.bodies import (
    many_messages,
    many_results_answer,
    many_verdicts,
    messages_of,
    parts_answer,
    results_answer,
)
from penstock.fronts.http.request import Answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import InvalidArgument, LeaseLost, MessageTooLarge, QueueFull, Unroutable
from penstock.wire.http.shapes import BufferedAnswer, MessageBody, PublishAnswer, PublishRequest, TransactionRequest

ROUTES = Routes(__name__)


class PublishQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    publish_id: str | None = None
    """Names the whole request: sent again under the same id within the queue's dedup window, it changes nothing."""


@ROUTES.add(
    "POST",
    "/v1/queues/{queue}/messages",
    {200: PublishAnswer, 202: BufferedAnswer},
    takes_batch=True,
    errors=[QueueFull, MessageTooLarge],
)
def publish(call: Call, body: PublishRequest | None, query: PublishQuery) -> Ticket[Answer]:
    """Publish messages, all or none; answered when they are durable."""
    queue = call.names["queue"]
    if body is None:
        if call.request.body_bytes >= LARGE_BYTES:
            return Ticket.of(_publish_large(call, query))
        batch = call.request.batch()
        return call.broker.publish_batch(queue, batch, publish_id=query.publish_id).map(parts_answer)
    if len(body.messages) > SLICE_ITEMS:
        return Ticket.of(_publish_many(call, body.messages, query))
    messages = messages_of(body.messages)
    return call.broker.publish_many(queue, messages, publish_id=query.publish_id).map(results_answer)


async def _publish_large(call: Call, query: PublishQuery) -> Answer:
    batch = await on_thread(call.request.batch)
    receipt = await call.broker.publish_batch(call.names["queue"], batch, publish_id=query.publish_id)
    return parts_answer(receipt)


async def _publish_many(call: Call, bodies: Sequence[MessageBody], query: PublishQuery) -> Answer:
    messages = await many_messages(bodies)
    receipt = await call.broker.publish_many(call.names["queue"], messages, publish_id=query.publish_id)
    return await many_results_answer(receipt)


class ExchangeQuery(PublishQuery, forbid_unknown_fields=True, kw_only=True):
    mandatory: bool = False
    """Refuse all of it when a message reaches no queue."""


@ROUTES.add(
    "POST",
    "/v1/exchanges/{exchange}/messages",
    {200: PublishAnswer, 202: BufferedAnswer},
    takes_batch=True,
    errors=[QueueFull, MessageTooLarge, Unroutable],
)
def publish_to(call: Call, body: PublishRequest | None, query: ExchangeQuery) -> Ticket[Answer]:
    """Publish to an exchange: each message goes to every queue that its key and headers lead to."""
    exchange = call.names["exchange"]
    if body is None:
        batch = call.request.batch()
        ticket = call.broker.publish_to(exchange, batch, mandatory=query.mandatory, publish_id=query.publish_id)
        return ticket.map(parts_answer)
    if len(body.messages) > SLICE_ITEMS:
        return Ticket.of(_publish_many_to(call, body.messages, query))
    messages = messages_of(body.messages)
    ticket = call.broker.publish_to(exchange, messages, mandatory=query.mandatory, publish_id=query.publish_id)
    return ticket.map(results_answer)


async def _publish_many_to(call: Call, bodies: Sequence[MessageBody], query: ExchangeQuery) -> Answer:
    messages = await many_messages(bodies)
    receipt = await call.broker.publish_to(
        call.names["exchange"], messages, mandatory=query.mandatory, publish_id=query.publish_id
    )
    return await many_results_answer(receipt)


@ROUTES.add("POST", "/v1/transactions", {200: PublishAnswer}, errors=[LeaseLost, QueueFull, MessageTooLarge])
async def transaction(call: Call, body: TransactionRequest) -> Answer:
    """Verdicts and publishes, over any queues, as one commit: all of it or nothing."""
    if not body.settle and not body.publish:
        raise InvalidArgument("the transaction is empty; it needs something to settle or to publish")
    unit = call.broker.transaction()
    for part in body.settle:
        unit.settle(part.lease, await many_verdicts(part.verdicts))
    for target in body.publish:
        messages = await many_messages(target.messages)
        if target.queue is not None and target.exchange is None:
            unit.publish(target.queue, *messages)
        elif target.exchange is not None and target.queue is None:
            unit.publish_to(target.exchange, *messages)
        else:
            raise InvalidArgument("a publish of a transaction has either a queue or an exchange")
    return await many_results_answer(await unit.commit())
