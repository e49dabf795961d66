"""What the next commit will hold beside the lanes' own changes, who waits for it, and the commits that are made of it.

`Pending` is filled by callers and emptied by the commit loop. `build` makes a round's commits of it and of what was
sealed: one for the store, one for the memory of ephemeral queues. No I/O. Next stop: `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.core.lane import Lane, Sealed
from penstock.model.rows import (
    REGISTRAR_SLOT,
    CatalogRow,
    Commit,
    EnqueuedFailure,
    LaneChange,
    OutboxRow,
    TraceRow,
    slot_of,
)
from penstock.node.catalog import EPHEMERAL_FROM
from penstock.node.publish.parts import Unit
from penstock.node.spool.records import Doubt
from penstock.store.contract import changes_enqueued

Publish = tuple[Ticket[Receipt], Unit]
"""A publish that waits for its commit, and what the spool can keep of it."""


class Pending(Struct, eq=False):
    """What the next commit will hold beside the lanes' own changes."""

    lanes: dict[int, Lane] = {}
    tickets: list[Ticket[Any]] = []
    """Of callers who want this commit soon."""
    deferred: list[Ticket[Any]] = []
    """Of callers who do not."""
    probes: list[Ticket[None]] = []
    """Of callers who ask whether a commit succeeds, whatever is in it."""
    publishes: list[Publish] = []
    """Those of the tickets that the spool can keep if the commit fails, in their order."""
    callers: int = 0
    """How many of the tickets are of callers who are likely to ask again when they are answered."""
    is_wanted: bool = False
    """A caller wants this commit soon."""
    is_plain: bool = True
    """It holds changes of lanes and nothing else: nobody has asked to amend it."""
    is_barrier: bool = False
    """A caller waits for everything that was changed before, also for what is under way."""
    doubt: Doubt | None = None
    """By what the store can be asked whether this commit happened."""
    catalog: list[CatalogRow] = []
    catalog_deleted: list[tuple[str, int]] = []
    lanes_deleted: list[int] = []
    outbox: list[OutboxRow] = []
    outbox_deleted: list[int] = []
    slots: set[int] = set()
    """Slots that fence it beside those of its lanes: of what it declares, and of what it does for the outbox."""
    raw: dict[int, LaneChange] = {}
    """Changes of lanes that no queue has, by lane: they go into the store as they are."""
    traces: list[TraceRow] = []
    traces_expired_ms: int | None = None
    enqueued_deleted: list[int] = []
    enqueued_failed: list[EnqueuedFailure] = []
    enqueued_retried: list[int] = []
    after: list[Callable[[], None]] = []
    """Called when the commit is durable, before its callers are answered."""
    bytes: int = 0
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


class Round:
    """What is committed together: its callers, its lanes' changes, and a commit each for the store and for memory."""

    __slots__ = ("applying", "durable", "ephemeral", "pending", "sealed")

    def __init__(self, pending: Pending, sealed: list[tuple[Lane, Sealed]]) -> None:
        self.pending = pending
        self.sealed = sealed
        self.durable: Commit | None = None
        """None where there is nothing for the store."""
        self.ephemeral: Commit | None = None
        """None where there is nothing for memory."""
        self.applying: Ticket[None] | None = None
        """Kept here, for asyncio does not keep the task that may be behind it."""

    @property
    def slots(self) -> set[int]:
        """Slots of which it holds something."""
        return self.pending.all_slots().union(() if self.durable is None else self.durable.epochs)

    @property
    def is_empty(self) -> bool:
        return self.durable is None and self.ephemeral is None

    def lanes(self) -> set[int]:
        """Lanes of which it holds something, or deletes all."""
        return {*(lane.id for lane, _ in self.sealed), *self.pending.lanes, *self.pending.lanes_deleted}


def build(
    current: Round,
    outbox: list[OutboxRow],
    traces: list[TraceRow],
    epochs: Mapping[int, int],
    slot: int | None,
    stamp: Callable[[Commit], Doubt | None],
) -> None:
    """Make a round's commits. `epochs` are those of the slots that this node owns now; `slot`, its only one.

    `stamp` puts into a commit with publishes what tells later whether it happened, in one of the commit's own slots.
    """
    pending = current.pending
    kept = [part.change for lane, part in current.sealed if lane.id < EPHEMERAL_FROM]
    if len(kept) < len(current.sealed) or pending.lanes_deleted:
        current.ephemeral = _ephemeral(current)
    elif pending.is_plain and not (outbox or traces or pending.publishes):
        if kept:
            kept.sort(key=_lane)
            current.durable = Commit(epochs=_epochs([slot_of(change.lane) for change in kept], epochs), lanes=kept)
        return
    kept += pending.raw.values()
    durable = Commit(lanes=kept, outbox=pending.outbox + outbox, traces=pending.traces + traces)
    _add_rest(durable, pending)
    # Where only ephemeral lanes changed, such as by deaths, their slots fence what the store gets of it.
    slots = _slots(durable, pending) or {slot_of(lane.id) for lane, _ in current.sealed}
    durable.epochs = _epochs(slots, epochs) or any_epoch(epochs, slot)
    if pending.publishes and (durable.lanes or durable.outbox):
        pending.doubt = stamp(durable)
    durable.lanes.sort(key=_lane)
    if _has_rows(durable):
        current.durable = durable


def _epochs(slots: list[int] | set[int], epochs: Mapping[int, int]) -> dict[int, int]:
    """A slot that was lost meanwhile has no epoch here, and epoch 0 is nobody's: the store refuses it."""
    return {slot: epochs.get(slot, 0) for slot in slots}


def any_epoch(epochs: Mapping[int, int], slot: int | None) -> dict[int, int]:
    """A commit about no slot is fenced all the same: by the only one of its round, or by any that this node has."""
    if slot is None:
        return dict(islice(epochs.items(), 1))
    return {slot: epochs[slot]} if slot in epochs else {}


def _add_rest(durable: Commit, pending: Pending) -> None:
    if pending.changes_catalog:
        durable.lanes_deleted = [id for id in pending.lanes_deleted if id < EPHEMERAL_FROM]
        durable.catalog = [row for row in pending.catalog if row.id < EPHEMERAL_FROM]
        durable.catalog_deleted = [item for item in pending.catalog_deleted if item[1] < EPHEMERAL_FROM]
    durable.outbox_deleted = pending.outbox_deleted
    durable.traces_expired_ms = pending.traces_expired_ms
    durable.enqueued_deleted = pending.enqueued_deleted
    durable.enqueued_failed = pending.enqueued_failed
    durable.enqueued_retried = pending.enqueued_retried


def _slots(durable: Commit, pending: Pending) -> set[int]:
    slots = {slot_of(change.lane) for change in durable.lanes} | pending.slots
    slots.update(map(slot_of, durable.lanes_deleted))
    if changes_enqueued(durable):
        # A node that is no longer the registrar has read rows that another one takes too.
        slots.add(REGISTRAR_SLOT)
    return slots


def _lane(change: LaneChange) -> int:
    return change.lane


def _ephemeral(current: Round) -> Commit | None:
    """The commit for memory; None where it is empty."""
    lanes = sorted((part.change for lane, part in current.sealed if lane.id >= EPHEMERAL_FROM), key=_lane)
    deleted = [id for id in current.pending.lanes_deleted if id >= EPHEMERAL_FROM]
    if not lanes and not deleted:
        return None
    epochs = {slot_of(id): 1 for id in (*map(_lane, lanes), *deleted)}
    return Commit(epochs=epochs, lanes=lanes, lanes_deleted=deleted)


def _has_rows(commit: Commit) -> bool:
    return bool(
        commit.lanes
        or commit.lanes_deleted
        or commit.catalog
        or commit.catalog_deleted
        or commit.outbox
        or commit.outbox_deleted
        or commit.traces
        or commit.traces_expired_ms is not None
        or changes_enqueued(commit)
    )
