"""The ledger: transactions that were committed, remembered for a week so that a repetition changes nothing.

It is in the store alone, as ids of a lane that no queue has: thousands an hour cost no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from penstock.model.rows import REGISTRAR_SLOT, CatalogRow, DedupRow
from penstock.node.catalog import Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.staging.records import StoredTransaction, TransactionKey
from penstock.node.timers import Tasks, Timers
from penstock.store.contract import Log

REMEMBERED_MS: Final = 7 * 24 * 3600 * 1000
FORGET_EVERY_MS: Final = 3600 * 1000
LEDGER_LANE: Final = 0
"""Where committed transactions are remembered; ids of lanes begin at 1."""


@dataclass(eq=False, repr=False)
class Ledger:
    """Ends transactions, and knows which have ended."""

    _store: Log
    _catalog: Catalog
    _writer: CatalogWriter
    _commits: Commits
    _clock: Clock
    _timers: Timers
    _tasks: Tasks
    _ownership: Ownership

    async def open(self) -> None:
        """Forget what was committed long ago, now and then."""
        [ledger] = await self._store.load([LEDGER_LANE], 1)
        if ledger.dedup:
            self._forget_later()

    async def committed(self, key: TransactionKey) -> int | None:
        """How many messages a transaction published; None unless it is known to be committed."""
        found = await self._store.find_dedup(LEDGER_LANE, [_id(key)])
        now_ms = self._clock.now_ms()
        return next((row.offset for row in found if row.expires_ms > now_ms), None)

    async def commit(
        self,
        key: TransactionKey,
        transaction: StoredTransaction | None,
        published: int,
        rows: Sequence[CatalogRow] = (),
    ) -> None:
        """With the next commit the transaction is committed: remembered as such, and what it held is freed."""
        self._writer.check()
        remembered = DedupRow(_id(key), published, self._clock.now_ms() + REMEMBERED_MS)
        self._commits.amend(REGISTRAR_SLOT).change_of(LEDGER_LANE).dedup.append(remembered)
        self._forget_later()
        if transaction is None:
            await self._writer.commit(list(rows))
        else:
            await self.drop(transaction, rows)

    async def drop(self, transaction: StoredTransaction, rows: Sequence[CatalogRow] = ()) -> None:
        """Free what a transaction holds, in the next commit, with these rows."""
        self._writer.check()
        chunks = [("chunk", chunk.id) for chunk in transaction.chunks.values()]
        self._commits.amend(REGISTRAR_SLOT).lanes_deleted.append(transaction.lane)
        await self._writer.commit(
            list(rows), [("staged", transaction.id), *chunks], lambda: self._catalog.stages.remove(transaction)
        )

    def _forget_later(self) -> None:
        due_ms = self._clock.now_ms() + FORGET_EVERY_MS
        self._timers.at(due_ms, ("staged",), lambda: self._tasks.spawn(self._forget()))

    async def _forget(self) -> None:
        """Let go of transactions that were committed long ago."""
        if not self._ownership.is_registrar:
            return
        self._commits.amend(REGISTRAR_SLOT).change_of(LEDGER_LANE).dedup_expired_ms = self._clock.now_ms()
        try:
            await self._commits.commit(slot=REGISTRAR_SLOT)
        finally:
            await self.open()


def _id(key: TransactionKey) -> bytes:
    namespace, name = key
    return blake2b(f"{len(namespace)}/{namespace}/{name}".encode(), digest_size=16).digest()
