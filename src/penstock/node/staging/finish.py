"""Finishes large staged commits: piece by piece, in order, each message once, whatever crashes.

Such a commit was decided (`staging.py`): what is published, and in which order, is durable. A piece is appended in the
same store commit that says how far the transaction has come, so after a failure or a restart it goes on from there. A
queue that is full is waited for; one that was deleted after the decision takes what was meant for it along.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.model.errors import Closed, PenstockError, QueueFull, Unavailable
from penstock.model.rows import REGISTRAR_SLOT
from penstock.node.catalog import Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.cluster.ownership import Ownership
from penstock.node.lifecycle import Lifecycle
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part
from penstock.node.staging.chunks import Chunks
from penstock.node.staging.ledger import Ledger
from penstock.node.staging.records import StoredTransaction, TransactionKey, transaction_row
from penstock.node.timers import Tasks

PIECE_BYTES: Final = 16 * 1024 * 1024
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 5.0

log = logging.getLogger("penstock.staging")


@dataclass(eq=False, repr=False)
class Finisher:
    """Decided transactions on their way."""

    _catalog: Catalog
    _writer: CatalogWriter
    _publisher: Publisher
    _chunks: Chunks
    _ledger: Ledger
    _tasks: Tasks
    _lifecycle: Lifecycle
    _ownership: Ownership
    _check_free: Callable[[Sequence[Part]], None]
    """Raises while something published before to the same queues is in the spool."""

    def __post_init__(self) -> None:
        self._under_way: set[TransactionKey] = set()
        self._waiters: defaultdict[TransactionKey, list[asyncio.Future[None]]] = defaultdict(list)
        self.piece_bytes = PIECE_BYTES

    def start(self, key: TransactionKey) -> None:
        """Finish a decided transaction, unless that is under way."""
        if key not in self._under_way:
            self._under_way.add(key)
            self._tasks.spawn(self._run(key))

    async def wait(self, key: TransactionKey) -> None:
        """Until nothing of a transaction is under way any more; raises why it stopped before its end."""
        if key in self._under_way:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[key].append(future)
            await future

    async def _run(self, key: TransactionKey) -> None:
        error: PenstockError | None = Closed(
            "the broker was closed; the commit is decided, and goes on after a restart"
        )
        try:
            await self._finish(key)
            error = None
        except PenstockError as failure:  # closed, or another node has the store: it goes on where that is open
            error = failure
        finally:
            self._under_way.discard(key)
            for waiter in self._waiters.pop(key, ()):
                if not waiter.done():
                    waiter.set_result(None) if error is None else waiter.set_exception(error)

    async def _finish(self, key: TransactionKey) -> None:
        """Piece after piece until all is published."""
        pause_s, most = PAUSE_S, self.piece_bytes
        while (transaction := self._catalog.stages.by_key.get(key)) is not None:
            self._lifecycle.check_open()
            try:
                await self._piece(key, transaction, most)
                pause_s, most = PAUSE_S, self.piece_bytes
            except PenstockError as error:
                if self._lifecycle.is_over or not self._ownership.is_registrar:
                    raise
                log.warning("staged transaction %r waits: %s", key[1], error)
                most = 0 if isinstance(error, QueueFull) else most  # a chunk may fit where several do not
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _piece(self, key: TransactionKey, transaction: StoredTransaction, most: int) -> None:
        """Publish the next chunks: up to `most` bytes, one chunk at least."""
        document = transaction.document
        order = document.order or ()
        done, published, size = document.done, document.published, 0
        parts: list[Part] = []
        while done < len(order):
            chunk = transaction.chunks[order[done]].document
            if done > document.done and size + chunk.size > most:
                break
            parts += await self._chunks.parts(transaction, order[done], document.publish_id)
            done, published, size = done + 1, published + chunk.count, size + chunk.size

        def check_still_true() -> None:
            self._writer.check()
            self._check_free(parts)
            if self._catalog.stages.by_key.get(key) is not transaction:
                raise Unavailable("how far it came was read again after a failed commit")

        # Nothing waits between the step that appends and the one that adds the progress: it is one commit.
        results = await self._publisher.append_in_room(parts, check_still_true, REGISTRAR_SLOT)
        if done == len(order):
            await self._ledger.commit(key, transaction, published)
        else:
            further = msgspec.structs.replace(document, done=done, published=published)
            await self._writer.commit([transaction_row(transaction.id, key, further)])
        await self._publisher.landed(results)  # the next piece waits until this one is in its queues
