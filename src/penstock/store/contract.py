"""The store contract: everything that an engine must do, and all that the node may ask of it.

An engine keeps rows and returns them; it knows nothing of leases that expire or messages that are due. It has four
parts: the log, the catalog, coordination between nodes and, as an option, enqueueing by applications; and a fifth,
`Maintenance`, for the tools of operators. `Capabilities` say what an engine can do beyond the minimum. The rest of
Penstock relies on nine promises, each checked for every engine by `tests/conformance`:

1. `apply` is atomic: all of a commit is in force, or nothing of it, through any crash.
2. `apply` is durable before its ticket is done.
3. `apply` is fenced: if the epoch of any slot that it names is not the store's, it fails with `Fenced` and changes
   nothing. `acquire` raises a slot's epoch, so the owner before can no longer write.
4. A read sees every commit whose ticket was done before the read started.
5. When `apply` fails with anything but `Fenced` the outcome is unknown: the caller reads back with `load`.
6. Offsets, names, keys and bytes come back as they were put: nothing is trimmed, folded or re-encoded.
7. A commit without rows probes whether the store can commit: it is fenced, and fails where a commit with rows would.
   A durable engine writes something durable for it too.
8. Membership (`join` to `leave`) is atomic per call, and the store's clock alone decides. No incarnation and no
   reserved id is given twice. A slot has one owner; `take` gets only slots without an owner, or whose owner's lease has
   run out. That owner is no member any more: it must join again.
9. Every commit that changes the catalog raises its version, and versions come into force in order: a node that has read
   up to a version has missed nothing before it.

The rows are in `model/rows.py`: `batches` hold the log; `groups` one cursor per lane and group; `leases`, `waiting` and
`dead` what is not done; `dedup` the ids; `outbox` what must still be copied elsewhere; `traces` what happened under a
trace id; `catalog` what was declared; `enqueued` what applications wrote in their own transactions. Entries of leases
and waiting rows are opaque bytes made by `core/group/entries.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from penstock.api.ticket import Ticket
from penstock.model.errors import InvalidArgument
from penstock.model.rows import (
    REGISTRAR_SLOT,
    BatchHead,
    BatchRow,
    CatalogChanges,
    CatalogRow,
    CheckedBatch,
    ClusterView,
    Commit,
    DedupRow,
    EnqueuedRow,
    EnqueuedTarget,
    FailedRow,
    Joined,
    KeptRow,
    LaneImage,
    Member,
    OutboxRow,
    TraceRow,
    slot_of,
)

FAILS_CHECKSUM: Final = "fails its checksum"
"""What is wrong with most damaged bodies."""


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine can do. The commit loop follows it."""

    spans_slots: bool = True
    """One commit may change lanes of several slots.

    Otherwise every commit names one slot at the most, and changes nothing that is of another: lanes, rows of the outbox
    that it deletes (`OutboxRow.slot`), queues and groups (their queue's slot), other declarations and enqueued rows
    (the registrar's). The outbox rows that it puts may be for any slot. Decision 24 has the details.
    """
    commits_under_way: int = 1
    """How many `apply` calls may run at once. Those of one slot never overlap."""
    is_remote: bool = False
    """A commit is a round trip to another process: it takes longer than answering a request."""
    row_bytes_max: int | None = None
    """The longest row of the outbox; None where no message is longer. Bodies of batches have no limit."""


class Log(Protocol):
    """Lanes and what commits change. Reads may run while commits are under way."""

    def apply(self, commit: Commit) -> Ticket[None]:
        """Make the commit durable, atomically and fenced. How, the engine decides: a task, a thread, or neither.

        It begins now, and the ticket may be done when this returns. Nothing is raised here: an error is the ticket's.
        A callback of the ticket may be called before reads know of the commit, so it starts none itself.
        """
        ...

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        """The images of these lanes, in their order."""

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        """Batches that overlap [start, end), in order; at least one where there is one, then up to bytes_most.

        An engine that verified the checksums of body and meta sets `is_intact`; damaged ones are no error here.
        """

    async def check(self, lane: int, start: int, bytes_most: int) -> list[CheckedBatch]:
        """Whether batches that end after `start` are whole, as they are on the disk; as many as `read` would give.

        Off the event loop, as far as that is the engine's to say.
        """

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        """Heads of the batches that end after `start`, in order; at least one, then up to the limits (of meta)."""

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        """The base of the first batch published at or after a time; None where there is none."""

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        """The rows of these keys, in any order."""

    async def lanes_in_use(self) -> list[int]:
        """Lanes that have leases or waiting rows: a new owner must run their timers."""

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        """Outbox rows with an id above `after`, of these slots unless of all, by rising id."""

    async def find_trace(self, namespace: str, trace_id: str, most: int) -> list[TraceRow]:
        """The oldest `most` rows of a trace, by rising time and id."""

    async def oldest_trace(self) -> int | None:
        """The time of the oldest trace row of all; None where there is none."""


class Catalog(Protocol):
    """What was declared. Commits change it; here it is read."""

    async def catalog(self) -> list[CatalogRow]:
        """Everything declared, by rising id."""

    async def catalog_since(self, version: int) -> CatalogChanges:
        """What was declared and deleted since a version; everything where that is too long ago, or 0."""


class Renewing(Protocol):
    """Renews a member's lease from a thread while the event loop is busy. Optional: `Coordination.renewing`.

    Both methods block, and are called from one thread that is not the event loop's.
    """

    def renew(self, incarnation: int) -> bool:
        """Renew this member's lease, as `heartbeat` does; whether it is a member."""
        ...

    def close(self) -> None:
        """Release what was opened for it. Nothing more is called after it."""


class Coordination(Protocol):
    """Members, slots and ids. May be called at any time, also while commits are under way."""

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        """Take the slots from any owner: raise and return their epochs. Never while an `apply` is under way."""

    async def join(self, member: Member) -> Joined:
        """Become a member, without any slots."""

    async def heartbeat(self, incarnation: int) -> ClusterView:
        """Renew this member's lease, and see all members and slots. 0 only looks."""

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        """Own those of these slots that are free: raise and return their epochs. Nothing for a node that is no member.

        Before that, members whose lease has run out lose their membership and their slots.
        """

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        """Release those of these slots that this member owns; meant for the member `to` where one is named."""

    async def leave(self, incarnation: int) -> None:
        """Release all slots and end the membership."""

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        """The first of `count` consecutive ids above a number; none of them is ever reserved again."""

    def renewing(self, seconds: float, /) -> Renewing | None:
        """Renewals from a thread, each of which fails after so many seconds; None where only the event loop can."""


class Enqueueing(Protocol):
    """What applications put into the store, in transactions of their own. Optional: `Store.enqueueing`."""

    async def watch(self, wake: Callable[[], object]) -> None:
        """Call `wake` when applications have enqueued, as soon as the engine can tell. Called once.

        Wake-ups may get lost: a caller that wants to miss nothing polls too.
        """

    async def rows(self, most: int, bytes_most: int, passing: Sequence[EnqueuedTarget] = ()) -> list[EnqueuedRow]:
        """Enqueued rows with the lowest ids; at least one where there is one, then up to the limits (of payloads).

        Skips rows that have failed and those for the targets in `passing`.
        """

    async def failed(self, namespace: str, after: int, most: int) -> list[FailedRow]:
        """Enqueued rows of a namespace that have failed, with ids above `after`, by rising id."""

    async def count_failed(self) -> int:
        """How many enqueued rows have failed, in all namespaces."""

    async def list_all(self, after: int, bytes_most: int) -> list[KeptRow]:
        """Enqueued rows with ids above `after`, failed or not, by rising id; at least one, then up to a limit."""

    async def put_back(self, kept: KeptRow) -> None:
        """Put a row of another store, under its id; whoever enqueues from now on gets higher ones."""


class Maintenance(Protocol):
    """What the tools for operators need beyond a node: to walk over everything, and to begin behind another store.

    `after` is the last of the page before. Pages see commits that are made between them.
    """

    async def list_lanes(self, after: int, most: int) -> list[int]:
        """Lanes that were ever written and not deleted, above a number, by rising number."""

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        """The ids of a lane above a key, by rising key, of offsets from one on; from the first where none is given."""

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        """Trace rows behind a time, by rising time: all of one time together, so it may be more than `most`."""

    async def skip_incarnations(self, up_to: int) -> None:
        """Whoever joins from now on gets an incarnation above this number."""


class Store(Log, Catalog, Coordination, Protocol):
    """An open engine, used from one event loop.

    A failure of the engine is raised as `Unavailable` (`StoreCorrupt` where rows cannot be understood), with the
    engine's own message.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    @property
    def enqueueing(self) -> Enqueueing | None:
        """What applications enqueue; None where they cannot."""

    @property
    def place(self) -> str:
        """Where its tables are, for people: a file, or a database."""

    def body_place(self, lane: int, base: int) -> str:
        """Where the body of a batch is that was read and is damaged, for people."""
        ...

    def body_problem(self, lane: int, base: int) -> str:
        """What is wrong with it: `FAILS_CHECKSUM` where the engine knows no more."""
        ...

    def damage(self) -> list[str]:
        """What was found damaged while it was opened, and nobody has looked at since; for people to read."""
        ...

    async def close(self) -> None:
        """Release everything. Nothing more is called after it."""


class FullStore(Store, Maintenance, Protocol):
    """An engine as `open_engine` opens it: what a node uses, and what the tools for operators use."""


def check_commit(commit: Commit) -> None:
    """Refuse what no engine may apply: a lane changed twice, or one whose slot's epoch the commit does not name."""
    changed = [change.lane for change in commit.lanes]
    if len(set(changed)) != len(changed):
        twice = next(lane for lane in changed if changed.count(lane) > 1)
        raise InvalidArgument(f"lane {twice} has two changes in one commit; merge them into one")
    for lane in (*changed, *commit.lanes_deleted):
        if slot_of(lane) not in commit.epochs:
            raise InvalidArgument(f"the commit changes lane {lane} but names no epoch for its slot {slot_of(lane)}")
    if changes_enqueued(commit) and REGISTRAR_SLOT not in commit.epochs:
        raise InvalidArgument(f"the commit changes enqueued rows but names no epoch for slot {REGISTRAR_SLOT}")


def changes_enqueued(commit: Commit) -> bool:
    return bool(commit.enqueued_deleted or commit.enqueued_failed or commit.enqueued_retried)
