"""Staging: chunks that stay invisible until one commit publishes them, together with marks."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from penstock import telemetry
from penstock.api.staging import Committed, MarkPut
from penstock.batch import EncodedBatch, encode
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import check_message
from penstock.model.errors import ChunkMissing, LimitReached, MarkMoved, MessageTooLarge, QueueFull
from penstock.wire.http.endpoints import TRANSACTION
from penstock.wire.http.shapes import CommitStagedRequest, PublishRequest

ROUTES = Routes(__name__)


class StageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    queue: str | None = None
    """Where the chunk is to be published: a queue"""
    exchange: str | None = None
    """or an exchange."""
    routing_key: str | None = None
    """For an exchange: every message of the chunk gets this key."""


@ROUTES.add("PUT", TRANSACTION + "/{chunk}", {204: None}, takes_batch=True, errors=[LimitReached, MessageTooLarge])
async def stage(call: Call, body: PublishRequest | None, query: StageQuery) -> Answer:
    """Keep a chunk of messages durably, invisible until its commit; the same chunk again changes nothing."""
    batch = call.request.batch() if body is None else _encoded(body)
    await call.broker.stage(call.names["transaction"], call.names["chunk"], batch, **msgspec.structs.asdict(query))
    return NOTHING


def _encoded(body: PublishRequest) -> EncodedBatch:
    messages = telemetry.inject_all([message.message() for message in body.messages])
    for message in messages:
        check_message(message)
    return encode(messages)


@ROUTES.add(
    "POST",
    TRANSACTION + "/commit",
    {200: Committed},
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
    return json_answer(done)
