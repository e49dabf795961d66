"""Staging: batches that are kept durably and published together, later. Next stop: `node/staging/staging.py`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.batch import EncodedBatch
from penstock.model import PAYLOAD_BYTES_MAX, check_name
from penstock.model.errors import Forbidden, InvalidArgument, NotFound
from penstock.node.arguments import check_publish_id, check_sequence
from penstock.node.broker.names import Names
from penstock.node.marks import MarkPut
from penstock.node.publish import append
from penstock.node.staging.results import Committed, Staged, StagedChunk, check_target


class Staging(Names):
    """The part of a broker that stages."""

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
        self._check_registrar()
        place = self._staged(transaction)
        if check_name(chunk, "a chunk's name") == "commit":
            raise InvalidArgument("a chunk cannot be named 'commit', which is what its transaction's path ends with")
        check_target(queue, exchange, routing_key)
        if not isinstance(batch, EncodedBatch):
            raise InvalidArgument(f"a batch must be a penstock.EncodedBatch, not {type(batch).__name__}")
        payload_most = PAYLOAD_BYTES_MAX
        if queue is not None:
            home = self._known_target(queue)
            payload_most = home.config.max_message_bytes
            if home.session is not None:
                raise Forbidden(f"queue {queue!r} is exclusive and goes with its session; stage for one that stays")
        elif exchange not in self._node.catalog.router(self._namespace).exchanges():
            raise NotFound(f"there is no exchange {exchange!r}; declare it first")
        append.check_size(self._node, batch.count, batch.size)
        target = StagedChunk(chunk, queue, exchange, routing_key, batch.count, batch.size)
        await self._node.staging.stage(place, target, batch, payload_most)

    def _staged(self, transaction: str) -> tuple[str, str]:
        return self._namespace, check_name(transaction, "a transaction's name")

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
        self._check_registrar()
        place = self._staged(transaction)
        check_publish_id(publish_id)
        check_sequence(chunks)
        for chunk in chunks:
            check_name(chunk, "a chunk's name")
        return await self._node.staging.commit(place, chunks, marks, publish_id)

    async def abort_staged(self, transaction: str) -> None:
        """Drop what was staged for a transaction, if there is anything; `AlreadyCommitted` where it is too late."""
        self._check_registrar()
        await self._node.staging.abort(self._staged(transaction))

    async def staged(self, transaction: str) -> Staged:
        """How a transaction stands: its state, its chunks, and when it expires."""
        self._check_registrar()
        return await self._node.staging.show(self._staged(transaction))
