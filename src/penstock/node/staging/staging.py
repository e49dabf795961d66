"""Staging: chunks that are stored durably and seen by nobody, until one commit publishes them, in order, with marks.

A transaction has a lane of its own in the store, on which each chunk is a batch as it came (`records.py`). A commit
reads the chunks back and, in one and the same store commit, appends them to their queues as any publish would, puts the
marks, drops the lane and remembers the transaction as committed, so that a repetition is answered and does nothing.
A commit that is too large for one step is first *decided*: the order of the chunks and the marks become durable
together. `finish.py` then publishes it piece by piece. Each piece and how far the transaction came are one commit, so a
crash between two of them loses and repeats nothing.

What was committed is remembered by `ledger.py`; `chunks.py` reads chunks back. A transaction is changed by one caller
at a time; chunks of it may come from many at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.api.staging import Committed, MarkPut, Staged, StagedChunk, check_puts
from penstock.batch import EncodedBatch, check, with_key
from penstock.model.errors import (
    AlreadyCommitted,
    ChunkMissing,
    InvalidArgument,
    LimitReached,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.model.rows import REGISTRAR_SLOT, BatchRow, CatalogRow
from penstock.node.catalog import Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.marks import Marks
from penstock.node.publish import large
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part, is_large
from penstock.node.staging.chunks import Chunks
from penstock.node.staging.finish import Finisher
from penstock.node.staging.ledger import Ledger
from penstock.node.staging.records import (
    ChunkDocument,
    StoredTransaction,
    TransactionDocument,
    TransactionKey,
    chunk_row,
    transaction_row,
)
from penstock.node.timers import Tasks, Timers

COMMIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Chunks of up to this many bytes are published in one store commit; more is decided first, and published in pieces."""
CHUNKS_MAX: Final = 10_000
"""Of one transaction."""
CHUNKS_ALL_MAX: Final = 100_000
TRANSACTIONS_MAX: Final = 10_000
EXPIRE_AGAIN_MS: Final = 60_000
COMMITS_AT_ONCE: Final = 2
"""Each may hold as much as `COMMIT_BYTES_MAX` in memory."""

log = logging.getLogger("penstock.staging")


@dataclass(eq=False, repr=False)
class Staging:
    """Every staged transaction of a node."""

    _catalog: Catalog
    _writer: CatalogWriter
    _commits: Commits
    _publisher: Publisher
    _marks: Marks
    _chunks: Chunks
    _ledger: Ledger
    finisher: Finisher
    _clock: Clock
    _timers: Timers
    _tasks: Tasks
    _ownership: Ownership
    _check_free: Callable[[Sequence[Part]], None]
    """Raises while something published before to the same queues is in the spool."""
    _bytes_max: int
    _ttl_ms: int

    def __post_init__(self) -> None:
        self._ending: set[TransactionKey] = set()
        """Transactions that one caller holds: chunks wait until that is over."""
        self._publishing = asyncio.Semaphore(COMMITS_AT_ONCE)
        self.commit_bytes = COMMIT_BYTES_MAX

    # Life -------------------------------------------------------------------------------------------------

    async def slots_served(self, slots: Set[int]) -> None:
        """Where the registrar's is among them, finish what was decided and expire what was not."""
        if REGISTRAR_SLOT in slots:
            self.reloaded()
            await self._ledger.open()

    def reloaded(self) -> None:
        """The catalog was read: what is in it is what there is."""
        if not self._ownership.is_registrar:
            return
        for key, transaction in self._catalog.stages.by_key.items():
            if transaction.is_decided:
                self.finisher.start(key)
            else:
                self._expire_later(key, transaction)

    # Staging ----------------------------------------------------------------------------------------------

    async def stage(self, key: TransactionKey, target: StagedChunk, batch: EncodedBatch, payload_most: int) -> None:
        """Keep a chunk; nothing where it is there already, or where its transaction is committed."""
        catalog, name = self._catalog, target.chunk
        if is_large(batch):
            await large.on_thread(lambda: check(batch, payload_most, catalog.sizes.batch))
        else:
            check(batch, payload_most, catalog.sizes.batch)
        if target.routing_key is not None:
            batch = with_key(batch, target.routing_key)
        await self._commits.room(batch.size, REGISTRAR_SLOT)
        await self._writer.reserve_ids()
        while True:
            transaction = catalog.stages.by_key.get(key)
            if transaction is not None and (transaction.is_decided or name in transaction.chunks):
                return
            if transaction is None or key in self._ending:
                async with self._held(key):
                    if key in catalog.stages.by_key:
                        continue
                    if await self._ledger.committed(key) is None:
                        await self._keep(self._new(key), target, batch)
                    return
            if name not in transaction.coming:
                await self._keep(transaction, target, batch)
                return
            # Another caller brings the same chunk; whether it got there is known after it.
            await self._commits.commit(slot=REGISTRAR_SLOT)

    def _new(self, key: TransactionKey) -> StoredTransaction:
        count = len(self._catalog.stages.by_key)
        if count >= TRANSACTIONS_MAX:
            raise Overloaded(f"{count} transactions are staged, as many as may be; commit or abort some")
        lane = self._catalog.new_lane(REGISTRAR_SLOT)
        document = TransactionDocument(created_ms=self._clock.now_ms(), lane=lane)
        return StoredTransaction(transaction_row(self._catalog.new_id(), key, document), document)

    async def _keep(self, transaction: StoredTransaction, target: StagedChunk, batch: EncodedBatch) -> None:
        """Make a chunk durable: its batch and its row, and that of its transaction where that is new."""
        now_ms = self._clock.now_ms()
        self._writer.check()
        self._check_limits(transaction, batch.size)
        key = (transaction.namespace, transaction.name)
        document = ChunkDocument(
            base=transaction.end,
            count=batch.count,
            size=batch.size,
            staged_ms=now_ms,
            queue=target.queue,
            exchange=target.exchange,
            routing_key=target.routing_key,
        )
        rows = [chunk_row(self._catalog.new_id(), transaction, target.chunk, document)]
        if key not in self._catalog.stages.by_key:
            rows.append(transaction_row(transaction.id, key, transaction.document))
        transaction.comes(target.chunk, document)
        change = self._commits.amend(REGISTRAR_SLOT).change_of(transaction.lane)
        change.batches.append(BatchRow(document.base, batch.count, now_ms, transaction.bytes, batch.meta, batch.body))
        change.end, change.bytes_end = transaction.end, transaction.bytes
        await self._writer.commit(rows, after=lambda: self._kept(key))

    def _check_limits(self, transaction: StoredTransaction, size: int) -> None:
        stages, most = self._catalog.stages, self._bytes_max
        if stages.bytes + size > most:
            raise Overloaded(
                f"{size} more bytes on {stages.bytes} staged would pass the limit of {most}; "
                "commit or abort what is staged, or raise limits.staging_bytes"
            )
        if len(transaction.chunks) + len(transaction.coming) >= CHUNKS_MAX:
            raise LimitReached(
                f"transaction {transaction.name!r} has {CHUNKS_MAX} chunks, as many as may be; use larger ones"
            )
        if stages.chunks >= CHUNKS_ALL_MAX:
            raise Overloaded(f"{CHUNKS_ALL_MAX} chunks are staged, as many as may be; commit or abort some")

    def _kept(self, key: TransactionKey) -> None:
        transaction = self._catalog.stages.by_key.get(key)
        if transaction is not None:
            self._expire_later(key, transaction)

    # Committing -------------------------------------------------------------------------------------------

    async def commit(
        self, key: TransactionKey, chunks: Sequence[str], puts: Sequence[MarkPut], publish_id: str | None
    ) -> Committed:
        """Publish these chunks in this order and put the marks, all or nothing; once, however often it is asked for."""
        checked = check_puts(puts)
        async with self._held(key), self._marks.held(key[0], [put.name for put in puts]):
            published = await self._ledger.committed(key)
            if published is not None:
                return Committed(published, True)
            await self._behind(key, {put.name for put in puts})
            transaction = self._catalog.stages.by_key.get(key)
            is_repeated = transaction is not None and transaction.is_decided
            if not is_repeated:
                sizes = _sizes(key, transaction, chunks)
                self._marks.rows_of(key[0], checked)  # before any work: one that has moved refuses it all
                if transaction is None or sum(sizes) <= self.commit_bytes:
                    async with self._publishing:
                        return await self._publish(key, transaction, chunks, checked, publish_id)
                await self._decide(key, transaction, chunks, checked, publish_id)
        return await self._finished(key, is_repeated)

    async def _behind(self, key: TransactionKey, names: set[str]) -> None:
        """Wait for large commits that put one of these marks: what is published under a mark stays in its order."""
        for other, transaction in list(self._catalog.stages.by_key.items()):
            if other != key and other[0] == key[0] and not names.isdisjoint(transaction.document.marks):
                await self._finished(other, True)

    async def _finished(self, key: TransactionKey, is_repeated: bool) -> Committed:
        """The answer to a commit that is decided, when all of it is published."""
        await self.finisher.wait(key)
        published = await self._ledger.committed(key)
        if published is None:
            raise Unavailable(f"the commit of transaction {key[1]!r} is decided and not all published yet; ask again")
        return Committed(published, is_repeated)

    async def _publish(
        self,
        key: TransactionKey,
        transaction: StoredTransaction | None,
        chunks: Sequence[str],
        puts: list[tuple[MarkPut, bytes]],
        publish_id: str | None,
    ) -> Committed:
        """All of it in one store commit."""
        parts: list[Part] = []
        published = 0
        if transaction is not None:
            for name in chunks:
                parts += await self._chunks.parts(transaction, name, publish_id)
                published += transaction.chunks[name].document.count
        self._check_free(parts)
        rows: list[CatalogRow] = []

        def check_still_true() -> None:
            self._writer.check()
            self._check_same(key, transaction)
            rows.extend(self._marks.rows_of(key[0], puts))

        # Nothing waits between the step that appends and the one that adds the rest: it is one commit.
        results = await self._publisher.append_in_room(parts, check_still_true, REGISTRAR_SLOT)
        await self._ledger.commit(key, transaction, published, rows)
        await self._publisher.landed(results)  # what other nodes append is decided: the caller finds it there
        return Committed(published, False)

    async def _decide(
        self,
        key: TransactionKey,
        transaction: StoredTransaction,
        chunks: Sequence[str],
        puts: list[tuple[MarkPut, bytes]],
        publish_id: str | None,
    ) -> None:
        """More than one step can hold: whether there is room is asked now, for afterwards there is no way back."""
        queues = await self._chunks.check_room(transaction, chunks, publish_id)
        self._check_same(key, transaction)
        decided = msgspec.structs.replace(
            transaction.document,
            order=tuple(chunks),
            queues=queues,
            publish_id=publish_id,
            marks=tuple(put.name for put, _ in puts),
        )
        rows = [transaction_row(transaction.id, key, decided), *self._marks.rows_of(key[0], puts)]
        dropped = set(transaction.chunks) - set(chunks)

        def forget() -> None:
            for name in dropped:
                del transaction.chunks[name]
            self.finisher.start(key)

        await self._writer.commit(rows, [("chunk", transaction.chunks[name].id) for name in dropped], forget)

    # Ending otherwise -------------------------------------------------------------------------------------

    async def abort(self, key: TransactionKey) -> None:
        """Drop what was staged; what is committed stays so."""
        async with self._held(key):
            transaction = self._catalog.stages.by_key.get(key)
            if transaction is None and await self._ledger.committed(key) is None:
                return
            if transaction is None or transaction.is_decided:
                raise AlreadyCommitted(f"transaction {key[1]!r} is committed; what it published cannot be taken back")
            await self._ledger.drop(transaction)

    def _expire_later(self, key: TransactionKey, transaction: StoredTransaction) -> None:
        due_ms = self._expires_ms(transaction)
        self._timers.at(due_ms, ("staged", *key), lambda: self._tasks.spawn(self._expire(key)))

    def _expires_ms(self, transaction: StoredTransaction) -> int:
        return transaction.touched_ms + self._ttl_ms

    async def _expire(self, key: TransactionKey) -> None:
        if not self._ownership.is_registrar:
            return
        try:
            async with self._held(key):
                transaction = self._catalog.stages.by_key.get(key)
                if transaction is None or transaction.is_decided:
                    return
                if self._expires_ms(transaction) > self._clock.now_ms():
                    self._expire_later(key, transaction)
                    return
                log.warning("staged transaction %r of namespace %r was never committed; it is dropped", *reversed(key))
                await self._ledger.drop(transaction)
        except PenstockError:
            again_ms = self._clock.now_ms() + EXPIRE_AGAIN_MS
            self._timers.at(again_ms, ("staged", *key), lambda: self._tasks.spawn(self._expire(key)))
            raise

    # What is known ----------------------------------------------------------------------------------------

    async def show(self, key: TransactionKey) -> Staged:
        """How a transaction stands."""
        transaction = self._catalog.stages.by_key.get(key)
        if transaction is None:
            published = await self._ledger.committed(key)
            return Staged(key[1], "unknown" if published is None else "committed", [], published or 0, None)
        chunks = [
            StagedChunk(
                chunk=name,
                queue=chunk.queue,
                exchange=chunk.exchange,
                routing_key=chunk.routing_key,
                messages=chunk.count,
                bytes=chunk.size,
            )
            for name, (_, chunk) in transaction.chunks.items()
        ]
        if transaction.is_decided:
            return Staged(key[1], "committing", chunks, transaction.document.published, None)
        return Staged(key[1], "open", chunks, 0, self._expires_ms(transaction))

    @asynccontextmanager
    async def _held(self, key: TransactionKey) -> AsyncIterator[None]:
        """While nobody else ends a transaction or begins it, and every chunk of it that was coming is there."""
        async with self._writer.declaring("staged", *key):
            self._ending.add(key)
            try:
                transaction = self._catalog.stages.by_key.get(key)
                if transaction is not None and transaction.coming:
                    await self._commits.commit(slot=REGISTRAR_SLOT)
                yield
            finally:
                self._ending.discard(key)

    def _check_same(self, key: TransactionKey, transaction: StoredTransaction | None) -> None:
        """Raise if the catalog was read again meanwhile: what was known of a transaction may not be true any more."""
        if self._catalog.stages.by_key.get(key) is not transaction:
            raise Unavailable(
                f"what is known of transaction {key[1]!r} was read again after a failed commit; try again"
            )


def _sizes(key: TransactionKey, transaction: StoredTransaction | None, chunks: Sequence[str]) -> list[int]:
    """The bytes of each chunk; raises where one is missing, or named twice."""
    if len(set(chunks)) != len(chunks):
        twice = next(name for name in chunks if list(chunks).count(name) > 1)
        raise InvalidArgument(f"chunk {twice!r} is named twice; a chunk is published once")
    known = {} if transaction is None else transaction.chunks
    missing = [name for name in chunks if name not in known]
    if missing:
        others = "" if len(missing) == 1 else f" and {len(missing) - 1} others"
        raise ChunkMissing(
            f"chunk {missing[0]!r}{others} of transaction {key[1]!r} was not staged, or has expired; "
            "nothing is published"
        )
    return [known[name].document.size for name in chunks]
