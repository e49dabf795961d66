"""Plain rows: what a commit writes and what a lane is loaded from. The words of the core and of the store.

Entries of leases and waiting rows are opaque bytes here; `core/group/entries.py` makes and reads them. Nothing in
this file does anything: the core fills the rows, an engine keeps them (`store/contract.py` says how).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that every engine can keep."""

SLOTS: Final = 64
"""Fixed hash buckets of lanes; nodes own slots, never single lanes."""

REGISTRAR_SLOT: Final = 0
"""Its owner is the registrar: exchanges, bindings, schedules, marks and staged transactions are changed there, and what
applications enqueue is taken there."""

DEDUP_KEY_BYTES_MAX: Final = 255
"""A key of an id is no longer than this: every engine can find a row by it."""


def slot_of(lane: int) -> int:
    """The slot that a lane belongs to."""
    return lane % SLOTS


def home_slot(namespace: str, queue: str) -> int:
    """The slot in which all lanes of a queue of this name are made: every node finds its owner by the name alone."""
    digest = blake2b(f"{len(namespace)}/{namespace}/{queue}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SLOTS


class BatchHead(msgspec.Struct, frozen=True, gc=False):
    """A stored batch without its body: all that claims, filters and retention look at."""

    base: int
    count: int
    published_ms: int
    bytes_end: int
    """Bytes ever appended to the lane, up to and with this batch: sizes of ranges are differences."""
    size: int
    """Bytes of this batch, meta and body."""
    meta: bytes

    @property
    def end(self) -> int:
        return self.base + self.count


class BatchRow(msgspec.Struct, frozen=True, gc=False):
    """A stored batch: consecutive messages of one lane, encoded together. `base` is its first offset."""

    base: int
    count: int
    published_ms: int
    bytes_end: int
    meta: bytes
    body: bytes
    is_intact: bool = False
    """The engine that read it has looked at both checksums; otherwise the reader does."""

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def size(self) -> int:
        return len(self.meta) + len(self.body)

    def head(self) -> BatchHead:
        return BatchHead(self.base, self.count, self.published_ms, self.bytes_end, self.size, self.meta)


class CheckedBatch(msgspec.Struct, frozen=True, gc=False):
    """A stored batch that was read to see whether it is whole."""

    base: int
    end: int
    published_ms: int
    size: int
    damaged: Literal["body", "meta"] | None = None
    """What of it could not be read, or fails its checksum."""

    @property
    def is_intact(self) -> bool:
        return self.damaged is None


class GroupRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A group's cursor on a lane: first offset never handed out; for streams also what was committed."""

    group: Integer
    next: Integer
    committed: Integer


class LeaseRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    group: Integer
    lease: Integer
    deadline_ms: Integer
    consumer: str
    entries: bytes
    session: str = ""
    """The session that holds the lease; empty for none. The lease ends with it."""


class WaitingRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The waiting entries of one group whose first offset falls into one chunk of offsets."""

    group: Integer
    chunk: Integer
    entries: bytes


class DeadRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Consecutive offsets that died together: [start, end)."""

    group: Integer
    start: Integer
    end: Integer
    attempts: Integer
    reason: str
    error: str
    consumer: str
    dead_ms: Integer


class DedupRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    key: bytes
    offset: Integer
    expires_ms: Integer


class OutboxRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something that a commit promised to do elsewhere: `document` says what, in the node's words."""

    id: Integer
    lane: Integer
    offset: Integer
    document: bytes
    slot: Integer = 0
    """The slot whose owner must do it."""


class EnqueuedRow(msgspec.Struct, frozen=True, gc=False):
    """A message that an application put into the store within a transaction of its own, and that is not published yet.

    Ids rise as rows are put, but a row is seen when its transaction commits: a lower id may come later.
    """

    id: int
    namespace: str
    queue: str | None
    """One of queue and exchange is given."""
    exchange: str | None
    payload: bytes
    key: str | None = None
    partition: str | None = None
    headers: str | None = None
    """JSON, as `typed_headers` writes it."""
    priority: int = 0
    delay_ms: int = 0
    not_before_ms: int = 0
    ttl_ms: int | None = None
    dedup_id: str | None = None
    content_type: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    mandatory: bool = True
    """Whether it is an error that an exchange has no queue for it."""
    enqueued_ms: int = 0

    @property
    def target(self) -> EnqueuedTarget:
        return EnqueuedTarget(self.namespace, self.queue, self.exchange)


class EnqueuedTarget(NamedTuple):
    """Where an enqueued message is to go."""

    namespace: str
    queue: str | None
    exchange: str | None


class EnqueuedFailure(msgspec.Struct, frozen=True, gc=False):
    """Why an enqueued message could not be published; its row stays, and is passed over."""

    id: int
    error: str
    failed_ms: int


def failure_of(id: int, error: str | None, failed_ms: int | None) -> EnqueuedFailure | None:
    """What a row's columns say of a failure; None where it has not failed."""
    return None if failed_ms is None else EnqueuedFailure(id, error or "", failed_ms)


class KeptRow(msgspec.Struct, frozen=True, gc=False):
    """An enqueued message with all that is known of it: what a copy of a store takes along."""

    row: EnqueuedRow
    failure: EnqueuedFailure | None


class FailedRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An enqueued message that cannot be published, without its payload."""

    id: int
    """Of its row in the database."""
    namespace: str
    size: int
    """Bytes of the payload."""
    enqueued_ms: int
    error: str
    """Why it cannot be published."""
    failed_ms: int
    queue: str | None = None
    exchange: str | None = None
    key: str | None = None


class TraceRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One thing that happened under a trace id. (namespace, trace_id, at_ms, id) is its identity.

    Times repeat and so do names: `id` is the writer's own number for the row, and keeps equal ones apart.
    """

    namespace: str
    trace_id: str
    at_ms: Integer
    id: Integer
    kind: str
    queue: str | None = None
    queue_id: Integer = 0
    """Tells the queue from a later one of the same name; 0 where there is none."""
    lane: Integer | None = None
    """The lane's place in its queue, from 0 on."""
    offset: Integer | None = None
    name: str = ""
    detail: str = ""
    consumer: str = ""


class CatalogRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A declared thing. (kind, id) is its identity; `parent` the id of the thing it belongs to, or 0."""

    kind: str
    id: Integer
    parent: Integer
    namespace: str
    name: str
    document: bytes


class LaneChange(msgspec.Struct, gc=False):
    """All that one commit does to one lane. Puts replace rows of the same key; deletes of absent rows are fine.

    Order inside a lane: deletes before puts, batches, then `trim_to`: batches that end at or below it go.
    """

    lane: int
    first: int
    end: int
    bytes_end: int
    batches: list[BatchRow] = []
    groups: list[GroupRow] = []
    leases: list[LeaseRow] = []
    waiting: list[WaitingRow] = []
    dead: list[DeadRow] = []
    dedup: list[DedupRow] = []
    groups_deleted: list[int] = []
    """Group ids; their cursor, leases, waiting and dead rows go with them."""
    leases_deleted: list[tuple[int, int]] = []
    """(group, lease)"""
    waiting_deleted: list[tuple[int, int]] = []
    """(group, chunk)"""
    dead_deleted: list[tuple[int, int]] = []
    """(group, start)"""
    trim_to: int | None = None
    dedup_expired_ms: int | None = None
    """Dedup rows that expire at or before this time go."""


class Commit(msgspec.Struct, gc=False):
    """One atomic step of one node."""

    epochs: dict[int, int] = {}
    """slot → the epoch under which the caller owns it; every slot of a lane in `lanes` must be here."""
    lanes: list[LaneChange] = []
    lanes_deleted: list[int] = []
    """Lanes whose every row goes, and what the outbox promised of them."""
    catalog: list[CatalogRow] = []
    catalog_deleted: list[tuple[str, int]] = []
    """(kind, id)"""
    outbox: list[OutboxRow] = []
    outbox_deleted: list[int] = []
    traces: list[TraceRow] = []
    traces_expired_ms: int | None = None
    """Trace rows of this time and older go."""
    enqueued_deleted: list[int] = []
    """Ids of enqueued rows that are published by this commit, or given up. All that is about enqueued rows needs the
    epoch of slot 0: its owner takes them, and nobody else."""
    enqueued_failed: list[EnqueuedFailure] = []
    """Enqueued rows that are passed over from now on."""
    enqueued_retried: list[int] = []
    """Ids of enqueued rows that are passed over no longer."""


class LaneImage(msgspec.Struct, gc=False):
    """A lane as it was last committed: what the core resumes from. A lane never written has end 0, no rows."""

    lane: int
    first: int = 0
    end: int = 0
    bytes_end: int = 0
    groups: list[GroupRow] = []
    leases: list[LeaseRow] = []
    waiting: list[WaitingRow] = []
    dead: list[DeadRow] = []
    dedup: list[DedupRow] = []
    """The newest live ids, as many as `load` was asked for at the most, by rising expiry."""
    dedup_complete: bool = True
    """False when there are more ids than that: the others are found with `find_dedup`."""
    published_ms: int = 0
    """When the newest batch kept was published; 0 where none is. Times in a lane never fall."""


# Who is there, and who owns what -------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True):
    """What a node says of itself when it joins."""

    name: str
    """`host:process`; of one with a spool `host:folder:process`, of which the first two stay as they are."""
    url: str
    """Where other nodes reach it; empty for a broker inside a program, which nobody can reach."""
    version: str
    lease_ms: int
    """It counts as gone when it was not heard of for so long."""


class Joined(msgspec.Struct, frozen=True):
    """What a node is told when it joins."""

    incarnation: int
    """Unique and rising over the life of the store, and above every epoch that was there."""
    secret: str
    """What the nodes of this store know and nobody else does."""


class NodeRow(msgspec.Struct, frozen=True):
    """A node that has joined and not left."""

    incarnation: int
    name: str
    url: str
    version: str
    lease_ms: int
    joined_ms: int
    age_ms: int
    """Since it was last heard of, by the store's clock."""

    @property
    def is_live(self) -> bool:
        return self.age_ms <= self.lease_ms


class SlotRow(msgspec.Struct, frozen=True):
    """Who owns a slot. A slot that nobody ever took has no row."""

    slot: int
    epoch: int
    node: int
    """The owner's incarnation; 0 while nobody owns it."""
    meant_for: int
    """The incarnation that it was released to; 0 for any."""
    since_ms: int
    why: str


class ClusterView(msgspec.Struct, frozen=True):
    """Everything about membership at one moment."""

    now_ms: int
    """The store's clock."""
    is_member: bool
    """False when the node that asked is not there: it was declared dead, or has left."""
    catalog_version: int
    nodes: list[NodeRow]
    slots: list[SlotRow]


class CatalogChanges(msgspec.Struct, frozen=True):
    """What was declared since a version."""

    version: int
    rows: list[CatalogRow]
    """As they are now, by rising id."""
    deleted: list[CatalogRow]
    """As they were."""
    is_complete: bool
    """`rows` is everything there is: what is not among them is gone."""
