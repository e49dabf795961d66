"""Declarations on their way into the catalog: one at a time for a name, durable first, then known.

A commit that fails may have happened all the same. Then it is unknown what is declared until the catalog is read again;
until then, nothing new is declared and no lane is loaded. What is declared is the business of `declarations.py`,
`exchanges.py`, `marks.py`, `background/schedules.py` and `staging/`. Next stop: `commit/loop.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from penstock.api.ticket import Ticket
from penstock.model.errors import Closed, Unavailable
from penstock.model.rows import REGISTRAR_SLOT, CatalogRow
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.lifecycle import Lifecycle
from penstock.store.contract import Store

IDS_AT_ONCE: Final = 10_000
IDS_LEFT_MIN: Final = 2_000
"""Ids that must be at hand before something is declared; with fewer, more are reserved first."""
NAME_LOCKS_MAX: Final = 2_000

_ANNOUNCED: Final = frozenset({"queue", "group", "exchange", "binding"})
"""What other nodes must know of before it is used through them; the rest is asked of the registrar."""

log = logging.getLogger("penstock.node")


async def _nobody() -> None:
    """There are no other nodes to tell."""


@dataclass(eq=False, repr=False)
class CatalogWriter:
    """Changes what is declared."""

    _catalog: Catalog
    _store: Store
    _commits: Commits
    _ownership: Ownership
    _lifecycle: Lifecycle

    def __post_init__(self) -> None:
        self._locks: dict[tuple[str, str, str], asyncio.Lock] = {}
        self._reserving = asyncio.Lock()
        self._reload: asyncio.Task[None] | None = None
        self.announce: Callable[[], Awaitable[None]] = _nobody
        """Returns when the other nodes have read what was declared; set by the cluster."""

    # Before a declaration ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def declaring(self, kind: str, namespace: str, name: str) -> AsyncIterator[None]:
        """Declarations of one name happen one after the other; of different names, together.

        None begins while it is not known what a failed commit has left declared.
        """
        async with self._name_lock(kind, namespace, name):
            await self.known()
            await self.reserve_ids()
            yield

    def _name_lock(self, kind: str, namespace: str, name: str) -> asyncio.Lock:
        key = (kind, namespace, name)
        lock = self._locks.get(key)
        if lock is None:
            if len(self._locks) > NAME_LOCKS_MAX:
                # A lock just released for its next holder says that it is not locked: keep it for that holder.
                self._locks = {key: lock for key, lock in self._locks.items() if lock.locked() or lock._waiters}
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def reserve_ids(self, least: int = 0) -> None:
        """Have ids at hand for what is about to be declared."""
        wanted = max(IDS_LEFT_MIN, least)
        if self._catalog.ids_left >= wanted:
            return
        async with self._reserving:
            if self._catalog.ids_left < wanted:
                count = max(IDS_AT_ONCE, wanted)
                self._catalog.reserved(await self._store.reserve_ids(count, self._catalog.last_id), count)

    def check(self, slot: int = REGISTRAR_SLOT) -> None:
        """Raise while it is not known what is declared, or where another node owns the slot."""
        self.check_known()
        self._ownership.check(slot)

    def check_known(self) -> None:
        """Raise while it is not known what a failed commit has left declared."""
        if self._reload is not None:
            raise Unavailable("what is declared is being read again after a failed commit; try again")

    async def known(self) -> None:
        """Wait until it is known what is declared; a node that closes before does not find out any more."""
        while (reload := self._reload) is not None:
            await asyncio.wait([reload])
            if self._reload is reload:
                raise Closed("the broker was closed while it read again what is declared")

    # The declaration --------------------------------------------------------------------------------------

    async def commit(
        self,
        rows: list[CatalogRow],
        deleted: list[tuple[str, int]] | None = None,
        after: Callable[[], None] | None = None,
        *,
        slot: int = REGISTRAR_SLOT,
    ) -> None:
        """Make declarations durable, then known: those about a queue under its slot, others under the registrar's."""
        self.check(slot)
        pending = self._commits.amend(slot)
        pending.catalog += rows
        pending.catalog_deleted += deleted or []
        pending.after.append(lambda: self._catalog.put(rows))
        if after is not None:
            pending.after.append(after)
        await _through(self._commits.commit(slot=slot))
        if _is_announced(rows, deleted or ()):
            await self.announce()

    def put_in_memory(self, rows: list[CatalogRow], *, slot: int = REGISTRAR_SLOT) -> None:
        """Make known what is about ephemeral queues alone: there is nothing to store, and no commit to wait for."""
        self.check(slot)
        self._catalog.put(rows)

    # After a failed commit --------------------------------------------------------------------------------

    def reload(self) -> None:
        """A commit with declarations failed and may have happened all the same: read what is true."""
        if self._reload is None:
            self._reload = asyncio.get_running_loop().create_task(self._read_anew())

    async def _read_anew(self) -> None:
        await self._commits.catalog_settled()
        pause_s = 0.05
        while not self._lifecycle.closed:
            try:
                rows = await self._store.catalog()
            except Exception as error:  # of whatever kind: as long as this is not read, nothing can be declared
                log.warning("the catalog cannot be loaded yet: %r", error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)
                continue
            self.replace(rows)
            self._reload = None
            return

    def replace(self, rows: list[CatalogRow]) -> None:
        """These rows are what is declared, with the ephemeral queues that only this node knows."""
        fresh = Catalog(self._catalog.sizes)
        fresh.put(rows)
        ephemeral = [queue for queue in self._catalog.by_id.values() if queue.id >= EPHEMERAL_FROM]
        self._catalog.replace(fresh, ephemeral)


async def _through(commit: Ticket[None]) -> None:
    """Wait for a commit to the end, also when cancelled: until then nobody else may declare the same name."""
    cancelled: asyncio.CancelledError | None = None
    while not commit.is_done:
        try:
            await commit
        except asyncio.CancelledError as error:
            cancelled = error
    commit.result()
    if cancelled is not None:
        raise cancelled


def _is_announced(rows: list[CatalogRow], deleted: Iterable[tuple[str, int]]) -> bool:
    """Not of the system's own queues: nobody waits to use those."""
    named = any(row.kind in _ANNOUNCED and not row.name.startswith("$") for row in rows)
    return named or any(kind in _ANNOUNCED for kind, _ in deleted)
