"""The log's records: a commit as bytes and back, and how a whole record is told from a torn or a damaged one.

| part of a record | bytes | what |
| --- | --- | --- |
| head | 32 | magic, checksum of head and rows, their lengths, the bodies' checksum, the record's number |
| rows | as the head says | the commit without bodies, by MessagePack |
| bodies | as the head says | the bodies of its batches as they are, one behind the other |

The checksum of the head begins with a number made of the store, the segment and the place in it, so that bytes of
another place or another store never pass for a record, whatever a message holds. This module knows bytes only: no file,
no thread, no SQLite. Next stop: `segments.py`, which writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast, get_origin, get_type_hints

import msgspec

from penstock.model.checksum import crc32
from penstock.model.errors import InvalidArgument
from penstock.model.rows import (
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    Integer,
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
LARGE_ROWS_BYTES: Final = 1 << 18
"""Rows of about two thousand messages that are settled one by one; to read them back takes milliseconds."""
UNKEPT: Final = (TypeError, ValueError, OverflowError)
"""What a value raises that no row can keep."""


class LoggedBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A batch without its body, which lies behind the rows: `body_bytes` of it."""

    base: Integer
    count: Integer
    published_ms: Integer
    bytes_end: Integer
    meta: bytes
    body_bytes: Integer


class LoggedLane(msgspec.Struct, gc=False, array_like=True):
    """A `LaneChange` without bodies. Tuples: an empty one costs nothing, and most are empty."""

    lane: Integer
    first: Integer
    end: Integer
    bytes_end: Integer
    batches: tuple[LoggedBatch, ...]
    groups: tuple[GroupRow, ...]
    leases: tuple[LeaseRow, ...]
    waiting: tuple[WaitingRow, ...]
    dead: tuple[DeadRow, ...]
    dedup: tuple[DedupRow, ...]
    groups_deleted: tuple[Integer, ...]
    leases_deleted: tuple[tuple[Integer, Integer], ...]
    waiting_deleted: tuple[tuple[Integer, Integer], ...]
    dead_deleted: tuple[tuple[Integer, Integer], ...]
    trim_to: Integer | None
    dedup_expired_ms: Integer | None


class LoggedCommit(msgspec.Struct, gc=False, array_like=True):
    """A `Commit` without bodies."""

    epochs: dict[Integer, Integer]
    lanes: tuple[LoggedLane, ...]
    lanes_deleted: tuple[Integer, ...]
    catalog: tuple[CatalogRow, ...]
    catalog_deleted: tuple[tuple[str, Integer], ...]
    outbox: tuple[OutboxRow, ...]
    outbox_deleted: tuple[Integer, ...]
    traces: tuple[TraceRow, ...]
    traces_expired_ms: Integer | None
    committed_ms: Integer = 0
    """When it was made, by the machine's clock; 0 in records of versions that did not say."""

    @property
    def time_ms(self) -> int:
        """When it was made, as far as it says: at least when its newest messages were published; 0 for no idea."""
        published = (row.published_ms for change in self.lanes for row in change.batches)
        return self.committed_ms or max(published, default=0)


class Draft(NamedTuple):
    """A commit that is ready to be written wherever it is put."""

    rows: bytes
    bodies: Sequence[bytes]
    bodies_bytes: int
    commit: LoggedCommit
    """The commit as it will be read back: a copy that shares no list with the caller's."""
    size: int
    """Bytes of the whole record."""

    def head(self, seed: int, number: int) -> bytes:
        """The head for a place; looks at every byte of the bodies, outside Python's lock where they are large."""
        checksum = 0
        for body in self.bodies:
            checksum = crc32(body, checksum)
        numbers = (len(self.rows), checksum, self.bodies_bytes, number)
        return HEAD.pack(MAGIC, crc32(self.rows, crc32(_CHECKED.pack(*numbers), seed)), *numbers)


class Head(NamedTuple):
    """The first bytes of a record; to be trusted once `is_whole` is true."""

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


def seed_of(store_id: bytes, segment: int, position: int) -> int:
    """The seed of the checksum of a record at a place."""
    return crc32(_PLACE.pack(store_id, segment, position))


class LargeDraft(NamedTuple):
    """A commit that was encoded, and has so many rows that they are read back on a thread."""

    rows: bytes
    bodies: Sequence[bytes]
    logged: tuple[object, ...]
    """The fields of a `LoggedCommit`."""

    def read_back(self) -> Draft:
        """In pieces: others have Python's lock between them."""
        try:
            copy = _read_back(self.logged)
        except UNKEPT as error:
            raise _refused(error) from error
        return _drafted(self.rows, self.bodies, copy)


def draft(commit: Commit, committed_ms: int = 0) -> Draft | LargeDraft:
    """Encode a commit that is made now; `InvalidArgument` for a value that no row can keep."""
    bodies = [row.body for change in commit.lanes for row in change.batches]
    logged = _logged(commit, committed_ms)
    try:
        rows = _encoder.encode(logged)
        if len(rows) > LARGE_ROWS_BYTES:
            return LargeDraft(rows, bodies, logged)
        # Read back at once: what a restart could not understand is refused now.
        copy = _decoder.decode(rows)
    except UNKEPT as error:
        raise _refused(error) from error
    return _drafted(rows, bodies, copy)


def _drafted(rows: bytes, bodies: Sequence[bytes], copy: LoggedCommit) -> Draft:
    if len(rows) > ROWS_BYTES_MAX:
        raise InvalidArgument(f"a commit's rows have {len(rows)} bytes; the limit is {ROWS_BYTES_MAX}")
    bodies_bytes = sum(map(len, bodies))
    return Draft(rows, bodies, bodies_bytes, copy, HEAD.size + len(rows) + bodies_bytes)


def _refused(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"a value that the store cannot keep: {error}")


def parse_head(data: bytes) -> Head | None:
    """The head at the beginning of these bytes, if they look like one."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        return None
    return Head(*HEAD.unpack_from(data)[1:])


def parse_rows(rows: bytes) -> LoggedCommit:
    return _decoder.decode(rows)


def _logged(commit: Commit, committed_ms: int) -> tuple[object, ...]:
    """The fields of a `LoggedCommit`, in their order: encoded, they are the same as one."""
    return (
        commit.epochs,
        [_logged_lane(change) for change in commit.lanes],
        commit.lanes_deleted,
        commit.catalog,
        commit.catalog_deleted,
        commit.outbox,
        commit.outbox_deleted,
        commit.traces,
        commit.traces_expired_ms,
        committed_ms,
    )


def _logged_lane(change: LaneChange) -> tuple[object, ...]:
    """The fields of a `LoggedLane`, in their order."""
    return (
        change.lane,
        change.first,
        change.end,
        change.bytes_end,
        [(row.base, row.count, row.published_ms, row.bytes_end, row.meta, len(row.body)) for row in change.batches],
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


PIECE_ROWS: Final = 1_000
"""Rows of a large commit that are read back at once, in a millisecond or two."""
_PIECES: Final = {
    kind: {
        name: msgspec.msgpack.Decoder(of)
        for name, of in get_type_hints(kind, include_extras=True).items()
        if get_origin(of) is tuple
    }
    for kind in (LoggedCommit, LoggedLane)
}
_heads: Final = {kind: msgspec.msgpack.Decoder(kind) for kind in _PIECES}


def _read_back(logged: tuple[object, ...]) -> LoggedCommit:
    """What decoding all of it at once would give."""
    lanes = cast("list[tuple[object, ...]]", logged[1])
    commit: LoggedCommit = _copied(LoggedCommit, (logged[0], [], *logged[2:]))
    commit.lanes = tuple([_copied(LoggedLane, lane) for lane in lanes])
    return commit


def _copied(kind: type[Any], fields: tuple[object, ...]) -> Any:
    """A struct from its fields, whose lists are encoded and decoded piece by piece."""
    made = _heads[kind].decode(_encoder.encode([() if type(field) is list else field for field in fields]))
    for name, values in zip(kind.__struct_fields__, fields, strict=True):
        if type(values) is list and values:
            decoder = _PIECES[kind][name]
            pieces = [values[at : at + PIECE_ROWS] for at in range(0, len(values), PIECE_ROWS)]
            setattr(made, name, tuple([row for piece in pieces for row in decoder.decode(_encoder.encode(piece))]))
    return made
