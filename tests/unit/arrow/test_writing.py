"""Columns as encoded batches: what was read comes back as it was, and what is no message is refused by name."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.arrow import encoded_batch
from penstock.arrow.schema import HEADERS, TYPED_HEADERS
from penstock.arrow.writing import WRITTEN_COLUMNS
from penstock.batch import decode, encode
from penstock.model import BATCH_MESSAGES_MAX, Message
from penstock.model.errors import InvalidArgument, MessageTooLarge
from tests.unit.arrow.slices import batches, record_batch, slice_of

READ = [name for name in WRITTEN_COLUMNS if name != "headers"]


def written(**columns: Any) -> list[Message]:
    return decode(encoded_batch(pa.RecordBatch.from_pydict(columns)))


@settings(deadline=None)
@given(batches, st.data())
def test_messages_come_back_as_they_were(held: list[Message], data: st.DataObject) -> None:
    """By way of columns, also of a part of them: Spark hands out slices of larger buffers."""
    found = record_batch(slice_of(held), READ)
    start = data.draw(st.integers(0, len(held) - 1))
    part = found.slice(start, data.draw(st.integers(0, len(held) - start)))
    again = encoded_batch(part)
    expected = held[start : start + part.num_rows]
    assert again.count == len(expected)
    assert repr(decode(again)) == repr(decode(encode(expected)))


@settings(deadline=None)
@given(batches)
def test_bytes_are_those_of_encoding_the_messages(held: list[Message]) -> None:
    assert encoded_batch(record_batch(slice_of(held), READ)) == encode(held)


def test_not_a_number_survives() -> None:
    held = [Message(b"", headers={"a": float("nan")})]
    [message] = decode(encoded_batch(record_batch(slice_of(held), ["payload", "typed_headers"])))
    assert message.headers is not None
    assert message.headers["a"] != message.headers["a"]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()]
)
def test_payloads_of_every_kind(kind: pa.DataType) -> None:
    values = ["", "abc", "\u2713" * 100, ""]
    column = pa.array([value.encode() if pa.types.is_binary(kind) else value for value in values], pa.string()).cast(
        kind
    )
    found = written(payload=column)
    assert [message.payload for message in found] == [value.encode() for value in values]


def test_all_payloads_empty_and_no_rows() -> None:
    assert written(payload=pa.array([b"", b""])) == [Message(b""), Message(b"")]
    assert written(payload=pa.array([], pa.binary())) == []


def test_text_headers_and_nulls() -> None:
    column = pa.array([[("a", "x"), ("b", None)], None, []], HEADERS)
    found = written(payload=pa.array([b"1", b"2", b"3"]), headers=column)
    assert [message.headers for message in found] == [{"a": "x", "b": None}, None, {}]


def test_typed_headers_hold_where_both_are() -> None:
    typed = pa.array([[("n", {"kind": "integer", "text": None, "integer": 5, "float": None})]], TYPED_HEADERS)
    plain = pa.array([[("n", "5"), ("more", "x")]], HEADERS)
    assert written(payload=pa.array([b""]), headers=plain, typed_headers=typed)[0].headers == {"n": 5}


def test_nulls_are_what_a_message_has_without_the_column() -> None:
    nulls = {name: pa.nulls(2, pa.string()) for name in ("partition", "key", "dedup_id", "trace_id")}
    nulls |= {name: pa.nulls(2, pa.int64()) for name in ("priority", "delay_ms", "ttl_ms")}
    nulls |= {"headers": pa.nulls(2, HEADERS), "not_before": pa.nulls(2, pa.timestamp("us", tz="UTC"))}
    batch = encoded_batch(pa.RecordBatch.from_pydict({"payload": pa.array([b"a", b"b"]), **nulls}))
    assert (batch.meta, decode(batch)) == (b"", [Message(b"a"), Message(b"b")])


def test_some_nulls_among_numbers() -> None:
    found = written(
        payload=pa.array([b"", b""]),
        priority=pa.array([None, 3], pa.int32()),
        delay_ms=pa.array([5, None], pa.int64()),
        ttl_ms=pa.array([None, 7], pa.int64()),
    )
    assert [(one.priority, one.delay_ms, one.ttl_ms) for one in found] == [(0, 5, None), (3, 0, 7)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_is_never_before_itself(unit: str) -> None:
    """A part of a millisecond is rounded up: a message must not come early."""
    time = dt.datetime(2030, 1, 1, 0, 0, 0, 1_500 if unit in ("us", "ns") else 0, tzinfo=dt.UTC)
    [message] = written(payload=pa.array([b""]), not_before=pa.array([time], pa.timestamp(unit, tz="UTC")))
    assert message.not_before_ms == -(-int(time.timestamp() * 1_000_000) // 1000)


# What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"partition": ["a"]}, "no column payload"),
        ({"payload": [b""], "offset": [1]}, "'offset' is no column of a message"),
        ({"payload": pa.array([b"a", None, b"b"])}, "payload of row 1 is null"),
        ({"payload": [1]}, "payload is of type int64; it must be binary or string"),
        ({"payload": [b""], "partition": [1]}, "partition is of type int64; it must be string"),
        ({"payload": [b""], "priority": ["high"]}, "priority is of type string; it must be a whole number"),
        ({"payload": [b""], "priority": [1.5]}, "priority is of type double"),
        ({"payload": [b""], "not_before": [1]}, "not_before is of type int64; it must be a timestamp"),
        ({"payload": [b""], "headers": ["a=b"]}, "headers are of type string"),
        (
            {"payload": [b""], "headers": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
            "headers have values of type int64; they must be strings",
        ),
    ],
)
def test_columns_that_are_no_messages(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        written(**columns)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"kind": "colour", "text": "red"}, "of kind 'colour'; there are null, boolean"),
        ({"kind": "integer", "text": "5"}, "of kind 'integer' has no value in the field for it"),
        ({"kind": "bytes", "text": "*"}, "of kind 'bytes' is '\\*'"),
        ({"kind": "time", "text": "soon"}, "of kind 'time' is 'soon'"),
        ({"kind": "nested", "text": "wQ=="}, "of kind 'nested' is 'wQ=='"),
    ],
)
def test_typed_headers_that_cannot_be_read(value: dict[str, Any], complaint: str) -> None:
    column = pa.array([[("a", value)]], TYPED_HEADERS)
    with pytest.raises(InvalidArgument, match=complaint):
        written(payload=pa.array([b""]), typed_headers=column)


def test_more_than_a_batch_may_have() -> None:
    assert (
        encoded_batch(pa.RecordBatch.from_pydict({"payload": [b""] * BATCH_MESSAGES_MAX})).count == BATCH_MESSAGES_MAX
    )
    with pytest.raises(MessageTooLarge, match="100001 messages"):
        encoded_batch(pa.RecordBatch.from_pydict({"payload": [b""] * (BATCH_MESSAGES_MAX + 1)}))
