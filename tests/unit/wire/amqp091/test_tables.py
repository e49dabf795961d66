"""Field tables: every type exactly, the same bytes as pamqp's where pamqp keeps the type, and nothing by surprise."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode
from pamqp import encode as pamqp_encode

from penstock.wire.amqp091.tables import (
    MAX_DEPTH,
    Float32,
    Int8,
    Int16,
    Int32,
    Long,
    LongBytes,
    Malformed,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    check_table,
    decode_table,
    encode_table,
    plain,
)


def _whole(kind: type[int], bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high).map(kind)


SCALARS = st.one_of(
    st.booleans(),
    st.none(),
    _whole(Int8, 8, signed=True),
    _whole(UInt8, 8, signed=False),
    _whole(Int16, 16, signed=True),
    _whole(UInt16, 16, signed=False),
    _whole(Int32, 32, signed=True),
    _whole(UInt32, 32, signed=False),
    _whole(int, 64, signed=True),
    _whole(Long, 64, signed=True),
    _whole(Timestamp, 64, signed=False),
    st.floats(width=32).map(Float32),
    st.floats(),
    st.text(),
    st.binary(),
    st.binary(max_size=8).map(lambda text: LongBytes(b"\xff" + text)),
    st.builds(
        lambda mantissa, scale: decimal.Decimal((int(mantissa < 0), tuple(map(int, str(abs(mantissa)))), -scale)),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 255),
    ),
)
NAMES = st.text(max_size=60)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=6)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down, and NaN equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, decimal.Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    return bool(one == other)


@given(TABLES)
def test_what_is_written_is_read_with_its_types(table: dict[str, Any]) -> None:
    data = encode_table(table)
    decoded, end = decode_table(data)
    assert end == len(data)
    assert same(decoded, table)
    assert encode_table(decoded) == data
    assert check_table(data, 0, len(data)) == len(data)


# What pamqp reads as we do: its decimals have no sign, its times end in 2106 or are milliseconds.
SHARED = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    _whole(UInt32, 32, signed=False),
    _whole(Int16, 16, signed=True),
    st.text(),
    st.binary(),
    st.floats(allow_nan=False),
    st.integers(0, 2**32 - 1).map(Timestamp),
)
SHARED_TABLES = st.dictionaries(st.text(max_size=30), SHARED | st.lists(SHARED, max_size=3), max_size=6)


@given(SHARED_TABLES)
def test_pamqp_reads_the_same(table: dict[str, Any]) -> None:
    data = encode_table(table)
    consumed, theirs = pamqp_decode.field_table(data)
    assert consumed == len(data)
    assert theirs == plain(decode_table(data)[0])


@given(st.dictionaries(st.text(max_size=30), st.integers(-(2**63), 2**63 - 1) | st.text() | st.booleans(), max_size=6))
def test_pamqp_writes_what_is_read_the_same(table: dict[str, Any]) -> None:
    data = pamqp_encode.field_table(table)
    decoded, end = decode_table(data)
    assert end == len(data)
    assert decoded == table
    assert encode_table(decoded) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    for candidate in (data, len(data).to_bytes(4) + data):
        # The check that makes no values says the same as the reading that makes them.
        assert _end(lambda whole: decode_table(whole)[1], candidate) == _end(_checked, candidate)


def _checked(data: bytes) -> int:
    return check_table(data, 0, len(data))


def _end(reading: Callable[[bytes], int], data: bytes) -> int:
    try:
        return reading(data)
    except Malformed:
        return -1


@given(TABLES, st.data())
def test_a_table_cut_anywhere_is_malformed(table: dict[str, Any], data: st.DataObject) -> None:
    whole = encode_table(table)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Malformed):
        decode_table(whole[:cut])
    with pytest.raises(Malformed):
        check_table(whole[:cut], 0, cut)


def _nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = b"\x01aF" + len(data).to_bytes(4) + data
    return len(data).to_bytes(4) + data


def test_nesting_has_a_limit() -> None:
    for depth, is_good in ((MAX_DEPTH - 1, True), (MAX_DEPTH, False), (20_000, False)):
        data = _nested(depth)
        for reading in (decode_table, _checked):
            if is_good:
                reading(data)
            else:
                with pytest.raises(Malformed, match="nested deeper"):
                    reading(data)
    deep: Any = {}
    for _ in range(MAX_DEPTH - 1):
        deep = {"a": deep}
    encode_table(deep)
    with pytest.raises(Malformed, match="nested deeper"):
        encode_table({"a": deep})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, object(), "ok", decimal.Decimal("NaN"), decimal.Decimal(2**31)])
def test_what_has_no_type_is_refused(value: Any) -> None:
    if value == "ok":
        encode_table({"a" * 255: value})
        return
    with pytest.raises(Malformed):
        encode_table({"a": value})


def test_a_name_may_have_255_bytes() -> None:
    for name in ("a" * 255, "ü" * 127):
        assert decode_table(encode_table({name: True}))[0] == {name: True}
    with pytest.raises(Malformed, match="256 bytes"):
        encode_table({"ü" * 128: True})


def test_plain_values_have_no_class_of_ours() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    table = {
        "numbers": [Int8(1), UInt32(2), Long(3), 4],
        "float": Float32(0.5),
        "moment": Timestamp(int(moment.timestamp())),
        "far": Timestamp(2**63),
        "bytes": LongBytes(b"\xff"),
        "price": decimal.Decimal("1.50"),
    }
    flat = plain(table)
    assert flat == {
        "numbers": [1, 2, 3, 4],
        "float": 0.5,
        "moment": moment,
        "far": 2**63,
        "bytes": b"\xff",
        "price": "1.50",
    }
    assert {type(number) for number in flat["numbers"]} == {int}
    assert type(flat["float"]) is float
    assert type(flat["bytes"]) is bytes
    assert type(flat["far"]) is int


def test_times_are_written_as_times() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert encode_table({"at": moment}) == encode_table({"at": Timestamp(int(moment.timestamp()))})
