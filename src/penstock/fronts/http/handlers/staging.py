"""Staging: chunks that stay invisible until one commit publishes them, together with marks."""

from __future__ import annotations

from msgspec import Struct

from penstock import telemetry
from penstock.api.marks import MarkPut
from penstock.batch import EncodedBatch, encode
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import check_message
from penstock.model.errors import AlreadyCommitted, ChunkMissing, MarkMoved, MessageTooLarge, QueueFull
from penstock.wire.http.shapes import PublishRequest
from penstock.wire.http.staging import CommitStagedRequest, CommittedBody, StagedBody, StagedChunkBody

ROUTES = Routes()
TRANSACTION = "/v1/staged/{transaction}"


class StageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    queue: str | None = None
    """Where the chunk is to be published: a queue"""
    exchange: str | None = None
    """or an exchange."""
    routing_key: str | None = None
    """For an exchange: every message of the chunk gets this key."""


@ROUTES.add("PUT", TRANSACTION + "/{chunk}", {204: None}, takes_batch=True, errors=[MessageTooLarge])
async def stage(call: Call, body: PublishRequest | None, query: StageQuery) -> Answer:
    """Keep a chunk of messages durably, invisible until its commit; the same chunk again changes nothing."""
    batch = call.request.batch() if body is None else _encoded(body)
    await call.broker.stage(
        call.names["transaction"],
        call.names["chunk"],
        batch,
        queue=query.queue,
        exchange=query.exchange,
        routing_key=query.routing_key,
    )
    return NOTHING


def _encoded(body: PublishRequest) -> EncodedBatch:
    messages = telemetry.inject_all([message.message() for message in body.messages])
    for message in messages:
        check_message(message)
    return encode(messages)


@ROUTES.add(
    "POST",
    TRANSACTION + "/commit",
    {200: CommittedBody},
    errors=[ChunkMissing, MarkMoved, QueueFull, MessageTooLarge],
)
async def commit_staged(call: Call, body: CommitStagedRequest) -> Answer:
    """Publish exactly these chunks, in this order, and put the marks: all of it or nothing, once.

    Up to 64 MiB are one commit. More is decided at once, with the marks, and then published piece by piece, in order,
    each message once, whatever crashes; the answer comes at the end, and a repetition waits for it.
    """
    puts = [MarkPut(mark.name, mark.value, mark.expected_version) for mark in body.marks]
    done = await call.broker.commit_staged(
        call.names["transaction"], body.chunks, marks=puts, publish_id=body.publish_id
    )
    return json_answer(CommittedBody(published=done.published, repeated=done.repeated))


@ROUTES.add("GET", TRANSACTION, {200: StagedBody})
async def show_staged(call: Call) -> Answer:
    """How a transaction stands, and its chunks; one that was never seen is `unknown`."""
    staged = await call.broker.staged(call.names["transaction"])
    chunks = [
        StagedChunkBody(
            chunk=chunk.chunk,
            queue=chunk.queue,
            exchange=chunk.exchange,
            routing_key=chunk.routing_key,
            messages=chunk.messages,
            bytes=chunk.bytes,
        )
        for chunk in staged.chunks
    ]
    return json_answer(
        StagedBody(
            transaction=staged.transaction,
            state=staged.state,
            chunks=chunks,
            published=staged.published,
            expires_ms=staged.expires_ms,
        )
    )


@ROUTES.add("DELETE", TRANSACTION, {204: None}, errors=[AlreadyCommitted])
async def abort_staged(call: Call) -> Answer:
    """Drop what was staged; nothing where the transaction is unknown."""
    await call.broker.abort_staged(call.names["transaction"])
    return NOTHING
