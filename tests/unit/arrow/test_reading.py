"""Slices as record batches: every column of every kind of message, whole, cut, chosen and put together."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.results import ScanSlice, ScanState
from penstock.api.scan import META_COLUMNS, PLACE_COLUMNS, STATE_COLUMNS
from penstock.arrow import EXTRA_SCHEMA, MESSAGE_SCHEMA, STATE_SCHEMA, record_batches, schema_of
from penstock.arrow.reading import ROWS_TO_JOIN
from penstock.model import Message
from penstock.model.errors import InvalidArgument, StoreCorrupt
from penstock.model.typed_headers import json_headers
from tests.unit.arrow.slices import PUBLISHED_MS, batches, record_batch, scan_of, slice_of

ALL: Final = [*MESSAGE_SCHEMA.names, *EXTRA_SCHEMA.names]
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def moment(milliseconds: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=milliseconds)


def text_of(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(json_headers({"x": value})["x"], ensure_ascii=False, separators=(",", ":"))


def typed(value: Any) -> dict[str, Any]:
    """A value as `typed_headers` has it, written the long way round."""
    row: dict[str, Any] = {"kind": "nested", "text": None, "integer": None, "float": None}
    if value is None:
        row["kind"] = "null"
    elif isinstance(value, bool):
        row |= {"kind": "boolean", "integer": int(value)}
    elif isinstance(value, int):
        row |= {"kind": "integer", "integer": value}
    elif isinstance(value, float):
        row |= {"kind": "float", "float": value}
    elif isinstance(value, str):
        row |= {"kind": "text", "text": value}
    elif isinstance(value, bytes):
        row |= {"kind": "bytes", "text": base64.b64encode(value).decode()}
    elif isinstance(value, dt.datetime):
        row |= {"kind": "time", "text": value.isoformat()}
    else:
        row["text"] = base64.b64encode(msgspec.msgpack.encode(value)).decode()
    return row


def row_of(message: Message, offset: int, published_ms: int = PUBLISHED_MS) -> dict[str, Any]:
    """What every column must say of a message, found one by one."""
    own = message.headers
    return {
        "queue": "orders",
        "queue_id": 7,
        "lane": 2,
        "offset": offset,
        "partition": message.partition,
        "payload": message.payload,
        "headers": None if own is None else [(name, text_of(value)) for name, value in own.items()],
        "content_type": message.content_type,
        "priority": message.priority,
        "published_at": moment(published_ms),
        "expires_at": None if message.ttl_ms is None else moment(published_ms + message.ttl_ms),
        "dedup_id": message.dedup_id,
        "trace_id": message.trace_id,
        "correlation_id": message.correlation_id,
        "key": message.key,
        "delay_ms": message.delay_ms,
        "not_before": moment(message.not_before_ms) if message.not_before_ms else None,
        "ttl_ms": message.ttl_ms,
        "typed_headers": None if own is None else [(name, typed(value)) for name, value in own.items()],
    }


def rows_of(found: pa.RecordBatch) -> list[dict[str, Any]]:
    found.validate(full=True)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


# The schema ----------------------------------------------------------------------------------------------


def test_the_names_that_need_no_arrow_are_the_same() -> None:
    assert {*MESSAGE_SCHEMA.names, *EXTRA_SCHEMA.names} == {*PLACE_COLUMNS, *META_COLUMNS}
    assert tuple(STATE_SCHEMA.names) == STATE_COLUMNS


def test_the_server_gives_the_columns_of_the_schema() -> None:
    from penstock.api.scan import DEFAULT_COLUMNS

    assert tuple(MESSAGE_SCHEMA.names) == DEFAULT_COLUMNS


def test_all_columns_may_be_null() -> None:
    assert all(field.nullable for schema in (MESSAGE_SCHEMA, EXTRA_SCHEMA, STATE_SCHEMA) for field in schema)


def test_a_column_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match=r"no column 'parition'; did you mean partition\?"):
        schema_of(["offset", "parition"])


def test_a_column_that_is_named_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="twice"):
        schema_of(["offset", "offset"])


# Every message -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(batches, st.data())
def test_every_column_of_a_slice_says_what_the_messages_say(held: list[Message], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(held) - 1))
    stop = data.draw(st.integers(start + 1, len(held)))
    found = record_batch(slice_of(held, 40, start=start, stop=stop), ALL)
    assert found.schema == schema_of(ALL)
    assert rows_of(found) == [row_of(held[place], 40 + place) for place in range(start, stop)]


@settings(deadline=None)
@given(st.lists(batches, min_size=1, max_size=5), st.data())
def test_slices_that_are_put_together_are_the_same_rows(groups: list[list[Message]], data: st.DataObject) -> None:
    """Cut at both ends, some with a condition, each published at a time of its own."""
    slices: list[ScanSlice] = []
    expected: list[dict[str, Any]] = []
    base = 1_000
    for number, held in enumerate(groups):
        start = data.draw(st.integers(0, len(held) - 1)) if number == 0 else 0
        chosen = data.draw(st.none() | st.lists(st.integers(start, len(held) - 1), unique=True).map(sorted))
        published_ms = PUBLISHED_MS + number
        slices.append(slice_of(held, base, start=start, rows=chosen, published_ms=published_ms))
        places = range(start, len(held)) if chosen is None else chosen
        expected += [row_of(held[place], base + place, published_ms) for place in places]
        base += len(held)
    columns = data.draw(st.lists(st.sampled_from(ALL), min_size=1, unique=True))
    found = [row for batch in record_batches(scan_of(slices), columns) for row in rows_of(batch)]
    assert found == [{name: row[name] for name in columns} for row in expected]


def test_not_a_number_and_infinity_in_headers() -> None:
    held = [Message(b"", headers={"nan": float("nan"), "up": float("inf"), "down": -float("inf")})]
    [row] = rows_of(record_batch(slice_of(held), ["headers", "typed_headers"]))
    assert row["headers"] == [("nan", "NaN"), ("up", "Infinity"), ("down", "-Infinity")]
    floats = [value["float"] for _, value in row["typed_headers"]]
    assert floats[0] != floats[0]
    assert floats[1:] == [float("inf"), -float("inf")]


# Shapes of slices ----------------------------------------------------------------------------------------


def test_small_batches_become_one_record_batch_and_large_ones_stay_apart() -> None:
    small = [slice_of([Message(b"%d" % number)], number) for number in range(100)]
    large = [Message(b"")] * ROWS_TO_JOIN
    found = list(record_batches(scan_of([*small, slice_of(large, 100)]), ["offset", "payload"]))
    assert [batch.num_rows for batch in found] == [100, ROWS_TO_JOIN]
    assert found[0].column("payload").to_pylist() == [b"%d" % number for number in range(100)]


def test_an_answer_is_cut_where_rows_are_enough() -> None:
    half = [Message(b"")] * (ROWS_TO_JOIN // 2)
    slices = [slice_of(half, number * len(half)) for number in range(3)]
    assert [batch.num_rows for batch in record_batches(scan_of(slices), ["offset"])] == [ROWS_TO_JOIN, len(half)]


def test_payloads_of_one_batch_are_pointed_at_and_not_copied() -> None:
    part = slice_of([Message(bytes([number]) * 40) for number in range(10)])
    assert part.body is not None
    column = record_batch(part, ["payload"]).column("payload")
    assert column.buffers()[2].address == pa.py_buffer(part.body).address


def test_no_slices_are_no_batches() -> None:
    assert list(record_batches(scan_of([]), ALL)) == []


def test_rows_that_all_fell_through_the_condition() -> None:
    none = slice_of([Message(b"a")], rows=[], meta=None, body=None)
    assert list(record_batches(scan_of([none]), ALL)) == []
    empty = record_batch(none, ALL)
    assert (empty.num_rows, empty.schema) == (0, schema_of(ALL))


def test_without_a_column_rows_are_still_counted() -> None:
    found = list(record_batches(scan_of([slice_of([Message(b"")] * 5), slice_of([Message(b"")], 5)]), []))
    assert [batch.num_rows for batch in found] == [6]


# What a group makes of them ------------------------------------------------------------------------------


def test_states_are_those_of_the_ranges_and_done_in_between() -> None:
    states = [
        ScanState(11, 13, "leased", 1),
        ScanState(13, 14, "dead", 5, "rejected"),
        ScanState(16, 18, "ready", 0),
    ]
    part = slice_of([Message(b"")] * 8, 10, states=states)
    assert [tuple(row.values()) for row in rows_of(record_batch(part, STATE_SCHEMA.names))] == [
        ("done", None, None),
        ("leased", 1, None),
        ("leased", 1, None),
        ("dead", 5, "rejected"),
        ("done", None, None),
        ("done", None, None),
        ("ready", 0, None),
        ("ready", 0, None),
    ]


def test_states_of_chosen_rows_and_of_several_slices() -> None:
    first = slice_of([Message(b"")] * 3, 0, rows=[0, 2], states=[ScanState(2, 3, "waiting", 2)])
    second = slice_of([Message(b"")] * 2, 3, states=[])
    [found] = record_batches(scan_of([first, second]), ["offset", "state", "attempts"])
    assert [tuple(row.values()) for row in rows_of(found)] == [
        (0, "done", None),
        (2, "waiting", 2),
        (3, "done", None),
        (4, "done", None),
    ]


# What was left out, and what is damaged ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "part", "complaint"),
    [
        ("payload", slice_of([Message(b"a")], body=None), "left out payloads"),
        ("partition", slice_of([Message(b"a", partition="p")], meta=None), "left out metadata"),
        ("state", slice_of([Message(b"a")]), "named no group"),
    ],
)
def test_what_the_scan_left_out_is_not_taken_for_nothing(column: str, part: ScanSlice, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        record_batch(part, [column])
    assert record_batch(part, ["offset", "published_at"]).num_rows == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("column", ["payload", "partition"])
def test_a_damaged_batch_is_named_by_its_place(count: int, column: str) -> None:
    part = slice_of([Message(b"abc", partition="p")] * count, 40)
    field = "body" if column == "payload" else "meta"
    broken = bytearray(getattr(part, field))
    broken[-1] ^= 1
    damaged = msgspec.structs.replace(part, **{field: bytes(broken)})
    place = f"offsets 40 to {39 + count} of lane 2 of queue 'orders' cannot be read: .*checksum"
    with pytest.raises(StoreCorrupt, match=place):
        record_batch(damaged, [column])
    assert record_batch(damaged, ["offset"]).num_rows == count
