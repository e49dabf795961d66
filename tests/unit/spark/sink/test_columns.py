"""Which columns a write takes, and how rows become messages."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from penstock.arrow import encoded_batch
from penstock.batch import decode
from penstock.model import Message
from penstock.model.errors import InvalidArgument
from penstock.spark.sink.columns import TYPED, ColumnPlan, by_target, column_plan, message_columns
from penstock.spark.sink.options import write_options


def plan(columns: dict[str, str], **options: str) -> ColumnPlan:
    given = {"url": "http://127.0.0.1:1"} | options
    return column_plan(list(columns.items()), write_options(given, streaming=True))


def messages(rows: pa.RecordBatch, of: ColumnPlan) -> list[Message]:
    return decode(encoded_batch(message_columns(rows, of)))


# On the driver -------------------------------------------------------------------------------------------


def test_every_column_is_taken() -> None:
    columns = {
        "payload": "binary",
        "exchange": "string",
        "routing_key": "string",
        "partition": "string",
        "key": "string",
        "headers": "map<string,string>",
        "typed_headers": TYPED,
        "priority": "int",
        "delay": "double",
        "not_before": "timestamp",
        "ttl": "interval day to second",
        "dedup_id": "string",
        "content_type": "string",
        "correlation_id": "string",
        "trace_id": "string",
        "published_at": "timestamp",
        "expires_at": "timestamp",
        "queue_id": "bigint",
        "source_queue": "string",
        "source_lane": "int",
        "source_offset": "bigint",
        "state": "string",
        "attempts": "int",
        "reason": "string",
    }
    made = plan(columns)
    assert made.columns == tuple(columns)
    assert made.source is not None
    assert made.source.queue == "source_queue"


def test_an_unknown_column_is_named_with_what_is_allowed() -> None:
    with pytest.raises(
        InvalidArgument, match=r"no column 'paylod': did you mean 'payload'\? it takes payload, partition"
    ):
        plan({"paylod": "string", "queue": "string"})


@pytest.mark.parametrize(
    ("column", "kind", "wanted"),
    [
        ("payload", "int", "binary or string"),
        ("headers", "map<string,int>", "map<string,string>"),
        ("typed_headers", "map<string,string>", "struct<kind"),
        ("priority", "string", "int"),
        ("delay", "interval year to month", "seconds"),
        ("not_before", "timestamp_ntz", "timestamp"),
        ("partition", "bigint", "string"),
        ("offset", "string", "bigint"),
    ],
)
def test_a_column_of_another_type_is_refused(column: str, kind: str, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"column {column} is of type .*{wanted}"):
        plan({"payload": "binary"} | {column: kind}, queue="q")


def test_a_payload_is_needed() -> None:
    with pytest.raises(InvalidArgument, match=r"no column payload .* only partition"):
        plan({"partition": "string"}, queue="q")
    with pytest.raises(InvalidArgument, match="no column payload"):
        plan({"payload": "void"}, queue="q")


def test_a_target_is_needed() -> None:
    with pytest.raises(InvalidArgument, match="nothing says where"):
        plan({"payload": "binary"})
    with pytest.raises(InvalidArgument, match="nothing says where"):
        plan({"payload": "binary", "queue": "void"})
    with pytest.raises(InvalidArgument, match="no row goes to an exchange"):
        plan({"payload": "binary", "queue": "string"}, routingKey="k")


def test_seconds_and_milliseconds_together_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="both delay"):
        plan({"payload": "binary", "delay": "double", "delay_ms": "bigint"}, queue="q")


SOURCE = {"payload": "binary", "queue": "string", "lane": "int", "offset": "bigint"}


def test_the_sources_columns_with_a_target_by_option_are_an_identity() -> None:
    found = plan(SOURCE, queue="copy").source
    assert found is not None
    assert (found.queue, found.lane, found.offset, found.queue_id) == ("queue", "lane", "offset", None)


def test_the_sources_columns_without_a_target_are_refused() -> None:
    """Else a stream from a queue would go back into that very queue, for ever."""
    with pytest.raises(InvalidArgument, match="where they come from or where they shall go"):
        plan(SOURCE)


def test_renamed_source_columns_beside_a_target_by_column() -> None:
    names = {"payload": "binary", "queue": "string", "source_queue": "string", "source_lane": "int"}
    found = plan(names | {"source_offset": "bigint"}).source
    assert found is not None
    assert found.offset == "source_offset"
    assert plan(names).source is None


# In the tasks --------------------------------------------------------------------------------------------


def test_messages_of_all_columns() -> None:
    moment = dt.datetime(2027, 1, 2, 3, 4, 5, 678_000, dt.UTC)
    rows = pa.record_batch(
        {
            "payload": ["ein", "zwei"],
            "partition": ["p", None],
            "key": ["k", None],
            "routing_key": [None, "r"],
            "headers": pa.array([[("a", "1"), ("b", None)], None], pa.map_(pa.string(), pa.string())),
            "priority": pa.array([3, None], pa.int32()),
            "delay": [1.2345, None],
            "not_before": pa.array([None, moment], pa.timestamp("us", "UTC")),
            "ttl": pa.array([dt.timedelta(minutes=2), None], pa.duration("us")),
            "dedup_id": ["d", None],
            "content_type": ["text/plain", None],
            "correlation_id": ["c", None],
            "trace_id": ["t", None],
        }
    )
    types = {
        "payload": "string",
        "partition": "string",
        "key": "string",
        "routing_key": "string",
        "headers": "map<string,string>",
        "priority": "int",
        "delay": "double",
        "not_before": "timestamp",
        "ttl": "interval day to second",
        "dedup_id": "string",
        "content_type": "string",
        "correlation_id": "string",
        "trace_id": "string",
    }
    assert messages(rows, plan(types, exchange="e")) == [
        Message(
            b"ein",
            partition="p",
            key="k",
            headers={"a": "1", "b": None},
            priority=3,
            delay_ms=1_234,
            ttl_ms=120_000,
            dedup_id="d",
            content_type="text/plain",
            correlation_id="c",
            trace_id="t",
        ),
        Message(b"zwei", key="r", not_before_ms=int(moment.timestamp() * 1_000)),
    ]


def test_milliseconds_and_the_option_for_the_key() -> None:
    rows = pa.record_batch({"payload": [b"a"], "delay_ms": [5], "ttl_ms": [7], "key": ["other"]})
    types = {"payload": "binary", "delay_ms": "bigint", "ttl_ms": "int", "key": "string"}
    assert messages(rows, plan(types, exchange="e", routingKey="k")) == [Message(b"a", key="k", delay_ms=5, ttl_ms=7)]


@pytest.mark.parametrize(("value", "shown"), [(-0.5, "-0.5 s"), (float("nan"), "NaN"), (1e10, "10000000000.0 s")])
def test_spans_that_are_none(value: float, shown: str) -> None:
    rows = pa.record_batch({"payload": [b"a"], "ttl": [value]})
    with pytest.raises(InvalidArgument, match=f"column ttl has a span of {shown}"):
        message_columns(rows, plan({"payload": "binary", "ttl": "double"}, queue="q"))


def test_a_payload_that_is_null_is_refused() -> None:
    rows = pa.record_batch({"payload": pa.array([b"a", None], pa.binary())})
    with pytest.raises(InvalidArgument, match="payload of 1 of 2 rows is NULL"):
        message_columns(rows, plan({"payload": "binary"}, queue="q"))


def test_rows_by_target_keep_their_order() -> None:
    rows = pa.record_batch(
        {"payload": ["1", "2", "3", "4"], "queue": ["a", "b", "a", None], "exchange": [None, None, None, "e"]}
    )
    made = plan({"payload": "string", "queue": "string", "exchange": "string"})
    found = {target: part.column("payload").to_pylist() for target, part in by_target(rows, made)}
    assert found == {("queue", "a"): ["1", "3"], ("queue", "b"): ["2"], ("exchange", "e"): ["4"]}


def test_the_option_wins_over_the_column() -> None:
    rows = pa.record_batch({"payload": ["1"], "queue": ["a"]})
    made = plan({"payload": "string", "queue": "string"}, queue="b")
    assert [target for target, _ in by_target(rows, made)] == [("queue", "b")]


@pytest.mark.parametrize(
    ("queue", "exchange", "message"),
    [(None, None, "has no target"), ("", None, "has no target"), ("a", "e", "two targets: queue 'a' and exchange 'e'")],
)
def test_rows_without_one_target_are_refused(queue: str | None, exchange: str | None, message: str) -> None:
    rows = pa.record_batch(
        {
            "payload": ["fine", "wrong"],
            "queue": pa.array(["a", queue], pa.string()),
            "exchange": pa.array([None, exchange], pa.string()),
        }
    )
    made = plan({"payload": "string", "queue": "string", "exchange": "string"})
    with pytest.raises(InvalidArgument, match=rf"{message}.*'wrong'"):
        list(by_target(rows, made))
