"""Staged chunks as they are published: read back, checked, and split into parts for their queues."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from operator import methodcaller

from penstock.api.slices import in_turns
from penstock.batch import EncodedBatch, decode_meta, is_intact
from penstock.model.errors import Forbidden, NotFound, StoreCorrupt
from penstock.node.catalog import Catalog, Queue
from penstock.node.lanes import LaneSet
from penstock.node.publish.parts import Part, parts_of_batch, route_batch
from penstock.node.staging.records import StoredTransaction
from penstock.store.contract import Log

log = logging.getLogger("penstock.staging")


class Chunks:
    """Reads what transactions have staged."""

    def __init__(self, store: Log, catalog: Catalog, lanes: LaneSet) -> None:
        self._store = store
        self._catalog = catalog
        self._lanes = lanes

    async def parts(self, transaction: StoredTransaction, name: str, publish_id: str | None) -> list[Part]:
        """A chunk as it is published. Of one whose target was deleted after the decision nothing is left."""
        chunk = transaction.chunks[name].document
        batch = await self._read(transaction, name)
        chunk_id = None if publish_id is None else f"{publish_id}/{name}"
        try:
            if chunk.queue is None:
                exchange = chunk.exchange or ""
                return await in_turns(
                    route_batch(
                        self._catalog, transaction.namespace, exchange, batch, mandatory=False, publish_id=chunk_id
                    )
                )
            queue = self._queue(transaction, chunk.queue)
        except NotFound as error:
            if not transaction.is_decided:
                raise
            log.warning("chunk %r of staged transaction %r went with its target: %s", name, transaction.name, error)
            return []
        # It was checked when it was staged, and read back as it was written.
        return parts_of_batch(queue, batch, None, chunk_id, decode_meta(batch.meta, batch.count))

    async def check_room(
        self, transaction: StoredTransaction, names: Sequence[str], publish_id: str | None
    ) -> dict[str, int]:
        """Raise unless every target is there and has room for all of it; the ids of the queues that chunks name."""
        queues: dict[str, int] = {}
        wanted: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        for name in names:
            chunk = transaction.chunks[name].document
            queue = None if chunk.queue is None else self._catalog.queue(transaction.namespace, chunk.queue)
            if queue is not None:
                queues[queue.name] = queue.id
                if queue.config.max_length is None and queue.config.max_bytes is None:
                    continue  # there is room for everything
            for part in await self.parts(transaction, name, publish_id):
                wanted[part.lane][0] += part.count
                wanted[part.lane][1] += part.size
        for lane_id, (count, size) in wanted.items():
            await self._lanes.run(lane_id, methodcaller("check_room", count, size))
        return queues

    def _queue(self, transaction: StoredTransaction, name: str) -> Queue:
        queue = self._catalog.queue(transaction.namespace, name)
        if transaction.is_decided and queue.id != transaction.document.queues[name]:
            raise NotFound(f"the queue {name!r} was deleted, and declared again")
        if queue.session is not None:
            raise Forbidden(f"queue {name!r} is exclusive and goes with its session; staged chunks need one that stays")
        return queue

    async def _read(self, transaction: StoredTransaction, name: str) -> EncodedBatch:
        chunk = transaction.chunks[name].document
        rows = await self._store.read(transaction.lane, chunk.base, chunk.base + chunk.count, 0)
        if not rows or (rows[0].base, rows[0].count) != (chunk.base, chunk.count):
            raise StoreCorrupt(
                f"chunk {name!r} of staged transaction {transaction.name!r} should be in the store, but is not"
            )
        if not (rows[0].is_intact or is_intact(rows[0].body)):
            raise StoreCorrupt(f"chunk {name!r} of staged transaction {transaction.name!r} is damaged in the store")
        return EncodedBatch(rows[0].count, rows[0].meta, rows[0].body)
