"""The batch codec: messages to two byte strings, `meta` (metadata by column) and `body` (payloads), and back.

A batch is what a lane stores and what travels whole between producer, node, store, consumer and Spark. `meta` can
be read, cut and checked without touching `body`. All work is done by column, so that a thousand messages cost a few
C-level passes. The layout is in `docs/batch-format.md`.

This module knows `model` and `errors` only: no lane, offset, store, socket or clock. Whatever bytes it is given, it
answers with data or with `InvalidBatch`, in bounded memory. Fields of messages handed to `encode` were checked by
`model.check_message`; bytes from an untrusted producer go through `check`. The next stop of a message is
`core/lane.py`, where its batch gets offsets.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, Final, NamedTuple, NoReturn
from zlib import crc32

import msgspec
import zstandard

from penstock.errors import InvalidArgument, InvalidBatch, MessageTooLarge
from penstock.model import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    ID_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
    Headers,
    Message,
    check_headers,
)

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

BODY_COMPRESSED: Final = 1 << 0
BODY_EQUAL_LENGTHS: Final = 1 << 1

COMPRESS_BYTES_MIN: Final = 512
_SAMPLE_PIECE_BYTES: Final = 1024
_SAMPLE_PIECES: Final = 4

# The checksum is the last field of each head and covers the head before it and all that follows it.
_CHECKSUM: Final = struct.Struct("<I")
_META_HEAD: Final = struct.Struct("<BHHI")  # version, columns present, columns constant, count
_BODY_HEAD: Final = struct.Struct("<BBI")  # version, flags, count
_FRAME_HEAD: Final = struct.Struct("<4sBIII")  # magic, version, count, bytes of meta, bytes of body
_META_START: Final = _META_HEAD.size + _CHECKSUM.size
_BODY_START: Final = _BODY_HEAD.size + _CHECKSUM.size
_FRAME_START: Final = _FRAME_HEAD.size + _CHECKSUM.size
_LENGTH_BYTES: Final = 4

# All that msgspec raises on bytes that are not the msgpack of the wanted type, or on values it cannot encode.
_CODEC_ERRORS: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


class EncodedBatch(msgspec.Struct, frozen=True):
    """Messages encoded together. `count` is repeated inside `meta` and `body`, so that it cannot go astray."""

    count: int
    meta: bytes
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that storing the batch takes."""
        return len(self.meta) + len(self.body)


class Meta(msgspec.Struct):
    """The metadata of a batch by column; None is a column in which every message has the default."""

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


# Messages to batch and back ------------------------------------------------------------------------------


def encode(messages: Sequence[Message]) -> EncodedBatch:
    """Messages that `model.check_message` accepted, as a batch; `MessageTooLarge` past a batch's limits."""
    count = len(messages)
    _limit_count(count)
    meta = _write_meta(_columns_of(messages), count) if _any_metadata(messages) else b""
    payloads = [message.payload for message in messages]
    return EncodedBatch(count, meta, _write_body(array("I", list(map(len, payloads))), payloads))


def decode(batch: EncodedBatch, start: int = 0, stop: int | None = None) -> list[Message]:
    """The messages [start, stop) of a batch."""
    taken = payloads(batch.body, batch.count, start, stop)
    if not batch.meta:
        return list(map(Message, taken))
    columns = _read_meta(batch.meta, batch.count, _TYPED)
    return list(map(Message, taken, *(_decode_order(columns, batch.count, start, stop))))


def payloads(body: bytes, count: int, start: int = 0, stop: int | None = None) -> list[bytes]:
    """The payloads [start, stop) of a body that holds `count`."""
    lengths, block, data_start = _open_body(body, count)
    start, stop = _range(count, start, stop)
    offsets = accumulate(lengths[start:stop], initial=data_start + sum(lengths[:start]))
    return [block[low:high] for low, high in pairwise(offsets)]


_OBJECT_BYTES: Final = 48
"""What a bytes object and its place in a list take beside its bytes."""


class Reader:
    """A batch that is read piece by piece, by several groups: checked, unfolded and decoded once, on first use."""

    __slots__ = ("_all", "_block", "_columns", "_is_checked", "_offsets", "batch")

    def __init__(self, batch: EncodedBatch, *, is_checked: bool = False) -> None:
        """`is_checked`: these very bytes were made or checked by this process, so their checksum need not be."""
        self.batch = batch
        self._is_checked = is_checked
        self._all: list[bytes] | None = None
        self._block = b""
        self._offsets: array[int] | None = None
        self._columns: dict[str, list[Any]] | None = None

    def payloads(self, start: int, stop: int) -> list[bytes]:
        """The payloads [start, stop)."""
        if self._all is not None:
            return self._all[start:stop]
        if self._offsets is None:
            lengths, self._block, data_start = _open_body(
                self.batch.body, self.batch.count, is_checked=self._is_checked
            )
            self._offsets = array("Q", accumulate(lengths, initial=data_start))
        block = self._block
        taken = [block[low:high] for low, high in pairwise(self._offsets[start : stop + 1])]
        if len(taken) == self.batch.count:
            # Who reads a batch whole is often one of several groups: the others get the same objects.
            self._all, self._block, self._offsets = taken, b"", None
            return taken[:]
        return taken

    def messages(self, start: int, stop: int) -> list[Message]:
        """The messages [start, stop)."""
        taken = self.payloads(start, stop)
        if not self.batch.meta:
            return list(map(Message, taken))
        if self._columns is None:
            self._columns = _read_meta(self.batch.meta, self.batch.count, _TYPED)
        return list(map(Message, taken, *_decode_order(self._columns, self.batch.count, start, stop)))

    @property
    def size(self) -> int:
        """Bytes it may come to hold: the batch, and its payloads unfolded and cut."""
        body = self.batch.body
        folded = len(body) > _BODY_START and body[1] & BODY_COMPRESSED
        unfolded = max(0, zstandard.frame_content_size(body[_BODY_START:])) if folded else len(body)
        return self.batch.size + unfolded + self.batch.count * _OBJECT_BYTES


def meta_columns(meta: bytes) -> int:
    """Which columns `meta` holds, as a mask of the COLUMN_ constants, read from its head alone."""
    return _meta_head(meta)[0] if meta else 0


def decode_meta(meta: bytes, count: int) -> Meta:
    """The metadata of a batch of `count` messages, constants expanded; types are right, limits are `check`'s."""
    columns = _read_meta(meta, count, _TYPED)
    return Meta(count, **{name: _expand(values, count) for name, values in columns.items()})


# Batch to batch, by column -------------------------------------------------------------------------------


def cut(batch: EncodedBatch, start: int, stop: int) -> EncodedBatch:
    """The messages [start, stop) as a batch of their own."""
    start, stop = _range(batch.count, start, stop)
    if stop - start == batch.count:
        return batch
    lengths, block, data_start = _open_body(batch.body, batch.count)
    low = data_start + sum(lengths[:start])
    taken = lengths[start:stop]
    body = _write_body(taken, [memoryview(block)[low : low + sum(taken)]])
    columns = _read_meta(batch.meta, batch.count, _OPAQUE_HEADERS)
    kept = {name: values[start:stop] if len(values) == batch.count else values for name, values in columns.items()}
    return EncodedBatch(stop - start, _write_meta(kept, stop - start), body)


def select(batch: EncodedBatch, indexes: Sequence[int]) -> EncodedBatch:
    """The messages at `indexes`, in that order, as a batch of their own."""
    if indexes and not (min(indexes) >= 0 and max(indexes) < batch.count):
        raise InvalidArgument(f"indexes are {min(indexes)} to {max(indexes)}; the batch has {batch.count} messages")
    _limit_count(len(indexes))
    whole = payloads(batch.body, batch.count)
    taken = [whole[index] for index in indexes]
    columns = _read_meta(batch.meta, batch.count, _OPAQUE_HEADERS)
    kept = {
        name: [values[index] for index in indexes] if len(values) == batch.count else values
        for name, values in columns.items()
    }
    body = _write_body(array("I", list(map(len, taken))), taken)
    return EncodedBatch(len(indexes), _write_meta(kept, len(indexes)), body)


def join(batches: Sequence[EncodedBatch]) -> EncodedBatch:
    """The messages of all batches, in order, as one; `MessageTooLarge` past a batch's limits."""
    if len(batches) == 1:
        return batches[0]
    count = sum(batch.count for batch in batches)
    _limit_count(count)
    return EncodedBatch(count, _join_meta(batches, count), _join_body(batches))


def _join_meta(batches: Sequence[EncodedBatch], count: int) -> bytes:
    read = [_read_meta(batch.meta, batch.count, _OPAQUE_HEADERS) for batch in batches]
    names = set(chain.from_iterable(read))
    joined: dict[str, list[Any]] = {}
    for name, column in _OPAQUE_HEADERS.items():
        if name in names:
            parts = [
                _expand(columns.get(name, [column.default]), batch.count)
                for columns, batch in zip(read, batches, strict=True)
            ]
            joined[name] = list(chain.from_iterable(parts))
    return _write_meta(joined, count)


def _join_body(batches: Sequence[EncodedBatch]) -> bytes:
    lengths = array("I")
    pieces: list[memoryview] = []
    total = 0
    for batch in batches:
        held, block, data_start = _open_body(batch.body, batch.count)
        total += len(block) - data_start
        # Here and not only when written: small compressed bodies may unfold into far more than the limit.
        _limit_bytes(total)
        lengths += held
        pieces.append(memoryview(block)[data_start:])
    return _write_body(lengths, pieces)


# Self-contained bytes, for files and HTTP ----------------------------------------------------------------


def to_bytes(batch: EncodedBatch) -> bytes:
    """A batch as one byte string that says where it ends."""
    _check_count(batch.count)
    head = _FRAME_HEAD.pack(MAGIC, VERSION, batch.count, len(batch.meta), len(batch.body))
    return b"".join((head, _CHECKSUM.pack(crc32(head)), batch.meta, batch.body))


def from_bytes(data: bytes) -> EncodedBatch:
    """What `to_bytes` made. Looks at the frame only; `decode` and `check` look at what is inside."""
    if len(data) < _FRAME_START or not data.startswith(MAGIC):
        raise InvalidBatch(f"{len(data)} bytes that begin with {data[:4]!r} are not a batch")
    _, version, count, meta_bytes, body_bytes = _FRAME_HEAD.unpack_from(data)
    _check_version(version, "batch")
    if _CHECKSUM.unpack_from(data, _FRAME_HEAD.size)[0] != crc32(data[: _FRAME_HEAD.size]):
        raise InvalidBatch("the batch's head is corrupted: its checksum does not match")
    if len(data) != _FRAME_START + meta_bytes + body_bytes:
        raise InvalidBatch(f"batch has {len(data)} bytes; its head says {_FRAME_START + meta_bytes + body_bytes}")
    _check_count(count)
    body_start = _FRAME_START + meta_bytes
    return EncodedBatch(count, data[_FRAME_START:body_start], data[body_start:])


# Checking what an untrusted producer encoded -------------------------------------------------------------


def check(batch: EncodedBatch, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> Meta:
    """Raise unless a batch is whole and all of it is within the limits of `model`; its metadata otherwise."""
    if batch.count == 0:
        raise InvalidBatch("batch has no messages")
    lengths, _, _ = _open_body(batch.body, batch.count)
    longest = max(lengths)
    if longest > payload_bytes_max:
        index = lengths.index(longest)
        raise MessageTooLarge(f"payload of message {index} has {longest} bytes; the limit is {payload_bytes_max}")
    columns = _read_meta(batch.meta, batch.count, _TYPED)
    for name, values in columns.items():
        _check_column(name, values)
    return Meta(batch.count, **{name: _expand(values, batch.count) for name, values in columns.items()})


def _check_column(name: str, values: list[Any]) -> None:
    if name == "headers":
        _check_headers_column(values)
    elif name in _TEXT_LIMITS:
        _check_text_column(name, values, _TEXT_LIMITS[name])
    else:
        _check_number_column(name, values, _NUMBER_LIMITS[name])


def _check_text_column(name: str, values: list[str | None], most: int) -> None:
    if max(map(len, filter(None, values)), default=0) > most:
        index, text = next((at, text) for at, text in enumerate(values) if text and len(text) > most)
        raise InvalidBatch(f"{name} of message {index} has {len(text)} characters; the limit is {most}")


def _check_number_column(name: str, values: list[int | None], most: int) -> None:
    numbers = [value for value in values if value is not None]
    if numbers and not (min(numbers) >= 0 and max(numbers) <= most):
        wrong = min(numbers) if min(numbers) < 0 else max(numbers)
        raise InvalidBatch(f"{name} of message {values.index(wrong)} is {wrong}; it must be 0 to {most}")


def _check_headers_column(values: list[Headers | None]) -> None:
    for index, headers in enumerate(values):
        if headers is None:
            continue
        try:
            check_headers(headers)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"message {index}: {error}") from None
        except InvalidArgument as error:
            raise InvalidBatch(f"message {index}: {error}") from None


# Columns -------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """How one column is read: its bit, the value that costs nothing, decoders of a list and of a constant."""

    bit: int
    default: Any
    many: msgspec.msgpack.Decoder[Any]
    one: msgspec.msgpack.Decoder[Any]


def _refuse_extension(code: int, _data: memoryview) -> NoReturn:
    raise ValueError(f"unknown msgpack extension {code}")


def _column(bit: int, default: Any, kind: Any) -> _Column:
    decoder = msgspec.msgpack.Decoder
    return _Column(
        bit,
        default,
        decoder(list[kind], ext_hook=_refuse_extension),
        decoder(kind, ext_hook=_refuse_extension),
    )


# In the order of Message's fields, of the bits and of the bytes in `meta`.
_TYPED: Final[dict[str, _Column]] = {
    "partition": _column(COLUMN_PARTITION, None, str | None),
    "key": _column(COLUMN_KEY, None, str | None),
    "headers": _column(COLUMN_HEADERS, None, Headers | None),
    "priority": _column(COLUMN_PRIORITY, 0, int),
    "delay_ms": _column(COLUMN_DELAY_MS, 0, int),
    "not_before_ms": _column(COLUMN_NOT_BEFORE_MS, 0, int),
    "ttl_ms": _column(COLUMN_TTL_MS, None, int | None),
    "dedup_id": _column(COLUMN_DEDUP_ID, None, str | None),
    "content_type": _column(COLUMN_CONTENT_TYPE, None, str | None),
    "correlation_id": _column(COLUMN_CORRELATION_ID, None, str | None),
    "trace_id": _column(COLUMN_TRACE_ID, None, str | None),
}
_ALL_COLUMNS: Final = (1 << len(_TYPED)) - 1

# To cut or join, headers need not be understood, only moved: a third of the time, and no dict is built.
_NO_HEADERS: Final = msgspec.Raw(b"\xc0")
_OPAQUE_HEADERS: Final = _TYPED | {"headers": _column(COLUMN_HEADERS, _NO_HEADERS, msgspec.Raw)}

_TEXT_LIMITS: Final = {
    "partition": PARTITION_CHARACTERS_MAX,
    "key": NAME_CHARACTERS_MAX,
    "dedup_id": ID_CHARACTERS_MAX,
    "content_type": ID_CHARACTERS_MAX,
    "correlation_id": ID_CHARACTERS_MAX,
    "trace_id": ID_CHARACTERS_MAX,
}
_NUMBER_LIMITS: Final = {
    "priority": PRIORITY_MAX,
    "delay_ms": SPAN_MS_MAX,
    "not_before_ms": TIME_MS_MAX,
    "ttl_ms": SPAN_MS_MAX,
}


def _any_metadata(messages: Sequence[Message]) -> bool:
    # One pass over a plain batch takes half the time of collecting eleven columns; one with metadata ends early.
    return any(
        m.partition is not None or m.key is not None or m.headers is not None or m.priority or m.delay_ms
        or m.not_before_ms or m.ttl_ms is not None or m.dedup_id is not None or m.content_type is not None
        or m.correlation_id is not None or m.trace_id is not None
        for m in messages
    )  # fmt: skip


def _columns_of(messages: Sequence[Message]) -> dict[str, list[Any]]:
    # Written out because an attribute by name is read twice as fast as through attrgetter.
    return {
        "partition": [message.partition for message in messages],
        "key": [message.key for message in messages],
        "headers": [message.headers for message in messages],
        "priority": [message.priority for message in messages],
        "delay_ms": [message.delay_ms for message in messages],
        "not_before_ms": [message.not_before_ms for message in messages],
        "ttl_ms": [message.ttl_ms for message in messages],
        "dedup_id": [message.dedup_id for message in messages],
        "content_type": [message.content_type for message in messages],
        "correlation_id": [message.correlation_id for message in messages],
        "trace_id": [message.trace_id for message in messages],
    }


def _write_meta(columns: dict[str, list[Any]], count: int) -> bytes:
    """Columns (a list of one value is a constant) as bytes; those of defaults only are left out."""
    present = constant = 0
    parts: list[bytes] = []
    for name, values in columns.items():
        first = values[0] if count else None
        if count == 0 or (_is_default(name, first) and values.count(first) == len(values)):
            continue
        packed, is_constant = _pack(name, values, count)
        present |= _TYPED[name].bit
        constant |= _TYPED[name].bit if is_constant else 0
        parts.append(packed)
    if not present:
        return b""
    return _seal_meta(_META_HEAD.pack(VERSION, present, constant, count), parts)


def _seal_meta(head: bytes, parts: list[bytes]) -> bytes:
    lengths = struct.pack(f"<{len(parts)}I", *map(len, parts))
    rest = b"".join((lengths, *parts))
    size = _META_START + len(rest)
    if size > META_BYTES_MAX:
        raise MessageTooLarge(f"metadata of the batch has {size} bytes; the limit is {META_BYTES_MAX}")
    return b"".join((head, _CHECKSUM.pack(crc32(rest, crc32(head))), rest))


def _is_default(name: str, value: Any) -> bool:
    return value is None or value == (_NO_HEADERS if name == "headers" else _TYPED[name].default)


def _pack(name: str, values: list[Any], count: int) -> tuple[bytes, bool]:
    """One column as msgpack, and whether it is a constant."""
    encode_value = msgspec.msgpack.encode
    first = values[0]
    try:
        # Comparing the ends first spares the many columns of distinct values the count.
        if first != values[-1] or values.count(first) != len(values):
            return encode_value(values), False
        one = encode_value(first)
        if type(first) is not dict or len(set(map(id, values))) == 1:
            return one, True
        # Equal dicts may still differ: 1 == 1.0 == True. Only equal bytes are one constant.
        many = encode_value(values)
    except _CODEC_ERRORS as error:
        # A datetime past year 9999 once it is in UTC, for one: `check_message` lets it through.
        raise InvalidArgument(f"{name} cannot be encoded: {error}") from None
    return (one, True) if many == _array_head(count) + one * count else (many, False)


def _read_meta(meta: bytes, count: int, kinds: dict[str, _Column]) -> dict[str, list[Any]]:
    """The columns present, by name; a constant is a list of one value."""
    _check_count(count)
    if not meta:
        return {}
    present, constant = _open_meta(meta, count)
    columns = [(name, column) for name, column in kinds.items() if column.bit & present]
    parts = _split_meta(meta, len(columns))
    return {
        name: [_decode(column.one, part, name)] if column.bit & constant else _decode_list(column, part, count, name)
        for (name, column), part in zip(columns, parts, strict=True)
    }


def _meta_head(meta: bytes) -> tuple[int, int, int]:
    if len(meta) < _META_START:
        _check_version(meta[0], "meta")
        raise InvalidBatch(f"meta has {len(meta)} bytes; its head alone has {_META_START}")
    version, present, constant, count = _META_HEAD.unpack_from(meta)
    _check_version(version, "meta")
    if not 0 < present <= _ALL_COLUMNS or constant & ~present:
        raise InvalidBatch(f"meta names columns that do not exist: {present:#x}, of these constant {constant:#x}")
    return present, constant, count


def _open_meta(meta: bytes, count: int) -> tuple[int, int]:
    if len(meta) > META_BYTES_MAX:
        raise InvalidBatch(f"meta has {len(meta)} bytes; the limit is {META_BYTES_MAX}")
    present, constant, held = _meta_head(meta)
    _check_sum(meta, _META_HEAD.size, "meta")
    if held != count:
        raise InvalidBatch(f"meta is that of {held} messages, the batch has {count}")
    return present, constant


def _split_meta(meta: bytes, columns: int) -> Iterator[memoryview]:
    data_start = _META_START + columns * _LENGTH_BYTES
    if len(meta) < data_start:
        raise InvalidBatch(f"meta has {len(meta)} bytes, too few for the lengths of {columns} columns")
    lengths = struct.unpack_from(f"<{columns}I", meta, _META_START)
    if sum(lengths) != len(meta) - data_start:
        raise InvalidBatch(f"meta's columns have {len(meta) - data_start} bytes; their lengths say {sum(lengths)}")
    view = memoryview(meta)
    return (view[low:high] for low, high in pairwise(accumulate(lengths, initial=data_start)))


def _decode_list(column: _Column, part: memoryview, count: int, name: str) -> list[Any]:
    # The head is compared before decoding: a list of other length must not be built only to be refused.
    head = _array_head(count)
    if part[: len(head)] != head:
        raise InvalidBatch(f"{name} is not a column of {count} values")
    values: list[Any] = _decode(column.many, part, name)
    return values


def _decode(decoder: msgspec.msgpack.Decoder[Any], part: memoryview, name: str) -> Any:
    try:
        return decoder.decode(part)
    except _CODEC_ERRORS as error:
        raise InvalidBatch(f"{name} does not decode: {error}") from None


def _decode_order(columns: dict[str, list[Any]], count: int, start: int, stop: int | None) -> Iterator[Iterable[Any]]:
    for name, column in _TYPED.items():
        values = columns.get(name)
        if values is None:
            yield repeat(column.default)
        else:
            yield _expand(values, count)[start:stop]


def _expand(values: list[Any], count: int) -> list[Any]:
    return values if len(values) == count else values * count


def _array_head(count: int) -> bytes:
    """How msgpack begins an array of `count` values."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


# Bodies --------------------------------------------------------------------------------------------------


class _Zstandard(threading.local):
    """Compressor and decompressor of one thread: they are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstandard: Final = _Zstandard()


def _write_body(lengths: array[int], pieces: Sequence[bytes | memoryview]) -> bytes:
    count = len(lengths)
    flags = 0
    packed = _little_endian(lengths).tobytes()
    if count and packed == packed[:_LENGTH_BYTES] * count:
        flags |= BODY_EQUAL_LENGTHS
        packed = packed[:_LENGTH_BYTES]
    block = b"".join((packed, *pieces))
    _limit_bytes(len(block) - len(packed))
    compressed = _compress(block, len(packed))
    if compressed is not None:
        flags |= BODY_COMPRESSED
        block = compressed
    head = _BODY_HEAD.pack(VERSION, flags, count)
    return b"".join((head, _CHECKSUM.pack(crc32(block, crc32(head))), block))


def _compress(block: bytes, data_start: int) -> bytes | None:
    """The block compressed, or None unless that saves more than an eighth."""
    if len(block) < COMPRESS_BYTES_MIN:
        return None
    compress = _zstandard.compressor.compress
    if len(block) > 2 * _SAMPLE_PIECES * _SAMPLE_PIECE_BYTES:
        # Payloads only: the lengths compress well whatever the payloads are like.
        step = (len(block) - data_start) // _SAMPLE_PIECES
        starts = range(data_start, data_start + step * _SAMPLE_PIECES, max(step, 1))
        sample = b"".join([block[start : start + _SAMPLE_PIECE_BYTES] for start in starts])
        if not _pays(len(compress(sample)), len(sample)):
            return None
    compressed = compress(block)
    return compressed if _pays(len(compressed), len(block)) else None


def _pays(compressed: int, plain: int) -> bool:
    return compressed * 8 < plain * 7


def _open_body(body: bytes, count: int, *, is_checked: bool = False) -> tuple[array[int], bytes, int]:
    """The length of every payload, the bytes that hold the payloads, and where in them the first begins."""
    _check_count(count)
    flags = _body_flags(body, count, is_checked)
    if flags & BODY_COMPRESSED:
        block, lengths_start = _decompress(body, BATCH_BYTES_MAX + count * _LENGTH_BYTES), 0
    else:
        block, lengths_start = body, _BODY_START
    data_start = lengths_start + (1 if flags & BODY_EQUAL_LENGTHS else count) * _LENGTH_BYTES
    if len(block) < data_start:
        raise InvalidBatch(f"body has {len(block)} bytes, too few for the lengths of {count} payloads")
    if len(block) - data_start > BATCH_BYTES_MAX:
        raise InvalidBatch(f"payloads have {len(block) - data_start} bytes; a batch's limit is {BATCH_BYTES_MAX}")
    return _lengths(block, lengths_start, data_start, count, bool(flags & BODY_EQUAL_LENGTHS)), block, data_start


def _lengths(block: bytes, start: int, stop: int, count: int, equal: bool) -> array[int]:
    lengths = array("I")
    lengths.frombytes(block[start:stop])
    lengths = _little_endian(lengths)
    total = lengths[0] * count if equal else sum(lengths)
    if total != len(block) - stop:
        raise InvalidBatch(f"payloads have {len(block) - stop} bytes; their lengths say {total}")
    return lengths * count if equal else lengths


def _body_flags(body: bytes, count: int, is_checked: bool) -> int:
    if len(body) < _BODY_START:
        _check_version(body[0] if body else VERSION, "body")
        raise InvalidBatch(f"body has {len(body)} bytes; its head alone has {_BODY_START}")
    version, flags, held = _BODY_HEAD.unpack_from(body)
    _check_version(version, "body")
    if not is_checked:
        _check_sum(body, _BODY_HEAD.size, "body")
    if held != count:
        raise InvalidBatch(f"body holds {held} payloads, the batch has {count} messages")
    if flags & ~(BODY_COMPRESSED | BODY_EQUAL_LENGTHS):
        raise InvalidBatch(f"body has flags that do not exist: {flags:#x}")
    return int(flags)


def _decompress(body: bytes, limit: int) -> bytes:
    frame = memoryview(body)[_BODY_START:]
    try:
        # Declared and within the limit before a byte is unfolded: zstandard allocates what the frame declares.
        size = zstandard.frame_content_size(frame)
        if not 0 < size <= limit:
            raise InvalidBatch(f"compressed body declares {size} bytes; it must be 1 to {limit}")
        return _zstandard.decompressor.decompress(frame, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidBatch(f"body does not decompress: {error}") from None


def _little_endian(lengths: array[int]) -> array[int]:
    if sys.byteorder == "big":
        lengths = lengths[:]
        lengths.byteswap()
    return lengths


# Checks that all of the above share ----------------------------------------------------------------------


def _check_version(version: int, what: str) -> None:
    if version > VERSION:
        raise InvalidBatch(f"{what} is of version {version}, newer than {VERSION}, the newest this program reads")
    if version < VERSION:
        raise InvalidBatch(f"{what} is of version {version}, which does not exist")


def _check_sum(data: bytes, head_bytes: int, what: str) -> None:
    """The checksum stands after the head and covers all bytes but its own."""
    computed = crc32(memoryview(data)[head_bytes + _CHECKSUM.size :], crc32(data[:head_bytes]))
    if computed != _CHECKSUM.unpack_from(data, head_bytes)[0]:
        raise InvalidBatch(f"{what} is corrupted: its checksum does not match")


def _check_count(count: int) -> None:
    # The one number that sizes allocations by itself (constants, equal lengths), so it is looked at first.
    if type(count) is not int or not 0 <= count <= BATCH_MESSAGES_MAX:
        raise InvalidBatch(f"batch has {count!r} messages; the limit is {BATCH_MESSAGES_MAX}")


def _limit_count(count: int) -> None:
    if count > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"batch has {count} messages; the limit is {BATCH_MESSAGES_MAX}")


def _limit_bytes(size: int) -> None:
    if size > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"payloads have {size} bytes; a batch's limit is {BATCH_BYTES_MAX}")


def _range(count: int, start: int, stop: int | None) -> tuple[int, int]:
    stop = count if stop is None else stop
    if not 0 <= start <= stop <= count:
        raise InvalidArgument(f"messages {start} to {stop} are not within a batch of {count}")
    return start, stop
