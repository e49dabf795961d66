"""The meta of a batch: the metadata of its messages by column, each a constant or a list, as msgpack.

In memory a column is a list; a list of one value is a constant. This module knows no payload, and of a field's limits
only its type: the rest is up to `checks`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from penstock.batch import layout
from penstock.batch.guards import check_count, check_sum, check_version
from penstock.batch.layout import (
    CHECKSUM,
    COLUMN_UNFOLDED,
    LENGTH_BYTES,
    META_BYTES_MAX,
    META_HEAD,
    META_START,
    UNFOLDED,
    UNFOLDED_MARK,
    VERSION,
)
from penstock.model import Headers, Message
from penstock.model.checksum import crc32
from penstock.model.errors import InvalidArgument, InvalidBatch, MessageTooLarge

# All that msgspec raises on bytes that are not the msgpack of the wanted type, or on values it cannot encode.
_CODEC_ERRORS: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


class _Column(NamedTuple):
    """How one column is read: its bit, its default (which is not stored), the decoders of a list and of a constant."""

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
TYPED: Final[dict[str, _Column]] = {
    "partition": _column(layout.COLUMN_PARTITION, None, str | None),
    "key": _column(layout.COLUMN_KEY, None, str | None),
    "headers": _column(layout.COLUMN_HEADERS, None, Headers | None),
    "priority": _column(layout.COLUMN_PRIORITY, 0, int),
    "delay_ms": _column(layout.COLUMN_DELAY_MS, 0, int),
    "not_before_ms": _column(layout.COLUMN_NOT_BEFORE_MS, 0, int),
    "ttl_ms": _column(layout.COLUMN_TTL_MS, None, int | None),
    "dedup_id": _column(layout.COLUMN_DEDUP_ID, None, str | None),
    "content_type": _column(layout.COLUMN_CONTENT_TYPE, None, str | None),
    "correlation_id": _column(layout.COLUMN_CORRELATION_ID, None, str | None),
    "trace_id": _column(layout.COLUMN_TRACE_ID, None, str | None),
}
_ALL_COLUMNS: Final = (COLUMN_UNFOLDED << 1) - 1

# To cut or join, headers need not be understood, only moved: a third of the time, and no dict is built.
_NO_HEADERS: Final = msgspec.Raw(b"\xc0")
OPAQUE_HEADERS: Final = TYPED | {"headers": _column(layout.COLUMN_HEADERS, _NO_HEADERS, msgspec.Raw)}


def meta_columns(meta: bytes) -> int:
    """Which columns `meta` holds, as a mask of the COLUMN_ constants, read from its head alone."""
    return _meta_head(meta)[0] if meta else 0


def is_meta_intact(meta: bytes, count: int) -> bool:
    """Whether `meta` matches its checksum and describes `count` messages. No column is decoded."""
    try:
        if meta:
            _open_meta(meta, count)
    except InvalidBatch:
        return False
    return True


def any_metadata(messages: Sequence[Message]) -> bool:
    # One pass over a plain batch takes a quarter of the time of collecting eleven columns, and half of what `any` takes
    # over a generator; one with metadata ends early.
    for m in messages:
        if (
            m.partition is not None
            or m.key is not None
            or m.headers is not None
            or m.priority
            or m.delay_ms
            or m.not_before_ms
            or m.ttl_ms is not None
            or m.dedup_id is not None
            or m.content_type is not None
            or m.correlation_id is not None
            or m.trace_id is not None
        ):
            return True
    return False


def columns_of(messages: Sequence[Message]) -> dict[str, list[Any]]:
    if len(messages) == 1:  # an event of a commit, for one: most columns are not there, and need not be made
        values = msgspec.structs.astuple(messages[0])[1:]
        return {
            name: [value]
            for (name, column), value in zip(TYPED.items(), values, strict=True)
            if value is not None and value != column.default
        }
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


def unfolded_of(meta: bytes) -> int:
    """The bytes that the body's block has once it is decompressed, by `meta` alone; 0 where it does not say."""
    if len(meta) < META_START + UNFOLDED.size or not META_HEAD.unpack_from(meta)[1] & COLUMN_UNFOLDED:
        return 0
    mark, size = UNFOLDED.unpack_from(meta, len(meta) - UNFOLDED.size)
    return int(size) if mark == UNFOLDED_MARK else 0


def write_meta(columns: dict[str, list[Any]], count: int, unfolded: int = 0) -> bytes:
    """Columns as bytes; a list of one value is a constant, a column of defaults is left out.

    `unfolded` are the bytes of the body's block, where readers should know them before they have the body.
    """
    present = constant = 0
    parts: list[bytes] = []
    for name, values in columns.items():
        first = values[0] if count else None
        if count == 0 or (_is_default(name, first) and values.count(first) == len(values)):
            continue
        packed, is_constant = _pack(name, values, count)
        present |= TYPED[name].bit
        constant |= TYPED[name].bit if is_constant else 0
        parts.append(packed)
    if unfolded:
        present |= COLUMN_UNFOLDED
        constant |= COLUMN_UNFOLDED
        parts.append(UNFOLDED.pack(UNFOLDED_MARK, unfolded))
    if not present:
        return b""
    return _seal_meta(META_HEAD.pack(VERSION, present, constant, count), parts)


def cut_columns(meta: bytes, count: int, start: int, stop: int) -> dict[str, list[Any]]:
    """The columns of the messages [start, stop), headers undecoded."""
    columns = read_meta(meta, count, OPAQUE_HEADERS)
    return {name: values[start:stop] if len(values) == count else values for name, values in columns.items()}


def _seal_meta(head: bytes, parts: list[bytes]) -> bytes:
    lengths = struct.pack(f"<{len(parts)}I", *map(len, parts))
    rest = b"".join((lengths, *parts))
    size = META_START + len(rest)
    if size > META_BYTES_MAX:
        raise MessageTooLarge(f"metadata of the batch has {size} bytes; the limit is {META_BYTES_MAX}")
    return b"".join((head, CHECKSUM.pack(crc32(rest, crc32(head))), rest))


def _is_default(name: str, value: Any) -> bool:
    return value is None or value == (_NO_HEADERS if name == "headers" else TYPED[name].default)


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


def read_meta(meta: bytes, count: int, kinds: dict[str, _Column]) -> dict[str, list[Any]]:
    """The columns present, by name; a constant is a list of one value."""
    check_count(count)
    if not meta:
        return {}
    present, constant = _open_meta(meta, count)
    columns = [(name, column) for name, column in kinds.items() if column.bit & present]
    parts = _split_meta(meta, present)  # without the last, which is of no message, where it is there
    return {
        name: [_decode(column.one, part, name)] if column.bit & constant else _decode_list(column, part, count, name)
        for (name, column), part in zip(columns, parts, strict=False)
    }


def read_columns(meta: bytes, count: int, names: frozenset[str]) -> dict[str, list[Any]]:
    """Like `read_meta`, of some columns only; the others are not decoded."""
    check_count(count)
    if not meta:
        return {}
    present, constant = _open_meta(meta, count)
    wanted = _wanted(present, names)
    parts = list(_split_meta(meta, present))
    return {
        name: [_decode(column.one, parts[place], name)]
        if column.bit & constant
        else _decode_list(column, parts[place], count, name)
        for name, column, place in wanted
    }


@lru_cache(maxsize=1_024)
def _wanted(present: int, names: frozenset[str]) -> list[tuple[str, _Column, int]]:
    """(name, how it is read, its place among all that are there) of the columns that are wanted."""
    columns = [(name, column) for name, column in TYPED.items() if column.bit & present]
    return [(name, column, place) for place, (name, column) in enumerate(columns) if name in names]


def meta_column(meta: bytes, count: int, name: str) -> list[Any] | None:
    """One column alone, a value for each message; None where every message has the default."""
    if not meta_columns(meta) & TYPED[name].bit:
        return None
    return expand(read_columns(meta, count, frozenset((name,)))[name], count)


def _meta_head(meta: bytes) -> tuple[int, int, int]:
    if len(meta) < META_START:
        check_version(meta[0], "meta")
        raise InvalidBatch(f"meta has {len(meta)} bytes; its head alone has {META_START}")
    version, present, constant, count = META_HEAD.unpack_from(meta)
    check_version(version, "meta")
    if not 0 < present <= _ALL_COLUMNS or constant & ~present or (present & ~constant & COLUMN_UNFOLDED):
        raise InvalidBatch(f"meta names columns that do not exist: {present:#x}, of these constant {constant:#x}")
    return present, constant, count


def _open_meta(meta: bytes, count: int) -> tuple[int, int]:
    if len(meta) > META_BYTES_MAX:
        raise InvalidBatch(f"meta has {len(meta)} bytes; the limit is {META_BYTES_MAX}")
    present, constant, held = _meta_head(meta)
    check_sum(meta, META_HEAD.size, "meta")
    if held != count:
        raise InvalidBatch(f"meta is that of {held} messages, the batch has {count}")
    return present, constant


def _split_meta(meta: bytes, present: int) -> Iterator[memoryview]:
    columns = present.bit_count()
    data_start = META_START + columns * LENGTH_BYTES
    if len(meta) < data_start:
        raise InvalidBatch(f"meta has {len(meta)} bytes, too few for the lengths of {columns} columns")
    lengths = struct.unpack_from(f"<{columns}I", meta, META_START)
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


def decode_order(columns: dict[str, list[Any]], count: int, start: int, stop: int) -> Iterator[Iterable[Any]]:
    for name, column in TYPED.items():
        values = columns.get(name)
        if values is None:
            yield repeat(column.default)
        else:
            yield expand(values, count)[start:stop]


def expand(values: list[Any], count: int) -> list[Any]:
    return values if len(values) == count else values * count


def _array_head(count: int) -> bytes:
    """How msgpack begins an array of `count` values."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)
