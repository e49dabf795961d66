"""The log's records: a commit as bytes and back, and how a whole record is told from a torn or a damaged one.

| part of a record | bytes | what |
| --- | --- | --- |
| head | 32 | magic, checksum of head and rows, their lengths, the bodies' checksum, the record's number |
| rows | as the head says | the commit without bodies, by MessagePack |
| bodies | as the head says | the bodies of its batches as they are, one behind the other |

The checksum of the head begins with a number made of the store, the segment and the place in it, so that bytes of
another place or another store never pass for a record, whatever a message holds. This module knows bytes only: no file,
no thread, no SQLite. Next stop: `log_segments.py`, which writes them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from penstock.errors import InvalidArgument
from penstock.rows import (
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneChange,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
)

MAGIC: Final = b"PNLr"
HEAD: Final = struct.Struct("<4sIIIQQ")
_CHECKED: Final = struct.Struct("<IIQQ")
_PLACE: Final = struct.Struct("<16sQQ")
ROWS_BYTES_MAX: Final = (1 << 32) - 1


class LoggedBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A batch without its body, which lies behind the rows: `body_bytes` of it."""

    base: int
    count: int
    published_ms: int
    bytes_end: int
    meta: bytes
    body_bytes: int


class LoggedLane(msgspec.Struct, gc=False, array_like=True):
    """A `LaneChange` without bodies."""

    lane: int
    first: int
    end: int
    bytes_end: int
    batches: list[LoggedBatch]
    groups: list[GroupRow]
    leases: list[LeaseRow]
    waiting: list[WaitingRow]
    dead: list[DeadRow]
    dedup: list[DedupRow]
    groups_deleted: list[int]
    leases_deleted: list[tuple[int, int]]
    waiting_deleted: list[tuple[int, int]]
    dead_deleted: list[tuple[int, int]]
    trim_to: int | None
    dedup_expired_ms: int | None


class LoggedCommit(msgspec.Struct, gc=False, array_like=True):
    """A `Commit` without bodies."""

    epochs: dict[int, int]
    lanes: list[LoggedLane]
    lanes_deleted: list[int]
    catalog: list[CatalogRow]
    catalog_deleted: list[tuple[str, int]]
    outbox: list[OutboxRow]
    outbox_deleted: list[int]
    traces: list[TraceRow]
    traces_expired_ms: int | None


class Draft(NamedTuple):
    """A commit that is ready to be written wherever it is put."""

    rows: bytes
    bodies: Sequence[bytes]
    bodies_bytes: int
    commit: LoggedCommit
    """The commit as it will be read back: a copy that shares no list with the caller's."""

    @property
    def size(self) -> int:
        return HEAD.size + len(self.rows) + self.bodies_bytes

    def head(self, seed: int, number: int) -> bytes:
        """The head for a place; looks at every byte of the bodies, outside Python's lock where they are large."""
        checksum = 0
        for body in self.bodies:
            checksum = crc32(body, checksum)
        numbers = (len(self.rows), checksum, self.bodies_bytes, number)
        return HEAD.pack(MAGIC, crc32(self.rows, crc32(_CHECKED.pack(*numbers), seed)), *numbers)


class Head(NamedTuple):
    """What the first bytes of a record say; to be believed when `is_whole` says so."""

    checksum: int
    rows_bytes: int
    bodies_sum: int
    bodies_bytes: int
    number: int

    @property
    def size(self) -> int:
        return HEAD.size + self.rows_bytes + self.bodies_bytes

    def is_whole(self, seed: int, rows: bytes) -> bool:
        numbers = (self.rows_bytes, self.bodies_sum, self.bodies_bytes, self.number)
        return len(rows) == self.rows_bytes and self.checksum == crc32(rows, crc32(_CHECKED.pack(*numbers), seed))


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(LoggedCommit)
# MessagePack keeps one bit more than SQLite: an unsigned number whose highest bit is set.
_PERHAPS_TOO_LARGE: Final = re.compile(rb"\xcf[\x80-\xff]")


def seed_of(store_id: bytes, segment: int, position: int) -> int:
    """What the checksum of a record at a place begins with."""
    return crc32(_PLACE.pack(store_id, segment, position))


def draft(commit: Commit) -> Draft:
    """Encode a commit; `InvalidArgument` for a value that no row can keep."""
    bodies = [row.body for change in commit.lanes for row in change.batches]
    logged = LoggedCommit(
        commit.epochs,
        [_logged(change) for change in commit.lanes],
        commit.lanes_deleted,
        commit.catalog,
        commit.catalog_deleted,
        commit.outbox,
        commit.outbox_deleted,
        commit.traces,
        commit.traces_expired_ms,
    )
    try:
        rows = _encoder.encode(logged)
        # Read back at once: what a restart could not understand is refused now.
        copy = _decoder.decode(rows)
        if _PERHAPS_TOO_LARGE.search(rows):
            _check_numbers(msgspec.msgpack.decode(rows, strict=False))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"a value that the store cannot keep: {error}") from error
    if len(rows) > ROWS_BYTES_MAX:
        raise InvalidArgument(f"a commit's rows have {len(rows)} bytes; the limit is {ROWS_BYTES_MAX}")
    return Draft(rows, bodies, sum(map(len, bodies)), copy)


def parse_head(data: bytes) -> Head | None:
    """The head at the beginning of these bytes, if they look like one."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        return None
    return Head(*HEAD.unpack_from(data)[1:])


def parse_rows(rows: bytes) -> LoggedCommit:
    return _decoder.decode(rows)


def _logged(change: LaneChange) -> LoggedLane:
    batches = [
        LoggedBatch(row.base, row.count, row.published_ms, row.bytes_end, row.meta, len(row.body))
        for row in change.batches
    ]
    return LoggedLane(
        change.lane,
        change.first,
        change.end,
        change.bytes_end,
        batches,
        change.groups,
        change.leases,
        change.waiting,
        change.dead,
        change.dedup,
        change.groups_deleted,
        change.leases_deleted,
        change.waiting_deleted,
        change.dead_deleted,
        change.trim_to,
        change.dedup_expired_ms,
    )


def _check_numbers(value: object) -> None:
    if isinstance(value, int) and value >> 63 not in (0, -1):
        raise OverflowError(f"{value} has more than 64 bits with its sign")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            _check_numbers(item)
