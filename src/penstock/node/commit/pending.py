"""What the next commit will hold beside the lanes' own changes, and which callers wait for it.

Filled by callers, emptied by the commit loop; plain data. Next stop: `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.core.lane import Lane
from penstock.model.rows import CatalogRow, EnqueuedFailure, LaneChange, OutboxRow, TraceRow, slot_of
from penstock.node.publish.parts import Unit
from penstock.node.spool.records import Doubt

Publish = tuple[Ticket[Receipt], Unit]
"""A publish that waits for its commit, and what the spool can keep of it."""


class Pending:
    """What the next commit will hold beside the lanes' own changes."""

    __slots__ = ("after", "bytes", "callers", "catalog", "catalog_deleted", "deferred", "doubt", "enqueued_deleted",
                 "enqueued_failed", "enqueued_retried", "is_barrier", "is_plain", "is_wanted", "lanes", "lanes_deleted",
                 "outbox", "outbox_deleted", "probes", "publishes", "raw", "slots", "tickets", "traces",
                 "traces_expired_ms")  # fmt: skip

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.tickets: list[Ticket[Any]] = []
        """Of callers who want this commit soon."""
        self.deferred: list[Ticket[Any]] = []
        """Of callers who do not."""
        self.probes: list[Ticket[None]] = []
        """Of callers who ask whether a commit succeeds, whatever is in it."""
        self.publishes: list[Publish] = []
        """Those of the tickets that the spool can keep if the commit fails, in their order."""
        self.callers = 0
        """How many of the tickets are of callers who are likely to ask again when they are answered."""
        self.is_wanted = False
        """A caller wants this commit soon."""
        self.is_plain = True
        """It holds changes of lanes and nothing else: nobody has asked to amend it."""
        self.is_barrier = False
        """A caller waits for everything that was changed before, also for what is under way."""
        self.doubt: Doubt | None = None
        """By what the store can be asked whether this commit happened."""
        self.catalog: list[CatalogRow] = []
        self.catalog_deleted: list[tuple[str, int]] = []
        self.lanes_deleted: list[int] = []
        self.outbox: list[OutboxRow] = []
        self.outbox_deleted: list[int] = []
        self.slots: set[int] = set()
        """Slots that fence it beside those of its lanes: of what it declares, and of what it does for the outbox."""
        self.raw: dict[int, LaneChange] = {}
        """Changes of lanes that no queue has, by lane: they go into the store as they are."""
        self.traces: list[TraceRow] = []
        self.traces_expired_ms: int | None = None
        self.enqueued_deleted: list[int] = []
        self.enqueued_failed: list[EnqueuedFailure] = []
        self.enqueued_retried: list[int] = []
        self.after: list[Callable[[], None]] = []
        """Called when the commit is durable, before its callers are answered."""
        self.bytes = 0
        """What publishers have put into it."""

    def change_of(self, lane: int) -> LaneChange:
        """What happens to a lane that no queue has."""
        change = self.raw.get(lane)
        if change is None:
            change = self.raw[lane] = LaneChange(lane, 0, 0, 0)
        return change

    @property
    def has_callers(self) -> bool:
        """Whether there is anything to commit, or to answer, at once."""
        return bool(self.lanes or self.tickets or self.probes)

    @property
    def may_overlap(self) -> bool:
        """Whether it may be committed beside others: what holds more than lanes' changes goes alone."""
        return self.is_plain and not self.is_barrier and not self.probes and (bool(self.lanes) or not self.publishes)

    @property
    def changes_catalog(self) -> bool:
        return bool(self.catalog or self.catalog_deleted or self.lanes_deleted)

    def all_slots(self) -> set[int]:
        """Every slot of which it holds something."""
        return {*self.slots, *(slot_of(lane) for lane in (*self.lanes, *self.raw, *self.lanes_deleted))}
