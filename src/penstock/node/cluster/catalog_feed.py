"""What other nodes declare: read from the store, change by change, into this node's catalog.

Of what this node owns it knows the truth itself, often earlier than a read that was under way: rows of its own slots
are passed over. When it loses slots unawares it may have passed over their new owner's declarations; then it reads all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.model.rows import REGISTRAR_SLOT, CatalogChanges, CatalogRow
from penstock.node.catalog import Catalog, Queue, binding_of
from penstock.node.cluster.ownership import Ownership
from penstock.node.exchanges import Exchanges
from penstock.store.contract import Catalog as CatalogStore


@dataclass(eq=False, repr=False)
class CatalogFeed:
    """Keeps the catalog up to date."""

    _store: CatalogStore
    _catalog: Catalog
    _exchanges: Exchanges
    _ownership: Ownership

    def __post_init__(self) -> None:
        self._reading = asyncio.Lock()
        self.version = 0
        """What is in the catalog is what was declared up to it."""
        self._forgets = 0

    def forget(self) -> None:
        """What was read so far may have gaps: read everything the next time."""
        self.version = 0
        self._forgets += 1

    async def refresh(self) -> None:
        """Read what was declared up to now."""
        async with self._reading:
            forgets = self._forgets
            changes = await self._store.catalog_since(self.version)
            self._take_in(changes)
            if forgets == self._forgets:
                self.version = changes.version

    def _take_in(self, changes: CatalogChanges) -> None:
        deleted = self._absent(changes.rows) if changes.is_complete else changes.deleted
        for row in deleted:
            if not self._is_own(row):
                self._remove(row)
        rows = [row for row in changes.rows if not self._is_own(row)]
        self._catalog.put(rows)
        gone = [row for row in deleted if row.kind == "queue"]
        if gone and self._ownership.is_registrar:
            self._exchanges.drop_orphans_soon()

    def _is_own(self, row: CatalogRow) -> bool:
        """Whether this node is the one that changes such rows."""
        return self._ownership.owns(self._slot(row))

    def _slot(self, row: CatalogRow) -> int:
        catalog = self._catalog
        if row.kind == "queue":
            queue = catalog.by_id.get(row.id)
            return catalog.slot_of_row(row) if queue is None else queue.slot
        if row.kind == "group":
            queue = catalog.by_id.get(row.parent)
            return -1 if queue is None else queue.slot
        return REGISTRAR_SLOT

    def _absent(self, rows: Iterable[CatalogRow]) -> list[CatalogRow]:
        """What this node knows and the store does not have."""
        there = {(row.kind, row.id) for row in rows}
        return [row for row in self._catalog.rows() if (row.kind, row.id) not in there]

    def _remove(self, row: CatalogRow) -> None:
        catalog = self._catalog
        if row.kind == "queue":
            queue = catalog.by_id.get(row.id)
            if queue is not None:
                self._remove_queue(queue)
        elif row.kind == "group":
            queue = catalog.by_id.get(row.parent)
            group = None if queue is None else queue.groups.get(row.name)
            if queue is not None and group is not None and group.id == row.id:
                catalog.remove_group(queue, group)
        elif row.kind == "exchange" and catalog.exchange_ids.get((row.namespace, row.name)) == row.id:
            dropped = catalog.router(row.namespace).delete_exchange(row.name)
            catalog.remove_bindings(row.namespace, dropped)
            del catalog.exchange_ids[row.namespace, row.name]
        elif row.kind == "binding":
            catalog.orphans.pop(row.id, None)
            if catalog.binding_ids.get((row.namespace, row.document)) == row.id:
                binding = binding_of(row.document)
                if binding.exchange in catalog.router(row.namespace).exchanges():
                    catalog.router(row.namespace).unbind(binding)
                catalog.binding_ids.pop((row.namespace, row.document), None)
        else:
            catalog.remove_row(row)

    def _remove_queue(self, queue: Queue) -> None:
        """A queue is gone. Its bindings' rows are the registrar's to delete."""
        dropped = self._catalog.router(queue.namespace).queue_deleted(queue.name)
        self._catalog.orphan_bindings(queue.namespace, dropped)
        if dropped and self._ownership.is_registrar:
            self._exchanges.drop_unbound_soon(queue.namespace, {binding.exchange for binding in dropped})
        self._catalog.remove_queue(queue)
