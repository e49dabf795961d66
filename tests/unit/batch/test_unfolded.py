"""A batch says in its meta how many bytes its body unfolds to, where these are many more than it has."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
import zstandard

from penstock import Message
from penstock.batch import (
    COLUMN_UNFOLDED,
    EncodedBatch,
    Reader,
    check,
    decode,
    decode_meta,
    encode,
    encode_alike,
    join,
    measured,
    meta_columns,
    select,
    unfolded_of,
    with_key,
)
from penstock.batch.columns import write_meta
from penstock.batch.layout import BODY_COMPRESSED, UNFOLDED_BYTES_MIN
from penstock.model import BATCH_BYTES_DEFAULT as BATCH_BYTES_MAX
from penstock.model.errors import InvalidBatch, MessageTooLarge

MEGABYTE = 1024 * 1024


def body_of(flags: int, block: bytes, count: int) -> bytes:
    head = struct.pack("<BBI", 1, flags, count)
    return head + struct.pack("<I", crc32(block, crc32(head))) + block


def folded(count: int, size: int) -> bytes:
    """A body of zeros as another producer writes it: in one frame, with all lengths."""
    block = struct.pack(f"<{count}I", *[size] * count) + bytes(count * size)
    return body_of(BODY_COMPRESSED, zstandard.compress(block), count)


@pytest.mark.parametrize(
    "fields", [{}, {"key": "k", "headers": {"a": 1}, "trace_id": "t"}], ids=["bare", "with metadata"]
)
def test_a_batch_that_unfolds_says_how_far(fields: dict[str, object]) -> None:
    messages = [Message(bytes(MEGABYTE), **fields), Message(bytes(2 * MEGABYTE), **fields)]  # type: ignore[arg-type]
    batch = encode(messages)
    assert unfolded_of(batch.meta) == 8 + 3 * MEGABYTE
    assert meta_columns(batch.meta) & COLUMN_UNFOLDED
    assert decode(batch) == messages
    assert check(batch) == decode_meta(batch.meta, 2)


def test_batches_made_of_others_say_their_own() -> None:
    batch = encode([Message(bytes(size * MEGABYTE), key=str(size)) for size in (1, 2, 3)])
    assert unfolded_of(Reader(batch).cut(0, 1).meta) == 4 + MEGABYTE
    assert unfolded_of(select(batch, [2, 0]).meta) == 8 + 4 * MEGABYTE
    assert unfolded_of(join([batch, batch]).meta) == 24 + 12 * MEGABYTE
    assert unfolded_of(with_key(batch, "k").meta) == unfolded_of(batch.meta) == 12 + 6 * MEGABYTE
    assert [message.key for message in decode(with_key(batch, "k"))] == ["k"] * 3
    assert unfolded_of(encode_alike([bytes(MEGABYTE)], "text/plain").meta) == 4 + MEGABYTE


@pytest.mark.parametrize("size", [0, 10, 1_000, UNFOLDED_BYTES_MIN - 4])
def test_what_is_small_says_nothing(size: int) -> None:
    assert encode([Message(bytes(size))]).meta == b""
    assert unfolded_of(encode([Message(bytes(size), key="k")]).meta) == 0


def test_one_byte_more_says_it() -> None:
    assert unfolded_of(encode([Message(bytes(UNFOLDED_BYTES_MIN - 3))]).meta) == UNFOLDED_BYTES_MIN + 1


def test_what_a_producer_left_out_is_added() -> None:
    bare = EncodedBatch(40, write_meta({"key": ["k"]}, 40), folded(40, 10_000))
    assert unfolded_of(bare.meta) == 0
    whole = measured(bare)
    assert unfolded_of(whole.meta) == 40 * 10_004
    assert whole.body is bare.body
    assert decode(whole) == decode(bare)
    assert measured(whole) is whole
    small = encode([Message(b"a")] * 40)
    assert measured(small) is small


@pytest.mark.parametrize("said", [1, 40 * 10_004 - 1, 40 * 10_004 + 1, 2**32 - 1])
def test_a_producer_that_lies_is_refused(said: int) -> None:
    with pytest.raises(InvalidBatch, match=f"unfolds to {said} bytes; it has {40 * 10_004}"):
        check(EncodedBatch(40, write_meta({}, 40, said), folded(40, 10_000)))
    plain = encode([Message(b"a")] * 40)
    with pytest.raises(InvalidBatch, match="unfolds to"):
        check(EncodedBatch(40, write_meta({}, 40, said), plain.body))


def test_a_bomb_is_too_large() -> None:
    count = BATCH_BYTES_MAX // MEGABYTE
    check(EncodedBatch(count, b"", folded(count, MEGABYTE)))
    with pytest.raises(MessageTooLarge, match="the limit is"):
        check(EncodedBatch(count + 1, b"", folded(count + 1, MEGABYTE)))
