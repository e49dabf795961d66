"""Typed columns from JSON payloads, and delivery events as a flat table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Message
from penstock.model.errors import InvalidArgument
from penstock.spark.events import delivery_events, event_rows
from penstock.spark.payloads import json_columns
from tests.spark.rig import PATIENCE_S, Server


def orders(spark: SparkSession, server: Server, queue: str) -> DataFrame:
    return spark.read.format("penstock").options(url=server.url, queue=queue, columns="offset,payload").load()


def test_json_payloads_become_typed_columns(spark: SparkSession, server: Server, queue: str) -> None:
    payloads = [
        b'{"id": 1, "total": 2.5, "who": {"name": "Ann"}}',
        b'{"id": 2}',
        b'{"id": "two", "total": 1.0}',
        b"not json",
        b"",
        b'{"id": 3, "who": {"name": "\xff"}}',
        b"[1, 2]",
        '{"id": 4, "who": {"name": "größe"}}'.encode(),
    ]
    server.client.publish_many(queue, [Message(payload) for payload in payloads])
    df = json_columns(orders(spark, server, queue), "id BIGINT, total DOUBLE, who STRUCT<name: STRING>")
    assert df.columns == ["offset", "id", "total", "who", "malformed"]
    rows = df.orderBy("offset").collect()
    assert [row.id for row in rows] == [1, 2, None, None, None, None, None, 4]
    assert [row.total for row in rows][:3] == [2.5, None, 1.0]
    assert (rows[0].who.name, rows[7].who.name) == ("Ann", "größe")
    malformed = [None if row.malformed is None else bytes(row.malformed) for row in rows]
    assert malformed == [None, None, *payloads[2:7], None]


def test_names_that_clash_need_a_prefix(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish(queue, Message(b'{"offset": 7}'))
    df = orders(spark, server, queue)
    with pytest.raises(InvalidArgument, match="two columns 'offset'"):
        json_columns(df, "offset INT")
    row = json_columns(df, "offset INT", prefix="my_", malformed="bad").collect()[0]
    assert row.asDict() == {"offset": 0, "my_offset": 7, "bad": None}
    with pytest.raises(InvalidArgument, match="there is no column 'body'"):
        json_columns(df, "id INT", column="body")


EVENT_COLUMNS = [
    "event_queue", "event_lane", "event_offset", "event_index", "range_index", "namespace", "queue", "queue_id", "lane",
    "group", "kind", "start_offset", "end_offset", "messages", "at", "consumer", "attempt", "detail",
]  # fmt: skip


def test_delivery_events_are_flat_rows(spark: SparkSession, server: Server, queue: str) -> None:
    client = server.client
    client.declare_group(queue, "workers", max_attempts=1)
    client.publish_many(queue, [Message(b"%d" % number) for number in range(10)])
    claim = client.claim(queue, group="workers", max=10, consumer="ann")
    client.ack(claim, [0, 1, 4, 5])
    client.nack(claim, [2, 3], error="no route")
    df = delivery_events(spark, server.url).where(f"queue = '{queue}'")
    assert df.columns == EVENT_COLUMNS
    assert [kind for _, kind in df.dtypes] == [
        "string",
        "int",
        "bigint",
        "int",
        "int",
        "string",
        "string",
        "bigint",
        "int",
        "string",
        "string",
        "bigint",
        "bigint",
        "bigint",
        "timestamp",
        "string",
        "int",
        "string",
    ]
    rows = df.orderBy("event_offset", "event_index", "range_index").collect()
    seen = sorted((row.kind, row.start_offset, row.end_offset, row.messages, row.detail) for row in rows)
    assert seen == [
        ("acked", 0, 2, 2, None),
        ("acked", 4, 6, 2, None),
        ("claimed", 0, 10, 10, None),
        ("dead", 2, 4, 2, "attempts"),
        ("nacked", 2, 4, 2, "no route"),
    ]
    assert {(row.namespace, row.lane, row.group) for row in rows} == {("default", 0, "workers")}
    assert {row.queue_id for row in rows} == {client.lanes(queue).queue_id}
    assert {(row.consumer, row.attempt) for row in rows} == {("ann", 1)}
    names = {(row.event_lane, row.event_offset, row.event_index, row.range_index) for row in rows}
    assert len(names) == len(rows)
    log = spark.read.format("penstock").options(url=server.url, queue="$events").load()
    assert event_rows(log).where(f"queue = '{queue}'").count() == len(rows)


def test_delivery_events_are_a_stream_too(spark: SparkSession, server: Server, queue: str, tmp_path: Path) -> None:
    start = {"$events": {str(one.lane): one.end for one in server.client.lanes("$events").lanes}}
    server.client.publish(queue, Message(b"x"))
    server.client.ack(server.client.claim(queue))
    df = delivery_events(spark, server.url, streaming=True, startingOffsets=json.dumps(start))
    kinds: list[str] = []
    writer = df.where(f"queue = '{queue}'").writeStream.foreachBatch(
        lambda rows, _: kinds.extend(row.kind for row in rows.collect())
    )
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_S))
    assert sorted(kinds) == ["acked", "claimed"]


def test_options_that_are_settled_for_events(spark: SparkSession, server: Server, queue: str) -> None:
    with pytest.raises(InvalidArgument, match="option queue is settled"):
        delivery_events(spark, server.url, queue=queue)
    with pytest.raises(InvalidArgument, match="'payload' is not there"):
        event_rows(spark.range(1).selectExpr("'$events' queue", "0 lane", "id offset"))
