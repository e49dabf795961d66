"""Staging, from a client: chunks that nobody sees until one commit publishes them, together with marks.

Every one of these may be sent twice without harm: a chunk is known by its name, a transaction by its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.api.marks import MarkPut, check_puts
from penstock.api.staging import Committed, Staged, Staging, check_target
from penstock.batch import EncodedBatch
from penstock.client.operations.codec import frame, with_query
from penstock.client.operations.requests import SENDS_BATCH, TAKES_JSON, Requests, decoded
from penstock.client.transport.channel import Request
from penstock.wire.http.shapes import CommitStagedRequest, MarkPutBody, encode_json

COMMIT_SECONDS: Final = 600.0
"""A large commit is answered when all of it is published."""


class ClientStaging(Requests, Staging):
    """Stages and commits."""

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
        return decoded(Committed, (await self._channel.send(request, self._retry)).body)

    async def abort_staged(self, transaction: str) -> None:
        await self._send(b"DELETE", self._target("staged", transaction))

    async def staged(self, transaction: str) -> Staged:
        return await self._get(Staged, self._target("staged", transaction))
