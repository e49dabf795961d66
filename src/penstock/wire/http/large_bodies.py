"""Large bodies of HTTP, in the parts that they are sent and received in: whatever joined them would copy every byte.

Shared by `client` and `fronts/http`: a body that is arriving, and the answers of claims and reads, with the stored
batches as they are between what stands around them. Bytes only: no socket. The shapes are those of `shapes.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from penstock.wire.http.shapes import EncodedClaim, EncodedRead, EncodedSlice, encode_msgpack

LARGE_BODY_BYTES: Final = 1 << 16
"""Bodies from this size on are not joined to what stands before them."""


class ArrivingBody:
    """A body of known length, of which some is still to come."""

    __slots__ = ("missing", "parts")

    def __init__(self, begun: memoryview, missing: int) -> None:
        self.parts: list[bytes | memoryview] = [begun] if begun else []
        """The parts received so far."""
        self.missing = missing
        """Bytes still to come."""

    def take(self, data: bytes) -> bytes:
        """More has arrived; what of it does not belong to the body any more."""
        if len(data) <= self.missing:
            self.parts.append(data)
            self.missing -= len(data)
            return b""
        self.parts.append(memoryview(data)[: self.missing])
        rest, self.missing = data[self.missing :], 0
        return rest


# Answers with batches ------------------------------------------------------------------------------------

_LONG: Final = struct.Struct(">BI")
_ARRAY_LONG: Final = 0xDD
_BYTES_LONG: Final = 0xC6


def claim_parts(claim: EncodedClaim) -> tuple[bytes, ...]:
    """A claim's answer in MessagePack, of which large bodies are parts by themselves."""
    if not _are_large(claim.slices):
        return (encode_msgpack(claim),)
    empty = EncodedClaim(claim.queue, claim.lane, claim.lease, claim.deadline_ms, [])
    return (encode_msgpack(empty)[: -len(_NO_SLICES)], *_slice_parts(claim.slices))


def read_parts(read: EncodedRead) -> tuple[bytes, ...]:
    """The same of a read's answer."""
    if not _are_large(read.slices):
        return (encode_msgpack(read),)
    empty = EncodedRead(read.queue, read.lane, read.next_offset, read.primary_committed, [], None)
    head = encode_msgpack(empty)[: -len(_NO_SLICES) - len(_NOTHING) - len(_NO_SLICES)]
    return (head, *_slice_parts(read.slices), encode_msgpack(read.done) + encode_msgpack(read.damaged))


def _are_large(slices: list[EncodedSlice]) -> bool:
    return bool(slices) and sum([len(part.body) for part in slices]) >= LARGE_BODY_BYTES * len(slices)


def _slice_parts(slices: list[EncodedSlice]) -> Iterator[bytes]:
    yield _LONG.pack(_ARRAY_LONG, len(slices))
    for part in slices:
        empty = EncodedSlice(part.offset, part.published_ms, part.attempt, part.count, part.meta, b"")
        yield encode_msgpack(empty)[: -len(_NO_BODY)] + _LONG.pack(_BYTES_LONG, len(part.body))
        yield part.body


_NO_SLICES: Final = encode_msgpack([])
_NO_BODY: Final = encode_msgpack(b"")
_NOTHING: Final = encode_msgpack(None)
