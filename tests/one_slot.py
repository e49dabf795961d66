"""A memory store that commits rows of one slot at a time, and refuses a commit that is about more."""

from __future__ import annotations

from collections.abc import Callable

from penstock.api.ticket import Ticket, ticketed
from penstock.model.errors import InvalidArgument
from penstock.model.rows import REGISTRAR_SLOT, CatalogRow, Commit, slot_of
from penstock.node.catalog import Catalog
from penstock.store.contract import Capabilities
from tests.memory_disk import MemoryDisk


class OneSlotStore(MemoryDisk):
    """What belongs to a slot is written by commits of that slot alone.

    A row of the outbox is written by whoever promises something, and deleted by the slot that has carried it out. What
    is not about a slot, such as a trace, goes with any.
    """

    capabilities = Capabilities(spans_slots=False)

    def __init__(
        self, now_ms: Callable[[], int] | None = None, *, enqueues: bool = False, reads_documents: bool = True
    ) -> None:
        """Of which slot a declaration is only its document says: without `reads_documents` it goes with any."""
        super().__init__(now_ms, enqueues=enqueues)
        self._reads_documents = reads_documents
        self.promised = 0
        """Rows that were promised to another slot."""

    def clone(self) -> OneSlotStore:
        copy = OneSlotStore()
        vars(copy).update(vars(super().clone()))
        return copy

    @ticketed
    def apply(self, commit: Commit) -> Ticket[None]:
        if len(commit.epochs) > 1:
            raise InvalidArgument(f"the commit names the slots {sorted(commit.epochs)}; this store takes one at a time")
        for what, slot in self._rows(commit):
            if slot not in commit.epochs:
                raise InvalidArgument(f"{what} is of slot {slot}, the commit of {list(commit.epochs)}")
        return super().apply(commit).map(lambda _: self._count(commit))

    def _count(self, commit: Commit) -> None:
        self.promised += sum(row.slot not in commit.epochs for row in commit.outbox)

    def _rows(self, commit: Commit) -> list[tuple[str, int]]:
        """What the commit changes, and the slot that each is of."""
        lanes = [*(change.lane for change in commit.lanes), *commit.lanes_deleted]
        done = [self._outbox[id] for id in commit.outbox_deleted if id in self._outbox]
        there = self._catalog.rows
        declared = [*commit.catalog, *(there[key] for key in commit.catalog_deleted if key in there)]
        return [
            *((f"lane {lane}", slot_of(lane)) for lane in lanes),
            *((f"outbox row {row.id}", row.slot) for row in done),
            *((f"{row.kind} {row.name!r}", self._slot_of(row, commit)) for row in declared if self._reads_documents),
        ]

    def _slot_of(self, row: CatalogRow, commit: Commit) -> int:
        if row.kind == "group":
            row = (
                next(
                    (one for one in commit.catalog if (one.kind, one.id) == ("queue", row.parent)),
                    None,
                )
                or self._catalog.rows["queue", row.parent]
            )
        return Catalog().slot_of_row(row) if row.kind == "queue" else REGISTRAR_SLOT
