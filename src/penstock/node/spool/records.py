"""The spool's files as bytes: what a segment begins with, what a record is, and where a torn end begins.

A segment is a header and records, each with its length and checksum before it:

    b"PNSPOOL1"  frame(header)  frame(record)  frame(record) …        frame(x) = length, crc32, MessagePack of x

Pure: no file, no clock, no waiting. `log.py` keeps the segments, `spool.py` decides what goes into them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from penstock.batch import EncodedBatch
from penstock.model.checksum import crc32
from penstock.model.errors import StoreCorrupt

MAGIC: Final = b"PNSPOOL1"
_FRAME: Final = struct.Struct("<II")
RECORD_BYTES_MAX: Final = 1 << 30
"""A length past this is no length: the bytes are torn."""

Kind = TypeVar("Kind")


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What a segment says of all its records."""

    spool: str
    """Names the sequence that the records' numbers belong to; a new one for each process."""
    store: str
    """The identity of the store that they are meant for."""
    created_ms: int


class Doubt(msgspec.Struct, frozen=True, array_like=True):
    """A commit that held the publish and whose outcome is unknown: it happened if the store's stamp is at `number`."""

    slot: int
    key: bytes
    number: int
    epoch: int = 0
    """Under which it was made: of a node that has died, it is decided when the slot is at a later one."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One publish that was answered `buffered`."""

    sequence: int
    spooled_ms: int
    namespace: str
    queue: str | None
    """Either a queue"""
    queue_id: int
    """(this very one: a later one of the same name is another)"""
    exchange: str | None
    """or an exchange, routed when it is replayed."""
    reached: tuple[str, ...]
    """The queues that it was meant for when it was spooled: what is published to them later stays behind it."""
    publish_id: str | None
    count: int
    meta: bytes
    body: bytes
    doubt: Doubt | None = None

    @property
    def batch(self) -> EncodedBatch:
        return EncodedBatch(self.count, self.meta, self.body)


class DeadRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that could not be replayed, and why."""

    header: Header
    record: Record
    reason: str
    died_ms: int


_encoder: Final = msgspec.msgpack.Encoder()
_headers: Final = msgspec.msgpack.Decoder(Header)
_records: Final = msgspec.msgpack.Decoder(Record)
_dead: Final = msgspec.msgpack.Decoder(DeadRecord)


def segment_start(header: Header) -> bytes:
    """The first bytes of a segment."""
    return MAGIC + _frame(header)


def packed(record: Record) -> bytes:
    return _frame(record)


def packed_dead(dead: DeadRecord) -> bytes:
    """A dead letter's file, whole."""
    return MAGIC + _frame(dead)


def dead_of(data: bytes, name: str) -> DeadRecord:
    return _decoded(_dead, _only(data, name), name)


def header_of(data: bytes, name: str) -> tuple[Header, int] | None:
    """The header and where the records begin; None of a file whose header is not whole."""
    # A crash leaves a file that is shorter than what was written, or has zeros where something was to be.
    if not MAGIC.startswith(data[: len(MAGIC)].rstrip(b"\0")):
        raise StoreCorrupt(f"{name} is no segment of a spool; move it out of the folder")
    found = next(_frames(data, len(MAGIC)), None) if len(data) > len(MAGIC) else None
    if found is None:
        return None
    return _decoded(_headers, found[0], name), found[1]


def records_in(data: bytes, start: int, name: str) -> Iterator[tuple[Record, int]]:
    """The whole records from a place on, each with the place at which it ends; what is behind the last is torn."""
    for payload, end in _frames(data, start):
        yield _decoded(_records, payload, name), end


def _frame(value: msgspec.Struct) -> bytes:
    payload = _encoder.encode(value)
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def _frames(data: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    while start + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, start)
        end = start + _FRAME.size + length
        if not 0 < length <= RECORD_BYTES_MAX or end > len(data):
            return  # zeros too: a file that a crash left longer than what was written
        payload = data[start + _FRAME.size : end]
        if crc32(payload) != checksum:
            return
        yield payload, end
        start = end


def _only(data: bytes, name: str) -> bytes:
    found = next(_frames(data, len(MAGIC)), None) if data.startswith(MAGIC) else None
    if found is None:
        raise StoreCorrupt(f"{name} is damaged: its checksum is not that of its bytes")
    return found[0]


def _decoded(decoder: msgspec.msgpack.Decoder[Kind], payload: bytes, name: str) -> Kind:
    try:
        return decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{name} holds a record that cannot be read ({error}); a newer Penstock wrote it?") from None
