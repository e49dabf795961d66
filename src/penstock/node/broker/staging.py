"""Marks, and batches that are kept durably and published together, later.

Next stop: `node/marks.py`, `node/staging/staging.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.api.arguments import check_publish_id, check_sequence
from penstock.api.principal import Action
from penstock.api.staging import Committed, Mark, MarkPage, MarkPut, Staged, StagedChunk, Staging, check_target
from penstock.batch import EncodedBatch
from penstock.model import NAME_CHARACTERS_MAX, check_integer, check_name, check_text
from penstock.model.errors import Forbidden, InvalidArgument, NotFound
from penstock.node.broker.names import Names


class LocalStaging(Names, Staging):
    """Reads and puts marks, stages and commits."""

    async def marks(self, prefix: str = "") -> list[Mark]:
        self._check_listing()
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        return self._services.marks.named(self._namespace, prefix)

    async def marks_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> MarkPage:
        self._check_listing()
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        check_text(after, "after", NAME_CHARACTERS_MAX)
        check_integer(max, "max", 1, 1_000)
        return self._services.marks.page(self._namespace, prefix, after, max)

    async def mark(self, name: str) -> Mark:
        self._check_registrars("mark", name, "browse")
        return self._services.marks.one(self._namespace, name)

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        self._check_registrars("mark", name, "manage")
        return await self._services.marks.put(self._namespace, MarkPut(name, value, expected_version))

    async def delete_mark(self, name: str) -> None:
        self._check_registrars("mark", name, "manage")
        await self._services.marks.delete(self._namespace, name)

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
        place = self._staged(transaction, "publish")
        if check_name(chunk, "a chunk's name") == "commit":
            raise InvalidArgument("a chunk cannot be named 'commit', which is what its transaction's path ends with")
        check_target(queue, exchange, routing_key)
        if not isinstance(batch, EncodedBatch):
            raise InvalidArgument(f"a batch must be a penstock.EncodedBatch, not {type(batch).__name__}")
        payload_most = self._services.catalog.sizes.message
        if queue is not None:
            home = self._known_target(queue)
            payload_most = home.message_bytes_max
            if home.session is not None:
                raise Forbidden(f"queue {queue!r} is exclusive and goes with its session; stage for one that stays")
        else:
            self._check("exchange", exchange or "", "publish")
        if queue is None and exchange not in self._services.catalog.router(self._namespace).exchanges():
            raise NotFound(f"there is no exchange {exchange!r}; declare it first")
        self._services.publisher.check_size(batch.count, batch.size)
        target = StagedChunk(
            chunk=chunk,
            queue=queue,
            exchange=exchange,
            routing_key=routing_key,
            messages=batch.count,
            bytes=batch.size,
        )
        if self._services.alarms.low:
            await self._services.alarms.admit(batch.size)
        await self._services.staging.stage(place, target, batch, payload_most)

    def _staged(self, transaction: str, action: Action) -> tuple[str, str]:
        check_name(transaction, "a transaction's name")
        self._check_registrars("transaction", transaction, action)
        return self._namespace, transaction

    async def commit_staged(
        self,
        transaction: str,
        chunks: Sequence[str],
        *,
        marks: Sequence[MarkPut] = (),
        publish_id: str | None = None,
    ) -> Committed:
        place = self._staged(transaction, "publish")
        check_publish_id(publish_id)
        check_sequence(chunks)
        for chunk in chunks:
            check_name(chunk, "a chunk's name")
        for mark in marks:
            self._check_registrars("mark", mark.name, "manage")
        if chunks and self._services.alarms.low:
            await self._services.alarms.admit(0)
        return await self._services.staging.commit(place, chunks, marks, publish_id)

    async def abort_staged(self, transaction: str) -> None:
        place = self._staged(transaction, "publish")
        await self._services.staging.abort(place)

    async def staged(self, transaction: str) -> Staged:
        place = self._staged(transaction, "browse")
        return await self._services.staging.show(place)
