"""The store contract: everything that an engine must do, and all that the node may ask of it.

An engine keeps rows and returns them; it knows nothing of leases that expire or messages that are due. The
promises that the rest of Penstock stands on, each checked for every engine by `tests/conformance`:

1. `apply` is atomic: all of a commit is in force, or nothing of it, through any crash.
2. `apply` is durable before it returns.
3. `apply` is fenced: if the epoch of any slot that it names is not the store's, it raises `Fenced` and changes
   nothing. `acquire` raises a slot's epoch, so whoever held it before can no longer write.
4. What `apply` has returned is seen by every read that starts after it.
5. When `apply` raises anything but `Fenced` the outcome is unknown: the caller reads back with `load`.
6. Offsets, names, keys and bytes come back as they were put: nothing is trimmed, folded or re-encoded.
7. A commit without rows is a question whether the store can commit: it is fenced, and fails where a commit with rows
   would, so a durable engine writes something durable for it too.
8. Membership (`join` to `leave`) is atomic, each call by itself, and judged by the store's clock alone. No incarnation
   and no reserved id is ever given twice. A slot has one owner; `take` gets only those that nobody has or whose owner
   was not heard of for its lease, and then that owner is no member any more: it must join again.
9. Every commit that changes the catalog raises its version, in the order in which such commits come into force: who has
   read up to a version misses nothing before it.

Rows of a message's way: `batches` hold the log; `groups` one cursor per lane and group; `leases`, `waiting` and
`dead` what of it is not done; `dedup` the ids; `outbox` what must still be copied elsewhere; `traces` what
happened under an id that a message was given; `catalog` what was declared; `enqueued` what applications have put there
themselves, within transactions of their own, where the engine lets them. Entries of leases and waiting rows are
opaque bytes made by `core/group/entries.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from penstock.model.rows import (
    REGISTRAR_SLOT,
    SLOTS,
    BatchHead,
    BatchRow,
    CatalogChanges,
    CatalogRow,
    ClusterView,
    Commit,
    DeadRow,
    DedupRow,
    EnqueuedFailure,
    EnqueuedRow,
    EnqueuedTarget,
    FailedRow,
    GroupRow,
    Joined,
    LaneChange,
    LaneImage,
    LeaseRow,
    Member,
    NodeRow,
    OutboxRow,
    SlotRow,
    TraceRow,
    WaitingRow,
    slot_of,
)

__all__ = [
    "REGISTRAR_SLOT",
    "SLOTS",
    "BatchHead",
    "BatchRow",
    "CatalogChanges",
    "CatalogRow",
    "ClusterView",
    "Commit",
    "DeadRow",
    "DedupRow",
    "EnqueuedFailure",
    "EnqueuedRow",
    "EnqueuedTarget",
    "FailedRow",
    "GroupRow",
    "Joined",
    "LaneChange",
    "LaneImage",
    "LeaseRow",
    "Member",
    "NodeRow",
    "OutboxRow",
    "Prompt",
    "Remote",
    "SlotRow",
    "Store",
    "TraceRow",
    "WaitingRow",
    "slot_of",
]


@runtime_checkable
class Prompt(Protocol):
    """What an engine may have beside the rest of the contract: a way to commit that needs no task and no thread."""

    def apply_soon(self, commit: Commit, done: Callable[[Exception | None], None], *, is_alone: bool = False) -> bool:
        """Begin to `apply`, where that needs nobody else; whether it did. Counts as an `apply` under way.

        `done` is then called once, on the event loop, perhaps before this returns: with None when the commit is
        durable, else with what `apply` would have raised. False says that nothing was done: `apply` is still to be
        called. `is_alone`: nobody but the caller of this commit asks for anything, so the event loop may be kept.
        """


@runtime_checkable
class Remote(Protocol):
    """What an engine may say of itself: its commits are another process's work, and take longer than an answer does."""

    is_remote: bool


class Store(Protocol):
    """An open engine. Every method may be called from one event loop, reads while an `apply` is under way.

    `apply` and `acquire` are called one at a time. A failure of the engine is raised as `Unavailable` (or
    `StoreCorrupt` where rows cannot be understood), with what the engine said.
    """

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        """Take the slots: raise and return their epochs."""

    async def apply(self, commit: Commit) -> None:
        """Make the commit durable, atomically and fenced."""

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        """The images of these lanes, in their order."""

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        """Batches that overlap [start, end), in order; at least one where there is one, then up to bytes_most.

        An engine may look at the checksums of bodies and say so in `is_intact`; a damaged body is no error here.
        """

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        """Heads of the batches that end after `start`, in order; at least one, then up to the limits (of meta)."""

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        """The base of the first batch published at or after a time; None where there is none."""

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        """The rows of those keys that are there, in any order."""

    async def catalog(self) -> list[CatalogRow]:
        """Everything declared, by rising id."""

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        """Outbox rows with an id above `after`, of these slots unless of all, by rising id."""

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        """The oldest rows of a trace, `most` of them, by rising time and id."""

    async def oldest_trace(self) -> int | None:
        """The time of the oldest trace row of all; None where there is none."""

    async def watch_enqueued(self, wake: Callable[[], object]) -> bool:
        """Whether applications can enqueue here. If so, `wake` is called when they have, as soon and as often as the
        engine can tell; who wants to miss nothing looks now and then all the same. Called once.
        """

    async def enqueued(self, most: int, bytes_most: int, passing: Sequence[EnqueuedTarget] = ()) -> list[EnqueuedRow]:
        """Enqueued rows with the lowest ids that are there now; at least one, then up to the limits (of payloads).

        Rows that have failed are passed over, and so are those for the targets in `passing`.
        """

    async def failed_enqueued(self, namespace: str, after: int, most: int) -> list[FailedRow]:
        """Enqueued rows of a namespace that have failed, with ids above `after`, by rising id."""

    async def count_failed_enqueued(self) -> int:
        """How many enqueued rows have failed, in all namespaces."""

    async def lanes_in_use(self) -> list[int]:
        """Lanes that have leases or waiting rows: those whose timers a new owner must mind."""

    # Several nodes: may be called at any time, also while an `apply` is under way -----------------------------

    async def join(self, member: Member) -> Joined:
        """Become a member, without any slots."""

    async def heartbeat(self, incarnation: int) -> ClusterView:
        """Say that this member is there, and see who else is and who owns what. 0 only looks."""

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        """Own those of these slots that nobody has: raise and return their epochs. Nothing for one who is no member.

        Members that were not heard of for their lease are none any more, and their slots nobody's, before that.
        """

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        """Let go of those of these slots that this member owns; meant for the member `to` where one is named."""

    async def leave(self, incarnation: int) -> None:
        """Let go of everything, and be no member any more."""

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        """The first of so many consecutive ids, all above a number, that are given to nobody else ever."""

    async def catalog_since(self, version: int) -> CatalogChanges:
        """What was declared and deleted since a version; everything where that is too long ago, or 0."""

    async def close(self) -> None:
        """Release everything. Nothing more is called after it."""
