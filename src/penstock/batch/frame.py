"""A batch as self-contained bytes, for files and HTTP.

This module knows the frame around `meta` and `body`, and never looks into either.
"""

from __future__ import annotations

from penstock.batch.guards import check_count, check_version
from penstock.batch.layout import CHECKSUM, FRAME_HEAD, FRAME_START, MAGIC, VERSION, EncodedBatch
from penstock.checksum import crc32
from penstock.errors import InvalidBatch


def to_bytes(batch: EncodedBatch) -> bytes:
    """A batch as one byte string that says where it ends."""
    check_count(batch.count)
    head = FRAME_HEAD.pack(MAGIC, VERSION, batch.count, len(batch.meta), len(batch.body))
    return b"".join((head, CHECKSUM.pack(crc32(head)), batch.meta, batch.body))


def from_bytes(data: bytes) -> EncodedBatch:
    """What `to_bytes` made. Looks at the frame only; `decode` and `check` look at what is inside."""
    if len(data) < FRAME_START or not data.startswith(MAGIC):
        raise InvalidBatch(f"{len(data)} bytes that begin with {data[:4]!r} are not a batch")
    _, version, count, meta_bytes, body_bytes = FRAME_HEAD.unpack_from(data)
    check_version(version, "batch")
    if CHECKSUM.unpack_from(data, FRAME_HEAD.size)[0] != crc32(data[: FRAME_HEAD.size]):
        raise InvalidBatch("the batch's head is corrupted: its checksum does not match")
    if len(data) != FRAME_START + meta_bytes + body_bytes:
        raise InvalidBatch(f"batch has {len(data)} bytes; its head says {FRAME_START + meta_bytes + body_bytes}")
    check_count(count)
    body_start = FRAME_START + meta_bytes
    return EncodedBatch(count, data[FRAME_START:body_start], data[body_start:])
