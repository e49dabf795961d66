"""A batch as self-contained bytes, for files and HTTP.

This module knows the frame around `meta` and `body`, and never looks into either.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.batch.body import joined
from penstock.batch.guards import check_count, check_version
from penstock.batch.layout import CHECKSUM, FRAME_HEAD, FRAME_START, MAGIC, VERSION, EncodedBatch
from penstock.model.checksum import crc32
from penstock.model.errors import InvalidBatch


def to_bytes(batch: EncodedBatch) -> bytes:
    """A batch as one byte string that says where it ends."""
    return b"".join((*_head(batch), batch.body))


def to_parts(batch: EncodedBatch) -> tuple[bytes, bytes]:
    """Like `to_bytes` in two parts; the second is the batch's body itself, so that a large one is not copied."""
    return b"".join(_head(batch)), batch.body


def _head(batch: EncodedBatch) -> tuple[bytes, bytes, bytes]:
    check_count(batch.count)
    head = FRAME_HEAD.pack(MAGIC, VERSION, batch.count, len(batch.meta), len(batch.body))
    return head, CHECKSUM.pack(crc32(head)), batch.meta


def from_bytes(data: bytes) -> EncodedBatch:
    """The batch that `to_bytes` framed. Checks the frame only; `decode` and `check` check what is inside."""
    count, body_start = _opened(data, len(data))
    return EncodedBatch(count, data[FRAME_START:body_start], data[body_start:])


def from_parts(parts: Sequence[bytes | memoryview]) -> EncodedBatch:
    """Like `from_bytes`, of bytes in several pieces; a large body is copied once."""
    first, *rest = parts
    if len(first) < FRAME_START:
        return from_bytes(b"".join(parts))
    count, body_start = _opened(bytes(first[:FRAME_START]), sum(map(len, parts)))
    if len(first) < body_start:
        return from_bytes(b"".join(parts))
    return EncodedBatch(count, bytes(first[FRAME_START:body_start]), joined((first[body_start:], *rest)))


def _opened(head: bytes, size: int) -> tuple[int, int]:
    """How many messages a batch of a size has, and where its body begins, by its first bytes."""
    if len(head) < FRAME_START or not head.startswith(MAGIC):
        raise InvalidBatch(f"{size} bytes that begin with {head[:4]!r} are not a batch")
    _, version, count, meta_bytes, body_bytes = FRAME_HEAD.unpack_from(head)
    check_version(version, "batch")
    if CHECKSUM.unpack_from(head, FRAME_HEAD.size)[0] != crc32(head[: FRAME_HEAD.size]):
        raise InvalidBatch("the batch's head is corrupted: its checksum does not match")
    if size != FRAME_START + meta_bytes + body_bytes:
        raise InvalidBatch(f"batch has {size} bytes; its head says {FRAME_START + meta_bytes + body_bytes}")
    check_count(count)
    return count, FRAME_START + meta_bytes
