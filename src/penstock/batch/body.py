"""The body of a batch: the payloads and their lengths in one block, compressed where that pays.

This module knows bytes and lengths only: no message, no metadata, no column. It decompresses in bounded memory, or
refuses. It keeps one compressor per thread and never blocks: `BytesIO` is memory.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate, pairwise
from typing import Final

import zstandard

from penstock.batch.guards import check_count, check_sum, check_version, limit_bytes
from penstock.batch.layout import (
    BODY_COMPRESSED,
    BODY_EQUAL_LENGTHS,
    BODY_HEAD,
    BODY_START,
    CHECKSUM,
    LENGTH_BYTES,
    UNFOLDED_BYTES_MIN,
    UNFOLDED_RATIO_MIN,
    VERSION,
)
from penstock.model import BATCH_BYTES_MAX
from penstock.model.checksum import crc32
from penstock.model.errors import InvalidArgument, InvalidBatch

COMPRESS_BYTES_MIN: Final = 512
_SAMPLE_PIECE_BYTES: Final = 1024
_SAMPLE_PIECES: Final = 4
JOINED_BYTES: Final = 1024 * 1024
LARGE_PIECE_BYTES: Final = 2048
"""Average bytes from which payloads are handled one by one and copied once; smaller ones are joined first."""


class _Zstandard(threading.local):
    """One thread's compressor and decompressor: costly to make, not safe to share."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstandard: Final = _Zstandard()


def payloads(body: bytes, count: int) -> list[bytes]:
    """The payloads of a body that holds `count`."""
    lengths, block, data_start = open_body(body, count)
    return [block[low:high] for low, high in pairwise(accumulate(lengths, initial=data_start))]


def write_body(lengths: array[int], pieces: Sequence[bytes | memoryview]) -> bytes:
    """The body of payloads of these lengths; `pieces` may split their bytes anywhere."""
    count = len(lengths)
    flags = 0
    packed = _little_endian(lengths).tobytes()
    if count and packed == packed[:LENGTH_BYTES] * count:
        flags |= BODY_EQUAL_LENGTHS
        packed = packed[:LENGTH_BYTES]
    size = lengths[0] * count if flags else sum(lengths)
    limit_bytes(size)
    parts = (packed, *pieces)
    if size < LARGE_PIECE_BYTES * len(pieces):
        parts = (b"".join(parts),)
        pieces = (memoryview(parts[0])[len(packed) :],)
    if _seems_to_pay(pieces, size, len(packed)):
        block = joined(parts)
        compressed = _zstandard.compressor.compress(block)
        parts = (block,)
        if _pays(len(compressed), len(block)):
            flags |= BODY_COMPRESSED
            parts = (compressed,)
    head = BODY_HEAD.pack(VERSION, flags, count)
    checksum = crc32(head)
    for part in parts:
        checksum = crc32(part, checksum)
    return joined((head, CHECKSUM.pack(checksum), *parts))


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """The parts as one. Of large ones a piece at a time: while bytes are joined no other thread has its turn."""
    if sum(map(len, parts)) < JOINED_BYTES:
        return b"".join(parts)
    whole = BytesIO()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), JOINED_BYTES):
            whole.write(view[start : start + JOINED_BYTES])
    return whole.getvalue()


def _seems_to_pay(pieces: Sequence[bytes | memoryview], size: int, packed: int) -> bool:
    """Whether compressing the payloads is likely to pay; of many bytes, by a sample.

    Payloads only: the lengths compress well in any case.
    """
    if size + packed <= 2 * _SAMPLE_PIECES * _SAMPLE_PIECE_BYTES:
        return size + packed >= COMPRESS_BYTES_MIN
    sample = b"".join(_sample(pieces, size))
    return _pays(len(_zstandard.compressor.compress(sample)), len(sample))


def _sample(pieces: Sequence[bytes | memoryview], size: int) -> Iterator[bytes | memoryview]:
    """The beginning of each quarter, which does not depend on how the payloads are split into pieces."""
    ends = list(accumulate(map(len, pieces)))
    step = size // _SAMPLE_PIECES
    for start in range(0, step * _SAMPLE_PIECES, max(step, 1)):
        index, wanted = bisect_right(ends, start), _SAMPLE_PIECE_BYTES
        start -= ends[index] - len(pieces[index])
        while wanted and index < len(pieces):
            taken = pieces[index][start : start + wanted]
            yield taken
            index, start, wanted = index + 1, 0, wanted - len(taken)


def _pays(compressed: int, plain: int) -> bool:
    return compressed * 8 < plain * 7


def is_intact(body: bytes) -> bool:
    """Whether a body's checksum matches. For large bodies the GIL is released."""
    try:
        check_sum(body, BODY_HEAD.size, "body")
    except (InvalidBatch, struct.error):
        return False
    return True


def is_large(body: bytes, count: int) -> bool:
    """Whether a body is not compressed and its payloads are large on average: slicing one again is only a copy."""
    return len(body) >= max(LARGE_PIECE_BYTES * count, BODY_START) and not body[1] & BODY_COMPRESSED


def open_body(
    body: bytes,
    count: int,
    *,
    is_checked: bool = False,
    most: int | None = None,
    past_limit: type[InvalidArgument] = InvalidBatch,
) -> tuple[array[int], bytes, int]:
    """The lengths of the payloads, the bytes that hold them, and where in these the first payload begins.

    `past_limit` is raised where they have more than `most` bytes, which is as many as a batch may where None.
    """
    check_count(count)
    most = BATCH_BYTES_MAX if most is None else most
    flags = _body_flags(body, count, is_checked)
    if flags & BODY_COMPRESSED:
        block, lengths_start = _decompress(body, most + count * LENGTH_BYTES, past_limit), 0
    else:
        block, lengths_start = body, BODY_START
    data_start = lengths_start + (1 if flags & BODY_EQUAL_LENGTHS else count) * LENGTH_BYTES
    if len(block) < data_start:
        raise InvalidBatch(f"body has {len(block)} bytes, too few for the lengths of {count} payloads")
    if len(block) - data_start > most:
        raise past_limit(f"payloads have {len(block) - data_start} bytes; a batch's limit is {most}")
    return _lengths(block, lengths_start, data_start, count, bool(flags & BODY_EQUAL_LENGTHS)), block, data_start


def is_compressed(body: bytes) -> bool:
    """Whether a body says that its block is compressed."""
    return len(body) > BODY_START and bool(body[1] & BODY_COMPRESSED)


def block_bytes(body: bytes, count: int) -> int:
    """The bytes that a body's block has once it is decompressed, by its first bytes alone; 0 if that is impossible.

    Opening such a body raises; a reader that only needs its neighbours must not fail.
    """
    if len(body) <= BODY_START:
        return 0
    if not body[1] & BODY_COMPRESSED:
        return len(body) - BODY_START
    try:
        size = zstandard.frame_content_size(memoryview(body)[BODY_START:])
    except zstandard.ZstdError:
        return 0
    return size if 0 < size <= BATCH_BYTES_MAX + count * LENGTH_BYTES else 0


def unfolded_bytes(body: bytes, count: int) -> int:
    """What a batch says of its block: its bytes where it is compressed and far larger than the body; 0 elsewhere."""
    if not body[1] & BODY_COMPRESSED:
        return 0
    size = block_bytes(body, count)
    return size if size > max(UNFOLDED_BYTES_MIN, UNFOLDED_RATIO_MIN * len(body)) else 0


def open_single(body: bytes) -> memoryview | None:
    """The payload of an intact, uncompressed body of one message; None for any other, which `open_body` handles.

    Five times as fast as that: a queue that stores one message a row is read row by row.
    """
    if body[: BODY_HEAD.size] != _SINGLE_HEAD or len(body) < _SINGLE_START:
        return None
    checksum, length = _SINGLE_REST.unpack_from(body, BODY_HEAD.size)
    view = memoryview(body)
    if length != len(body) - _SINGLE_START or crc32(view[BODY_START:], _SINGLE_HEAD_SUM) != checksum:
        return None
    return view[_SINGLE_START:]


def write_single(payload: bytes) -> bytes | None:
    """What `write_body` makes of one payload too short to compress, as most single publishes are; None for others."""
    if len(payload) + LENGTH_BYTES >= COMPRESS_BYTES_MIN:
        return None
    block = b"".join((_SINGLE_LENGTH.pack(len(payload)), payload))
    return b"".join((_SINGLE_HEAD, CHECKSUM.pack(crc32(block, _SINGLE_HEAD_SUM)), block))


_SINGLE_HEAD: Final = BODY_HEAD.pack(VERSION, BODY_EQUAL_LENGTHS, 1)
_SINGLE_HEAD_SUM: Final = crc32(_SINGLE_HEAD)
_SINGLE_LENGTH: Final = struct.Struct("<I")
_SINGLE_REST: Final = struct.Struct("<II")  # checksum, length of the payload
_SINGLE_START: Final = BODY_START + LENGTH_BYTES


def _lengths(block: bytes, start: int, stop: int, count: int, equal: bool) -> array[int]:
    lengths = array("I")
    lengths.frombytes(block[start:stop])
    lengths = _little_endian(lengths)
    total = lengths[0] * count if equal else sum(lengths)
    if total != len(block) - stop:
        raise InvalidBatch(f"payloads have {len(block) - stop} bytes; their lengths say {total}")
    return lengths * count if equal else lengths


def _body_flags(body: bytes, count: int, is_checked: bool) -> int:
    if len(body) < BODY_START:
        check_version(body[0] if body else VERSION, "body")
        raise InvalidBatch(f"body has {len(body)} bytes; its head alone has {BODY_START}")
    version, flags, held = BODY_HEAD.unpack_from(body)
    check_version(version, "body")
    if not is_checked:
        check_sum(body, BODY_HEAD.size, "body")
    if held != count:
        raise InvalidBatch(f"body holds {held} payloads, the batch has {count} messages")
    if flags & ~(BODY_COMPRESSED | BODY_EQUAL_LENGTHS):
        raise InvalidBatch(f"body has flags that do not exist: {flags:#x}")
    return int(flags)


def _decompress(body: bytes, limit: int, past_limit: type[InvalidArgument]) -> bytes:
    frame = memoryview(body)[BODY_START:]
    try:
        # Declared and within the limit before a byte is unfolded: zstandard allocates what the frame declares.
        size = zstandard.frame_content_size(frame)
        if size > limit:
            raise past_limit(f"compressed body declares {size} bytes; the limit is {limit}")
        if size <= 0:
            raise InvalidBatch(f"compressed body declares {size} bytes; it must be 1 to {limit}")
        return _zstandard.decompressor.decompress(frame, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidBatch(f"body does not decompress: {error}") from None


def _little_endian(lengths: array[int]) -> array[int]:
    if sys.byteorder == "big":
        lengths = lengths[:]
        lengths.byteswap()
    return lengths
