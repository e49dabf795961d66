"""Large staged commits, carried on to their end: piece by piece, in order, each message once, whatever crashes.

Such a commit was decided (`staging.py`): what is published, and in which order, is durable. A piece is appended in the
same store commit that says how far the transaction has come, so after a failure or a restart it goes on from there. A
queue that is full is waited for; one that was deleted after the decision takes what was meant for it along.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.batch import EncodedBatch, decode_meta, is_intact
from penstock.model.errors import Closed, Forbidden, NotFound, PenstockError, QueueFull, StoreCorrupt, Unavailable
from penstock.model.rows import REGISTRAR_SLOT
from penstock.node.cluster.remote_publish import nudge
from penstock.node.publish.append import append_all, parts_of_batch
from penstock.node.publish.parts import Part
from penstock.node.publish.route import route_batch
from penstock.node.staging.records import StoredTransaction, TransactionKey, transaction_row

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

PIECE_BYTES: Final = 16 * 1024 * 1024
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 5.0

log = logging.getLogger("penstock.staging")

End = Callable[[TransactionKey, StoredTransaction, int], Awaitable[None]]


class Finisher:
    """Decided transactions on their way."""

    def __init__(self, node: Node, end: End) -> None:
        self._node = node
        self._end = end
        self._under_way: set[TransactionKey] = set()
        self._waiters: defaultdict[TransactionKey, list[asyncio.Future[None]]] = defaultdict(list)
        self.piece_bytes = PIECE_BYTES

    def start(self, key: TransactionKey) -> None:
        """Carry a decided transaction on, unless somebody does."""
        if key not in self._under_way:
            self._under_way.add(key)
            self._node.spawn(self._carry(key))

    async def wait(self, key: TransactionKey) -> None:
        """Until nothing of a transaction is under way any more; raises why it stopped before its end."""
        if key in self._under_way:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[key].append(future)
            await future

    async def _carry(self, key: TransactionKey) -> None:
        error: PenstockError | None = Closed(
            "the broker was closed; the commit is decided, and goes on after a restart"
        )
        try:
            await self._carry_on(key)
            error = None
        except PenstockError as failure:  # closed, or another node has the store: it goes on where that is open
            error = failure
        finally:
            self._under_way.discard(key)
            for waiter in self._waiters.pop(key, ()):
                if not waiter.done():
                    waiter.set_result(None) if error is None else waiter.set_exception(error)

    async def _carry_on(self, key: TransactionKey) -> None:
        """Piece after piece until all is published."""
        node, pause_s, most = self._node, PAUSE_S, self.piece_bytes
        while (transaction := node.catalog.stages.by_key.get(key)) is not None:
            node.check_open()
            try:
                await self._piece(key, transaction, most)
                pause_s, most = PAUSE_S, self.piece_bytes
            except PenstockError as error:
                if node.closed or node.fenced is not None or not node.ownership.owns(REGISTRAR_SLOT):
                    raise
                log.warning("staged transaction %r waits: %s", key[1], error)
                most = 0 if isinstance(error, QueueFull) else most  # a chunk may fit where several do not
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _piece(self, key: TransactionKey, transaction: StoredTransaction, most: int) -> None:
        """Publish the next chunks, up to so many bytes, one at least."""
        node, document = self._node, transaction.document
        order = document.order or ()
        done, published, size = document.done, document.published, 0
        parts: list[Part] = []
        while done < len(order):
            chunk = transaction.chunks[order[done]].document
            if done > document.done and size + chunk.size > most:
                break
            parts += await parts_of_chunk(node, transaction, order[done], document.publish_id)
            done, published, size = done + 1, published + chunk.count, size + chunk.size
        await node.commits.room(sum(part.size for part in parts))

        def check_still_true() -> None:
            node.check_declarations()
            node.spool.check_free(parts)
            if node.catalog.stages.by_key.get(key) is not transaction:
                raise Unavailable("how far it came was read anew after a failed commit")

        # Nothing waits between the step that appends and the one that adds the progress: it is one commit.
        nudge(node, await append_all(node, parts, check_still_true))
        if done == len(order):
            await self._end(key, transaction, published)
        else:
            further = msgspec.structs.replace(document, done=done, published=published)
            await node.commit_catalog([transaction_row(transaction.id, key, further)])

    # Before the decision ----------------------------------------------------------------------------------

    async def check_room(
        self, transaction: StoredTransaction, chunks: Sequence[str], publish_id: str | None
    ) -> dict[str, int]:
        """Raise unless every target is there and has room for all of it; the ids of the queues that chunks name."""
        node, queues = self._node, dict[str, int]()
        wanted: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        for name in chunks:
            chunk = transaction.chunks[name].document
            queue = None if chunk.queue is None else node.catalog.queue(transaction.namespace, chunk.queue)
            if queue is not None:
                queues[queue.name] = queue.id
                if queue.config.max_length is None and queue.config.max_bytes is None:
                    continue  # there is room for everything
            for part in await parts_of_chunk(node, transaction, name, publish_id):
                wanted[part.lane][0] += part.count
                wanted[part.lane][1] += part.size
        for lane_id, (count, size) in wanted.items():
            await node.lanes.run(lane_id, methodcaller("check_room", count, size))
        return queues


# From a chunk to parts -----------------------------------------------------------------------------------


async def parts_of_chunk(node: Node, transaction: StoredTransaction, name: str, publish_id: str | None) -> list[Part]:
    """A chunk as it is published. Of one whose target was deleted after the decision nothing is left."""
    chunk = transaction.chunks[name].document
    batch = await _read(node, transaction, name)
    chunk_id = None if publish_id is None else f"{publish_id}/{name}"
    try:
        if chunk.queue is None:
            return route_batch(
                node, transaction.namespace, chunk.exchange or "", batch, mandatory=False, publish_id=chunk_id
            )
        queue = _queue(node, transaction, chunk.queue)
    except NotFound as error:
        if not transaction.is_decided:
            raise
        log.warning("chunk %r of staged transaction %r went with its target: %s", name, transaction.name, error)
        return []
    # It was checked when it was staged, and read back as it was written.
    return parts_of_batch(queue, batch, None, chunk_id, decode_meta(batch.meta, batch.count))


def _queue(node: Node, transaction: StoredTransaction, name: str) -> Queue:
    queue = node.catalog.queue(transaction.namespace, name)
    if transaction.is_decided and queue.id != transaction.document.queues[name]:
        raise NotFound(f"the queue {name!r} was deleted, and declared anew")
    if queue.session is not None:
        raise Forbidden(f"queue {name!r} is exclusive and goes with its session; staged chunks need one that stays")
    return queue


async def _read(node: Node, transaction: StoredTransaction, name: str) -> EncodedBatch:
    chunk = transaction.chunks[name].document
    rows = await node.store.read(transaction.lane, chunk.base, chunk.base + chunk.count, 0)
    if not rows or (rows[0].base, rows[0].count) != (chunk.base, chunk.count):
        raise StoreCorrupt(
            f"chunk {name!r} of staged transaction {transaction.name!r} should be in the store, but is not"
        )
    if not (rows[0].is_intact or is_intact(rows[0].body)):
        raise StoreCorrupt(f"chunk {name!r} of staged transaction {transaction.name!r} is damaged in the store")
    return EncodedBatch(rows[0].count, rows[0].meta, rows[0].body)
