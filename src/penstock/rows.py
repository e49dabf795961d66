"""Plain rows: what a commit writes and what a lane is loaded from. The words of the core and of the store.

Entries of leases and waiting rows are opaque bytes here; `core/entries.py` makes and reads them. Nothing in
this file does anything: the core fills the rows, an engine keeps them (`store/contract.py` says how).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

SLOTS: Final = 64
"""Fixed hash buckets of lanes; nodes own slots, never single lanes."""

DEDUP_KEY_BYTES_MAX: Final = 255
"""A key of an id is no longer than this: every engine can find a row by it."""


REGISTRAR_SLOT: Final = 0
"""Whose owner declares things and takes what applications enqueue."""


def slot_of(lane: int) -> int:
    """The slot that a lane belongs to."""
    return lane % SLOTS


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
    """The engine that read it has looked at the body's checksum; otherwise whoever opens the body does."""

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def size(self) -> int:
        return len(self.meta) + len(self.body)

    def head(self) -> BatchHead:
        return BatchHead(self.base, self.count, self.published_ms, self.bytes_end, self.size, self.meta)


class GroupRow(msgspec.Struct, frozen=True, gc=False):
    """A group's cursor on a lane: first offset never handed out; for streams also what was committed."""

    group: int
    next: int
    committed: int


class LeaseRow(msgspec.Struct, frozen=True, gc=False):
    group: int
    lease: int
    deadline_ms: int
    consumer: str
    entries: bytes


class WaitingRow(msgspec.Struct, frozen=True, gc=False):
    """The waiting entries of one group whose first offset falls into one chunk of offsets."""

    group: int
    chunk: int
    entries: bytes


class DeadRow(msgspec.Struct, frozen=True, gc=False):
    """Consecutive offsets that died together: [start, end)."""

    group: int
    start: int
    end: int
    attempts: int
    reason: str
    error: str
    consumer: str
    dead_ms: int


class DedupRow(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    offset: int
    expires_ms: int


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """Something that a commit promised to do elsewhere: `document` says what, in the node's words."""

    id: int
    lane: int
    offset: int
    document: bytes


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


class FailedRow(msgspec.Struct, frozen=True, gc=False):
    """An enqueued message that could not be published, without its payload."""

    id: int
    namespace: str
    queue: str | None
    exchange: str | None
    key: str | None
    size: int
    """Bytes of the payload."""
    enqueued_ms: int
    error: str
    failed_ms: int


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened under a trace id. (namespace, trace_id, at_ms, id) is its identity.

    Times repeat and so do names: `id` is the writer's own number for the row, and keeps equal ones apart.
    """

    namespace: str
    trace_id: str
    at_ms: int
    id: int
    kind: str
    queue: str | None = None
    queue_id: int = 0
    """Tells the queue from a later one of the same name; 0 where there is none."""
    lane: int | None = None
    """The lane's place in its queue, from 0 on."""
    offset: int | None = None
    name: str = ""
    detail: str = ""
    consumer: str = ""


class CatalogRow(msgspec.Struct, frozen=True, gc=False):
    """A declared thing. (kind, id) is its identity; `parent` the id of the thing it belongs to, or 0."""

    kind: str
    id: int
    parent: int
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
