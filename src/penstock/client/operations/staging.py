"""Staging, from a client: chunks that nobody sees until one commit publishes them, together with marks.

Every one of these may be sent twice without harm: a chunk is known by its name, a transaction by its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.batch import EncodedBatch
from penstock.client.operations.codec import frame, with_query
from penstock.client.operations.requests import SENDS_BATCH, TAKES_JSON, Requests, decoded
from penstock.client.transport.channel import Request
from penstock.node.marks import MarkPut, check_puts
from penstock.node.staging.results import Committed, Staged, StagedChunk, check_target
from penstock.wire.http.shapes import encode_json
from penstock.wire.http.staging import CommitStagedRequest, CommittedBody, MarkPutBody, StagedBody

COMMIT_SECONDS: Final = 600.0
"""A large commit is answered when all of it is published."""


class Staging(Requests):
    """The part of a client that stages and commits."""

    async def stage(
        self,
        transaction: str,
        chunk: str,
        batch: EncodedBatch,
        *,
        queue: str | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
    ) -> None:
        """Keep a batch for a queue or exchange durably, invisible until `commit_staged` names its chunk.

        The first batch under a chunk's name is kept; staging it again changes nothing, and so does staging for a
        transaction that is committed. With `routing_key`, for an exchange, every message of the batch gets that key.
        """
        check_target(queue, exchange, routing_key)
        body, more = frame(batch)
        path = self._target("staged", transaction, chunk)
        path = with_query(path, queue=queue, exchange=exchange, routing_key=routing_key)
        await self._channel.send(Request(b"PUT", path, body, SENDS_BATCH, more=more), self._retry)

    async def commit_staged(
        self,
        transaction: str,
        chunks: Sequence[str],
        *,
        marks: Sequence[MarkPut] = (),
        publish_id: str | None = None,
    ) -> Committed:
        """Publish exactly these chunks of a transaction, in this order, and put the marks: all of it or nothing.

        Chunks that are not named are dropped. Done again, it changes nothing and says so in `repeated`, for a week.
        Raises `ChunkMissing` where a chunk was not staged (or has expired), `MarkMoved` where a mark is not at its
        expected version. Up to 64 MiB are one commit; more is decided at once and then published piece by piece, in
        order, through any crash; consumers may see its first pieces before its last. `publish_id` names the chunks in
        their queues: published before under the same id and chunk names within the dedup window, they are left out.
        """
        body = CommitStagedRequest(
            chunks=list(chunks),
            marks=[
                MarkPutBody(name=put.name, value=msgspec.Raw(text), expected_version=put.expected_version)
                for put, text in check_puts(marks)
            ],
            publish_id=publish_id,
        )
        path = self._target("staged", transaction, "commit")
        request = Request(b"POST", path, encode_json(body), TAKES_JSON, max(COMMIT_SECONDS, self._channel.timeout_s))
        answer = decoded(CommittedBody, (await self._channel.send(request, self._retry)).body)
        return Committed(answer.published, answer.repeated)

    async def abort_staged(self, transaction: str) -> None:
        """Drop what was staged for a transaction, if there is anything; `AlreadyCommitted` where it is too late."""
        await self._send(b"DELETE", self._target("staged", transaction))

    async def staged(self, transaction: str) -> Staged:
        """How a transaction stands: its state, its chunks, and when it expires."""
        body = await self._get(StagedBody, self._target("staged", transaction))
        chunks = [
            StagedChunk(chunk.chunk, chunk.queue, chunk.exchange, chunk.routing_key, chunk.messages, chunk.bytes)
            for chunk in body.chunks
        ]
        return Staged(body.transaction, body.state, chunks, body.published, body.expires_ms)
