"""The layout of a batch's bytes (versions, bits, heads), and the two structs in which batches are passed around.

Declarations only: nothing here writes, reads or checks bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.model import Headers

VERSION: Final = 1
MAGIC: Final = b"PNSB"

# Metadata becomes Python objects when decoded, up to 60 times its encoded size (one-entry dicts inside headers are
# the worst), so it needs a bound of its own, well below that of the payloads.
META_BYTES_MAX: Final = 8 * 1024 * 1024

COLUMN_PARTITION: Final = 1 << 0
COLUMN_KEY: Final = 1 << 1
COLUMN_HEADERS: Final = 1 << 2
COLUMN_PRIORITY: Final = 1 << 3
COLUMN_DELAY_MS: Final = 1 << 4
COLUMN_NOT_BEFORE_MS: Final = 1 << 5
COLUMN_TTL_MS: Final = 1 << 6
COLUMN_DEDUP_ID: Final = 1 << 7
COLUMN_CONTENT_TYPE: Final = 1 << 8
COLUMN_CORRELATION_ID: Final = 1 << 9
COLUMN_TRACE_ID: Final = 1 << 10
COLUMN_UNFOLDED: Final = 1 << 11
"""Of the batch, not of its messages: the bytes that the block of a compressed body has. A constant, and the last."""
UNFOLDED: Final = struct.Struct(">BI")  # msgpack's mark of 32 bits without a sign, and the number
UNFOLDED_MARK: Final = 0xCE
UNFOLDED_BYTES_MIN: Final = 64 * 1024
UNFOLDED_RATIO_MIN: Final = 2
"""A batch says so where the block has more bytes than the first, and more than so many times its body."""

BODY_COMPRESSED: Final = 1 << 0
BODY_EQUAL_LENGTHS: Final = 1 << 1

# The checksum is the last field of each head and covers the head before it and all that follows it.
CHECKSUM: Final = struct.Struct("<I")
META_HEAD: Final = struct.Struct("<BHHI")  # version, columns present, columns constant, count
BODY_HEAD: Final = struct.Struct("<BBI")  # version, flags, count
FRAME_HEAD: Final = struct.Struct("<4sBIII")  # magic, version, count, bytes of meta, bytes of body
META_START: Final = META_HEAD.size + CHECKSUM.size
BODY_START: Final = BODY_HEAD.size + CHECKSUM.size
FRAME_START: Final = FRAME_HEAD.size + CHECKSUM.size
LENGTH_BYTES: Final = 4


class EncodedBatch(msgspec.Struct, frozen=True):
    """Messages encoded together. `meta` and `body` repeat `count`, so that a mismatch is found."""

    count: int
    meta: bytes
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that storing the batch takes."""
        return len(self.meta) + len(self.body)


class Meta(msgspec.Struct):
    """The metadata of a batch by column; a column of defaults is None."""

    count: int
    partition: list[str | None] | None = None
    key: list[str | None] | None = None
    headers: list[Headers | None] | None = None
    priority: list[int] | None = None
    delay_ms: list[int] | None = None
    not_before_ms: list[int] | None = None
    ttl_ms: list[int | None] | None = None
    dedup_id: list[str | None] | None = None
    content_type: list[str | None] | None = None
    correlation_id: list[str | None] | None = None
    trace_id: list[str | None] | None = None
