"""The batch codec on bytes that are cut short, corrupted or hostile: `InvalidBatch`, in bounded memory, always.

Most hostile cases carry a right checksum: anyone can compute one, and only so are the checks behind it reached.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import batch as codec
from penstock.batch import (
    EncodedBatch,
    check,
    decode,
    decode_meta,
    encode,
    from_bytes,
    join,
    layout,
    select,
    to_bytes,
)
from penstock.model import BATCH_BYTES_DEFAULT as BATCH_BYTES_MAX
from penstock.model import BATCH_MESSAGES_MAX, Message
from penstock.model.errors import InvalidBatch, MessageTooLarge

pack = msgspec.msgpack.encode
MEBIBYTE = 1024 * 1024
PLAIN_BODY = encode([Message(b"a"), Message(b"b")]).body


def full(index: int) -> Message:
    moment = dt.datetime(2024, 1, 1, index, tzinfo=dt.timezone.utc)  # noqa: UP017
    headers = {"a": index, "at": moment, "list": [None, True, 1.5, b"\xff", {"ä": -1}]}
    return Message(
        b"x" * index, f"p{index}", "key", headers, index, index, 1, index or None, f"d{index}", "text", "c", f"t{index}"
    )


SAMPLES = {
    "plain": encode([Message(b"abc"), Message(b"def"), Message(b"ghi")]),
    "uneven": encode([Message(b""), Message(b"abc")]),
    "empty payloads": encode([Message(), Message()]),
    "constant": encode([Message(b"x", partition="p", headers={"a": [1, {"b": None}]})] * 3),
    "every column": encode([full(index) for index in range(4)]),
    "compressed": encode([Message(b"penstock" * 200, key=str(index)) for index in range(20)]),
}
each_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=list(SAMPLES))


def resum(data: bytes, head_bytes: int) -> bytes:
    """The same bytes with a right checksum."""
    head, rest = data[:head_bytes], data[head_bytes + 4 :]
    return head + struct.pack("<I", crc32(rest, crc32(head))) + rest


def make_meta(
    present: int, parts: list[bytes], count: int = 2, constant: int = 0, lengths: list[int] | None = None
) -> bytes:
    lengths = [len(part) for part in parts] if lengths is None else lengths
    head = struct.pack("<BHHI", 1, present, constant, count)
    return resum(head + bytes(4) + struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(parts), 9)


def make_body(flags: int, block: bytes, count: int = 2) -> bytes:
    return resum(struct.pack("<BBI", 1, flags, count) + bytes(4) + block, 6)


OPERATIONS: dict[str, Callable[[EncodedBatch], object]] = {
    "check": check,
    "decode": decode,
    "meta": lambda batch: decode_meta(batch.meta, batch.count),
    "columns": lambda batch: codec.meta_columns(batch.meta),
    "payloads": lambda batch: codec.payloads(batch.body, batch.count),
    "cut": lambda batch: codec.Reader(batch).cut(0, batch.count - 1),
    "select": lambda batch: select(batch, [0]),
    "join": lambda batch: join([batch, batch]),
}


def survives(batch: EncodedBatch) -> None:
    """Every operation gives an answer or one of the two errors; anything else fails the test by itself."""
    for operation in OPERATIONS.values():
        with contextlib.suppress(InvalidBatch, MessageTooLarge):
            operation(batch)


def refused(batch: EncodedBatch, text: str = ".") -> None:
    for name in ("check", "decode"):
        with pytest.raises(InvalidBatch, match=text):
            OPERATIONS[name](batch)
    survives(batch)


def test_the_makers_make_what_the_codec_reads() -> None:
    both = layout.COLUMN_KEY | layout.COLUMN_PRIORITY
    meta = make_meta(both, [pack(["a", "b"]), pack(7)], constant=layout.COLUMN_PRIORITY)
    wanted = [Message(b"a", key="a", priority=7), Message(b"b", key="b", priority=7)]
    assert decode(EncodedBatch(2, meta, make_body(2, struct.pack("<I", 1) + b"ab"))) == wanted
    assert encode(wanted) == EncodedBatch(2, meta, make_body(2, struct.pack("<I", 1) + b"ab"))


# Damage --------------------------------------------------------------------------------------------------


@each_sample
def test_every_truncation_is_refused(sample: EncodedBatch) -> None:
    data = to_bytes(sample)
    for size in range(len(data)):
        with pytest.raises(InvalidBatch):
            check(from_bytes(data[:size]))
    for size in range(len(sample.body)):
        refused(EncodedBatch(sample.count, sample.meta, sample.body[:size]))
    # no meta at all is a batch without metadata: that the meta is gone only the frame can tell
    for size in range(1, len(sample.meta)):
        refused(EncodedBatch(sample.count, sample.meta[:size], sample.body))


@each_sample
def test_every_flipped_bit_is_refused(sample: EncodedBatch) -> None:
    data = to_bytes(sample)
    for position in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[position] ^= 1 << bit
            for operation in (check, decode):
                with pytest.raises(InvalidBatch):
                    operation(from_bytes(bytes(wrong)))


@each_sample
def test_bytes_past_the_end_are_refused(sample: EncodedBatch) -> None:
    with pytest.raises(InvalidBatch, match="its head says"):
        from_bytes(to_bytes(sample) + b"x")
    refused(EncodedBatch(sample.count, sample.meta, sample.body + b"x"), "corrupted")
    refused(EncodedBatch(sample.count, sample.meta, resum(sample.body + b"x", 6)))
    if sample.meta:
        refused(EncodedBatch(sample.count, resum(sample.meta + b"x", 9), sample.body), "their lengths say")


@each_sample
def test_changed_bytes_under_a_right_checksum_never_break_anything(sample: EncodedBatch) -> None:
    for position in range(len(sample.meta)):
        for value in (0x00, 0x7F, 0x80, 0x91, 0xC1, 0xC7, 0xDD, 0xFF, sample.meta[position] ^ 1):
            wrong = sample.meta[:position] + bytes((value,)) + sample.meta[position + 1 :]
            survives(EncodedBatch(sample.count, resum(wrong, 9), sample.body))
    for position in range(len(sample.body)):
        for value in (0x00, 0x80, 0xFF, sample.body[position] ^ 1):
            wrong = sample.body[:position] + bytes((value,)) + sample.body[position + 1 :]
            survives(EncodedBatch(sample.count, sample.meta, resum(wrong, 6)))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(InvalidBatch):
        from_bytes(data)
    survives(EncodedBatch(2, data, PLAIN_BODY))
    survives(EncodedBatch(2, b"", data))


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 10), st.booleans())
def test_random_columns_under_a_right_checksum(data: bytes, position: int, constant: bool) -> None:
    bit = 1 << position
    part = data if constant else b"\x92" + data
    survives(EncodedBatch(2, make_meta(bit, [part], constant=bit if constant else 0), PLAIN_BODY))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 3))
def test_random_blocks_under_a_right_checksum(data: bytes, flags: int) -> None:
    survives(EncodedBatch(2, b"", make_body(flags, data)))
    survives(EncodedBatch(2, b"", make_body(flags | layout.BODY_COMPRESSED, zstandard.compress(data))))


# Hostility in the heads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_versions(version: int) -> None:
    text = "does not exist" if version == 0 else "newer than 1"
    sample = SAMPLES["every column"]
    byte = bytes((version,))
    refused(EncodedBatch(sample.count, resum(byte + sample.meta[1:], 9), sample.body), f"meta is of version .*{text}")
    refused(EncodedBatch(sample.count, sample.meta, resum(byte + sample.body[1:], 6)), f"body is of version .*{text}")
    refused(EncodedBatch(sample.count, byte, sample.body), text)
    refused(EncodedBatch(sample.count, sample.meta, byte), text)
    with pytest.raises(InvalidBatch, match=text):
        codec.meta_columns(byte + sample.meta[1:])
    data = to_bytes(sample)
    with pytest.raises(InvalidBatch, match=f"batch is of version .*{text}"):
        from_bytes(data[:4] + byte + data[5:])


@pytest.mark.parametrize(
    "count", [0, 1, 3, BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX + 1, 2**32, 2**80, -1, True, "2", None]
)
@each_sample
def test_a_count_that_lies(sample: EncodedBatch, count: Any) -> None:
    if count is True or count != sample.count:
        for operation in (check, decode):
            with pytest.raises(InvalidBatch):
                operation(EncodedBatch(count, sample.meta, sample.body))


def test_a_meta_of_another_count() -> None:
    # All columns constant, so that nothing but the count in the head can tell.
    meta = encode([Message(key="k")] * 3).meta
    assert decode_meta(meta, 3).key == ["k"] * 3
    with pytest.raises(InvalidBatch, match="meta is that of 3 messages, the batch has 2"):
        decode_meta(meta, 2)
    refused(EncodedBatch(2, meta, PLAIN_BODY), "meta is that of 3 messages")


def test_a_frame_whose_count_is_past_the_limit() -> None:
    head = struct.pack("<4sBIII", b"PNSB", 1, BATCH_MESSAGES_MAX + 1, 0, 0)
    with pytest.raises(InvalidBatch, match="100001 messages; the limit is 100000"):
        from_bytes(head + struct.pack("<I", crc32(head)))
    with pytest.raises(InvalidBatch, match="limit"):
        to_bytes(EncodedBatch(2**40, b"", b""))


@pytest.mark.parametrize(("present", "constant"), [(0, 0), (0, 1), (1 << 11, 0), (0xFFFF, 0xFFFF), (1, 2), (1, 3)])
def test_columns_that_do_not_exist(present: int, constant: int) -> None:
    meta = make_meta(present, [pack("a")] * present.bit_count(), constant=constant)
    refused(EncodedBatch(2, meta, PLAIN_BODY), "columns that do not exist")
    with pytest.raises(InvalidBatch, match="columns that do not exist"):
        codec.meta_columns(meta)


def test_flags_that_do_not_exist() -> None:
    refused(EncodedBatch(2, b"", make_body(4, struct.pack("<II", 0, 0))), "flags that do not exist")


# Hostility in the columns --------------------------------------------------------------------------------

PARTITION, HEADERS, PRIORITY, TTL = (
    layout.COLUMN_PARTITION,
    layout.COLUMN_HEADERS,
    layout.COLUMN_PRIORITY,
    layout.COLUMN_TTL_MS,
)
NESTED = b"\x91" * 100_000 + b"\xc0"

COLUMN_CASES: dict[str, tuple[int, bytes]] = {
    "no column": (PARTITION, b""),
    "too few values": (PARTITION, pack(["a"])),
    "too many values": (PARTITION, pack(["a", "b", "c"])),
    "a list that promises four billion": (PARTITION, b"\xdd\xff\xff\xff\xff"),
    "a list in a longer form than needed": (PARTITION, b"\xdc\x00\x02\xa1a\xa1b"),
    "a list cut short": (PARTITION, b"\x92\xa1a"),
    "a text that promises four gigabytes": (PARTITION, b"\x92\xdb\xff\xff\xff\xffa\xa1b"),
    "more after the list": (PARTITION, b"\x92\xa1a\xa1b\xc0"),
    "a dict for a list": (PARTITION, b"\x82\xa1a\xa1b\xa1c\xa1d"),
    "bytes for text": (PARTITION, pack(["a", b"b"])),
    "a number for text": (PARTITION, pack(["a", 1])),
    "invalid UTF-8": (PARTITION, b"\x92\xa1a\xa2\xff\xfe"),
    "a lone surrogate": (PARTITION, b"\x92\xa1a\xa3\xed\xa0\x80"),
    "text for a number": (PRIORITY, pack([1, "1"])),
    "none for a number": (PRIORITY, pack([1, None])),
    "true for a number": (PRIORITY, pack([1, True])),
    "a float for a number": (PRIORITY, pack([1, 1.0])),
    "not a number": (PRIORITY, pack([1, float("nan")])),
    "infinity": (TTL, pack([1, float("inf")])),
    "an unused byte": (TTL, b"\x92\xc1\xc1"),
    "a list for headers": (HEADERS, pack([[], None])),
    "headers with numbers for names": (HEADERS, pack([{1: 1}, None])),
    "headers with bytes for names": (HEADERS, pack([{b"a": 1}, None])),
    "headers that promise four billion": (HEADERS, b"\x92\xdf\xff\xff\xff\xff\xc0"),
    "a value that promises four billion": (HEADERS, b"\x92\x81\xa1a\xdd\xff\xff\xff\xff\xc0"),
    "an unknown extension": (HEADERS, pack([{"a": msgspec.msgpack.Ext(5, b"abc")}, None])),
    "a time that does not exist": (HEADERS, b"\x92\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12 + b"\xc0"),
    "a time past the calendar": (HEADERS, b"\x92\x81\xa1a\xc7\x0c\xff\0\0\0\0\x7f" + b"\xff" * 7 + b"\xc0"),
    "a time of an odd length": (HEADERS, b"\x92\x81\xa1a\xd5\xff\x00\x00\xc0"),
    "a dict as a name": (HEADERS, b"\x92\x81\xa1a\x81\x80\x01\xc0"),
    "deep nesting": (HEADERS, b"\x92\x81\xa1a" + NESTED + b"\xc0"),
    "deep nesting of dicts": (HEADERS, b"\x92" + b"\x81\xa1a" * 100_000 + b"\xc0\xc0"),
}


@pytest.mark.parametrize("case", COLUMN_CASES)
def test_a_hostile_column(case: str) -> None:
    bit, part = COLUMN_CASES[case]
    refused(EncodedBatch(2, make_meta(bit, [part]), PLAIN_BODY))


@pytest.mark.parametrize(
    ("bit", "part"),
    [
        (PARTITION, pack(["a", "b"])),
        (PARTITION, b""),
        (PARTITION, b"\xa1a\xa1b"),
        (PRIORITY, pack(None)),
        (TTL, pack("a")),
        (HEADERS, pack([{}, {}])),
        (HEADERS, NESTED),
        (HEADERS, b"\x81\xa1a" + NESTED),
    ],
)
def test_a_hostile_constant(bit: int, part: bytes) -> None:
    refused(EncodedBatch(2, make_meta(bit, [part], constant=bit), PLAIN_BODY), "does not decode")


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63)])
def test_numbers_past_every_limit(value: int) -> None:
    for bit in (PRIORITY, TTL, layout.COLUMN_DELAY_MS, layout.COLUMN_NOT_BEFORE_MS):
        batch = EncodedBatch(2, make_meta(bit, [pack([1, value])]), PLAIN_BODY)
        with pytest.raises(InvalidBatch, match="of message 1 is"):
            check(batch)
        survives(batch)


def test_names_inside_headers_that_are_no_text() -> None:
    for inner in (b"\x81\x01\x01", b"\x81\xc0\x01", b"\x81\x91\x01\x01", b"\x81\xc4\x01a\x01"):
        batch = EncodedBatch(2, make_meta(HEADERS, [b"\x92\x81\xa1a" + inner + b"\xc0"]), PLAIN_BODY)
        with pytest.raises(InvalidBatch):
            check(batch)
        survives(batch)


@pytest.mark.parametrize("lengths", [[], [0], [5], [7], [2**32 - 1], [6, 0]])
def test_lengths_of_columns_that_lie(lengths: list[int]) -> None:
    part = pack(["ab", "c"])
    assert len(part) == 6
    refused(EncodedBatch(2, make_meta(PARTITION, [part], lengths=lengths), PLAIN_BODY))


def test_lengths_of_columns_that_wrap_around() -> None:
    parts = [pack(["a", "b"]), pack([1, 2])]
    total = sum(map(len, parts))
    meta = make_meta(PARTITION | PRIORITY, parts, lengths=[2**32 - 1, total + 1])
    refused(EncodedBatch(2, meta, PLAIN_BODY), "their lengths say")


# Hostility in the body -----------------------------------------------------------------------------------

EQUAL, COMPRESSED = layout.BODY_EQUAL_LENGTHS, layout.BODY_COMPRESSED


@pytest.mark.parametrize(
    ("flags", "block"),
    [
        (0, b""),
        (0, b"\0\0\0"),
        (0, struct.pack("<I", 1)),
        (0, struct.pack("<II", 1, 1) + b"a"),
        (0, struct.pack("<II", 1, 1) + b"abc"),
        (0, struct.pack("<II", 2**32 - 1, 3) + b"ab"),
        (0, struct.pack("<II", 2**32 - 1, 2**32 - 1)),
        (EQUAL, b""),
        (EQUAL, struct.pack("<I", 1) + b"a"),
        (EQUAL, struct.pack("<I", 1) + b"abc"),
        (EQUAL, struct.pack("<I", 2**31)),
        (EQUAL, struct.pack("<I", 2**32 - 1) + b"ab"),
    ],
)
def test_lengths_of_payloads_that_lie(flags: int, block: bytes) -> None:
    refused(EncodedBatch(2, b"", make_body(flags, block)))
    refused(EncodedBatch(2, b"", make_body(flags | COMPRESSED, zstandard.compress(block))))


GOOD_BLOCK = struct.pack("<II", 1000, 1000) + bytes(2000)
GOOD_FRAME = zstandard.compress(GOOD_BLOCK)
UNDECLARED = zstandard.ZstdCompressor(write_content_size=False)
FRAMES = {
    "nothing": b"",
    "no frame": b"abc" * 100,
    "a frame cut short": GOOD_FRAME[:-1],
    "more after the frame": GOOD_FRAME + b"x",
    "two frames": GOOD_FRAME * 2,
    "a frame of nothing": zstandard.compress(b""),
    "a frame of nothing and more": zstandard.compress(b"") + b"abc",
    "a frame to skip": b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
    "a size that is not declared": UNDECLARED.compress(GOOD_BLOCK),
    "a declared size of 2**62": b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**62) + GOOD_FRAME[7:],
    "a declared size past the limit": b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", BATCH_BYTES_MAX + 9) + GOOD_FRAME[7:],
    "a declared size within the limit": b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", MEBIBYTE) + GOOD_FRAME[7:],
    "a dictionary that is not there": b"\x28\xb5\x2f\xfd\x61\x07" + GOOD_FRAME[5:],
}


def test_the_good_frame_is_good() -> None:
    assert decode(EncodedBatch(2, b"", make_body(COMPRESSED, GOOD_FRAME))) == [Message(bytes(1000))] * 2


TOO_LARGE = ["a declared size of 2**62", "a declared size past the limit"]


@pytest.mark.parametrize("case", [case for case in FRAMES if case not in TOO_LARGE])
def test_a_hostile_frame(case: str) -> None:
    refused(EncodedBatch(2, b"", make_body(COMPRESSED, FRAMES[case])))


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_frame_that_declares_too_much(case: str) -> None:
    batch = EncodedBatch(2, b"", make_body(COMPRESSED, FRAMES[case]))
    with pytest.raises(MessageTooLarge, match="the limit is"):
        check(batch)
    with pytest.raises(InvalidBatch, match="the limit is"):
        decode(batch)
    survives(batch)


# Memory --------------------------------------------------------------------------------------------------


def peak(operation: Callable[[], object]) -> int:
    """The most memory that a refused operation held."""
    tracemalloc.start()
    try:
        with pytest.raises((InvalidBatch, MessageTooLarge)):
            operation()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def every_column(count: int) -> bytes:
    values: list[Any] = ["a", "a", {}, 1, 1, 1, 1, "a", "a", "a", "a"]
    return make_meta(0x7FF, list(map(pack, values)), count, constant=0x7FF)


@pytest.mark.parametrize("count", [BATCH_MESSAGES_MAX + 1, 2**32 - 1])
def test_constants_are_not_expanded_past_the_limit(count: int) -> None:
    batch = EncodedBatch(count, every_column(count), make_body(EQUAL, bytes(4), count))
    for operation in (check, decode):
        assert peak(lambda operation=operation: operation(batch)) < MEBIBYTE  # type: ignore[misc]


def test_constants_at_the_limit_are_read() -> None:
    count = BATCH_MESSAGES_MAX
    meta = check(EncodedBatch(count, every_column(count), make_body(EQUAL, bytes(4), count)))
    assert meta.key == ["a"] * count


def test_a_list_of_another_length_is_not_built() -> None:
    part = b"\xdd" + struct.pack(">I", 4 * MEBIBYTE) + b"\xc0" * (4 * MEBIBYTE)
    batch = EncodedBatch(2, make_meta(PARTITION, [part]), PLAIN_BODY)
    assert peak(lambda: check(batch)) < MEBIBYTE


def test_meta_past_its_limit_is_not_decoded() -> None:
    part = b"\x92\x81\xa1a\xdd" + struct.pack(">I", layout.META_BYTES_MAX) + b"\xc0" * layout.META_BYTES_MAX + b"\xc0"
    batch = EncodedBatch(2, make_meta(HEADERS, [part]), PLAIN_BODY)
    assert peak(lambda: check(batch)) < MEBIBYTE


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_frame_that_declares_too_much_is_not_unfolded(case: str) -> None:
    batch = EncodedBatch(2, b"", make_body(COMPRESSED, FRAMES[case]))
    assert peak(lambda: check(batch)) < MEBIBYTE


@pytest.mark.parametrize("compressor", [zstandard.ZstdCompressor(), UNDECLARED], ids=["declared", "undeclared"])
def test_a_true_bomb_is_not_unfolded(compressor: zstandard.ZstdCompressor) -> None:
    batch = EncodedBatch(2, b"", make_body(COMPRESSED, compressor.compress(bytes(4 * BATCH_BYTES_MAX))))
    assert len(batch.body) < MEBIBYTE
    assert peak(lambda: check(batch)) < MEBIBYTE


def test_payloads_past_the_limit_are_refused_compressed_or_not() -> None:
    for size, passes in ((BATCH_BYTES_MAX // 2, True), (BATCH_BYTES_MAX // 2 + 1, False)):
        block = struct.pack("<I", size) + bytes(2 * size)
        for flags, stored in ((EQUAL, block), (EQUAL | COMPRESSED, zstandard.compress(block))):
            batch = EncodedBatch(2, b"", make_body(flags, stored))
            if passes:
                assert len(codec.payloads(batch.body, 2)[1]) == size
            else:
                with pytest.raises(InvalidBatch, match=f"limit is {BATCH_BYTES_MAX}|limit is {BATCH_BYTES_MAX + 8}"):
                    codec.payloads(batch.body, 2)


def test_joining_bodies_that_unfold_stops_at_the_limit() -> None:
    third = encode([Message(bytes(16 * MEBIBYTE))] * 2)
    assert len(third.body) < MEBIBYTE
    assert peak(lambda: join([third] * 100)) < 2 * BATCH_BYTES_MAX


def test_the_worst_metadata_that_is_allowed_stays_in_bounds() -> None:
    # One-entry dicts: the most Python objects for a byte of msgpack.
    one = b"\x81\xa1a\xc0"
    count = (layout.META_BYTES_MAX - 100) // len(one) // 2
    part = b"\x92" + (b"\x81\xa1a\xdd" + struct.pack(">I", count) + one * count) * 2
    meta = make_meta(HEADERS, [part])
    tracemalloc.start()
    decode_meta(meta, 2)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 * layout.META_BYTES_MAX


def test_random_bytes_of_the_operating_system() -> None:
    for size in (1, 10, 13, 21, 100, 1000, 100_000):
        for _ in range(20):
            data = os.urandom(size)
            survives(EncodedBatch(2, resum(b"\x01" + data, 9), PLAIN_BODY))
            survives(EncodedBatch(2, b"", resum(b"\x01" + data, 6)))
