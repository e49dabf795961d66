"""Marks and staging, from a client: small durable documents, and chunks that one commit publishes together with them.

Every one of these may be sent twice without harm: a chunk is known by its name, a transaction by its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.api.broker import Broker
from penstock.api.staging import Committed, Mark, MarkPage, MarkPut, check_puts, check_target
from penstock.batch import EncodedBatch
from penstock.client.operations.codec import frame, with_query
from penstock.client.operations.requests import SENDS_BATCH, TAKES_JSON, Requests, decoded, requested
from penstock.client.transport.channel import Request, is_repeat
from penstock.model.errors import MarkMoved
from penstock.wire.http.shapes import CommitStagedRequest, MarkPutBody, PutMarkRequest, encode_json

COMMIT_SECONDS: Final = 600.0
"""A large commit is answered when all of it is published."""


class ClientStaging(Requests):
    """Reads and puts marks, stages and commits."""

    mark = requested(Broker.mark)
    delete_mark = requested(Broker.delete_mark)

    async def marks(self, prefix: str = "") -> list[Mark]:
        return [mark async for page in self._pages(MarkPage, self._target("marks"), prefix) for mark in page.marks]

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        [(_, text)] = check_puts([MarkPut(name, value, expected_version)])
        body = PutMarkRequest(value=msgspec.Raw(text), expected_version=expected_version)
        try:
            return decoded(Mark, await self._send(b"PUT", self._target("marks", name), body))
        except MarkMoved as error:
            if expected_version is None or not is_repeat(error):
                raise
            mark = await self.mark(name)
            if mark.version != expected_version + 1 or mark.value != msgspec.json.decode(text):
                raise
            return mark  # it was this call that moved it, and the answer that was lost

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

    abort_staged = requested(Broker.abort_staged)
    staged = requested(Broker.staged)
