"""`spark.read.format("penstock")` on a real session and server: every column and option, and all the rows."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from penstock import Client, Message
from tests.spark.rig import Server, running_server

pytestmark = pytest.mark.timeout(300)  # real queries on a machine that may be busy with others

UTC = dt.UTC


def read(spark: SparkSession, server: Server, queue: str, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("penstock").options(url=server.url, queue=queue, **given).load()


def payloads(rows: list[Row]) -> list[bytes]:
    return [bytes(row["payload"]) for row in rows]


def by_place(df: DataFrame) -> list[Row]:
    return df.orderBy("queue", "lane", "offset").collect()


def mixed(count: int, seed: int = 1) -> list[Message]:
    """Messages of all shapes: empty and large, with and without each field."""
    chance = random.Random(seed)
    texts = ("", "a", "grün 🚰", "x" * 200)
    found = []
    for number in range(count):
        size = chance.choice((0, 1, 10, 200, 200, 200, 2_000))
        headers: dict[str, Any] | None = None
        if chance.random() < 0.4:
            headers = {"n": number, "text": chance.choice(texts), "flag": True, "none": None, "many": [1, {"a": "b"}]}
        found.append(
            Message(
                b"%d:" % number + chance.randbytes(size),
                partition=chance.choice((None, "p1", "größe", str(number % 101))),
                key=chance.choice((None, "k")),
                headers=headers,
                priority=chance.choice((0, 0, 9)),
                ttl_ms=chance.choice((None, None, 86_400_000)),
                dedup_id=chance.choice((None, f"id-{number}")),
                content_type=chance.choice((None, "text/plain")),
                correlation_id=chance.choice((None, "c")),
                trace_id=chance.choice((None, "t")),
            )
        )
    return found


def publish(client: Client, queue: str, messages: list[Message], seed: int = 2) -> None:
    """In batches of one, of some and of many."""
    chance = random.Random(seed)
    place = 0
    while place < len(messages):
        size = chance.choice((1, 7, 500, 5_000))
        client.publish_many(queue, messages[place : place + size])
        place += size


def test_every_column(spark: SparkSession, server: Server, queue: str) -> None:
    before = dt.datetime.now(UTC)
    full = Message(
        b"\x00body",
        partition="customer-1",
        key="orders.new",
        headers={"a": "text", "b": 2, "c": None, "d": [1]},
        priority=3,
        delay_ms=5,
        ttl_ms=60_000,
        dedup_id="d",
        content_type="text/plain",
        correlation_id="c",
        trace_id="t",
    )
    server.client.publish_many(queue, [full, Message(b"")])
    df = read(spark, server, queue)
    assert df.columns == [
        "queue",
        "lane",
        "offset",
        "partition",
        "payload",
        "headers",
        "content_type",
        "priority",
        "published_at",
        "expires_at",
        "dedup_id",
        "trace_id",
        "correlation_id",
    ]
    first, second = by_place(df)
    assert (first.queue, first.lane, first.offset, first.partition) == (queue, 0, 0, "customer-1")
    assert bytes(first.payload) == b"\x00body"
    assert first.headers == {"a": "text", "b": "2", "c": None, "d": "[1]"}
    assert (first.content_type, first.priority) == ("text/plain", 3)
    assert (first.dedup_id, first.trace_id, first.correlation_id) == ("d", "t", "c")
    published = first.published_at.replace(tzinfo=UTC)
    assert before - dt.timedelta(seconds=1) <= published <= dt.datetime.now(UTC)
    assert first.expires_at.replace(tzinfo=UTC) == published + dt.timedelta(seconds=60)
    assert bytes(second.payload) == b""
    nothing = ("partition", "headers", "content_type", "expires_at", "dedup_id", "trace_id", "correlation_id")
    assert [second[name] for name in nothing] == [None] * 7
    assert (second.priority, second.offset) == (0, 1)


def test_columns_that_are_there_for_those_who_name_them(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish(queue, Message(b"x", key="k", delay_ms=7, ttl_ms=9, headers={"n": 2, "f": 1.5, "s": "t"}))
    row = read(spark, server, queue, columns="typed_headers,key,delay_ms,not_before,ttl_ms,queue_id").collect()[0]
    assert (row.key, row.delay_ms, row.not_before, row.ttl_ms) == ("k", 7, None, 9)
    assert row.queue_id == server.client.lanes(queue).queue_id
    kinds = {name: value.kind for name, value in row.typed_headers.items()}
    assert kinds == {"n": "integer", "f": "float", "s": "text"}
    assert (row.typed_headers["n"].integer, row.typed_headers["f"].float) == (2, 1.5)


def test_200_000_messages_of_all_shapes_over_three_lanes(spark: SparkSession, server: Server) -> None:
    server.client.declare_queue("shapes", lanes=3)
    messages = mixed(200_000)
    publish(server.client, "shapes", messages)
    df = read(spark, server, "shapes", minPartitions=5)
    assert df.rdd.getNumPartitions() >= 5
    table = df.select("lane", "offset", "payload", "partition", "dedup_id", "priority").toArrow()
    expected = sorted((m.payload, m.partition or "", m.dedup_id or "", m.priority) for m in messages)
    columns = table.to_pydict()
    found = zip(columns["payload"], columns["partition"], columns["dedup_id"], columns["priority"], strict=True)
    assert sorted((bytes(p), part or "", dedup or "", n) for p, part, dedup, n in found) == expected
    places = sorted(zip(columns["lane"], columns["offset"], strict=True))
    ends = {one.lane: one.end for one in server.client.lanes("shapes").lanes}
    assert places == [(lane, offset) for lane in sorted(ends) for offset in range(ends[lane])]


def test_several_queues_a_list_and_a_pattern(spark: SparkSession, server: Server) -> None:
    for name in ("spark-eu", "spark-us", "spark,odd*"):
        server.client.declare_queue(name)
        server.client.publish(name, Message(name.encode()))
    assert payloads(by_place(read(spark, server, "spark-us,spark-eu"))) == [b"spark-eu", b"spark-us"]
    assert payloads(by_place(read(spark, server, "spark-*"))) == [b"spark-eu", b"spark-us"]
    assert payloads(by_place(read(spark, server, '["spark,odd*"]'))) == [b"spark,odd*"]
    loaded = spark.read.format("penstock").option("url", server.url).load("spark-us")
    assert payloads(loaded.collect()) == [b"spark-us"]


def test_several_nodes_in_the_url(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish(queue, Message(b"x"))
    df = spark.read.format("penstock").options(url=f"http://127.0.0.1:1,{server.url}", queue=queue).load()
    assert df.count() == 1


def test_offsets_and_times(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish_many(queue, [Message(b"%d" % n) for n in range(100)])
    start, end = json.dumps({queue: {"0": 20}}), json.dumps({queue: {"0": 30}})
    df = read(spark, server, queue, startingOffsets=start, endingOffsets=end)
    assert payloads(by_place(df)) == [b"%d" % n for n in range(20, 30)]
    with pytest.raises(PySparkException, match="2100-01-01 00:00:00 UTC has not come yet"):
        read(spark, server, queue, startingTimestamp="2100-01-01T00:00:00Z")
    assert read(spark, server, queue, startingTimestamp="0", endingTimestamp="2100-01-01").count() == 100


def test_a_condition_columns_and_no_payload(spark: SparkSession, server: Server, queue: str) -> None:
    messages = [Message(b"%d" % n, headers={"n": n, "region": "eu" if n % 2 else "us"}) for n in range(1_000)]
    publish(server.client, queue, messages)
    chosen = read(spark, server, queue, where="region = 'eu' AND n < 100", columns="payload,offset", minPartitions=4)
    assert chosen.columns == ["payload", "offset"]
    assert sorted(int(payload) for payload in payloads(chosen.collect())) == list(range(1, 100, 2))
    assert chosen.count() == 50
    assert "payload" not in read(spark, server, queue, includePayload="false").columns
    own = (
        spark.read.format("penstock").schema("offset BIGINT, queue STRING").options(url=server.url, queue=queue).load()
    )
    assert own.columns == ["offset", "queue"]
    assert own.agg({"offset": "max"}).collect()[0][0] == 999


def test_spark_filters_never_leak_into_another_read(spark: SparkSession, server: Server, queue: str) -> None:
    publish(server.client, queue, [Message(b"%d" % n) for n in range(1_000)])
    df = read(spark, server, queue)
    assert df.filter("offset >= 900").count() == 100
    assert df.count() == 1_000
    assert df.filter("offset < 10").union(df.filter("offset >= 900")).count() == 110


def test_the_delivery_state_of_a_group(spark: SparkSession, server: Server, queue: str) -> None:
    client = server.client
    client.declare_group(queue, "workers", max_attempts=1)
    client.declare_group(queue, "keeper")
    client.publish_many(queue, [Message(b"%d" % n) for n in range(30)])
    client.ack(client.claim(queue, group="workers", max=10))
    client.nack(client.claim(queue, group="workers", max=10), error="no")
    states = read(spark, server, queue, group="workers").groupBy("state", "reason").count().collect()
    assert sorted((row.state, row.reason, row["count"]) for row in states) == [
        ("dead", "attempts", 10),
        ("done", None, 10),
        ("ready", None, 10),
    ]


def test_a_dataframe_keeps_the_offsets_of_its_plan(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish(queue, Message(b"1"))
    df = read(spark, server, queue)
    assert df.count() == 1
    server.client.publish(queue, Message(b"2"))
    assert df.count() == 1
    assert read(spark, server, queue).count() == 2


def test_a_view_in_sql(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish_many(queue, [Message(b"%d" % number) for number in range(10)])
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING penstock OPTIONS (url '{server.url}', queue '{queue}')")
    found = spark.sql("SELECT CAST(payload AS STRING) AS text FROM orders WHERE offset > 7 ORDER BY offset").collect()
    assert [row.text for row in found] == ["8", "9"]


def test_an_empty_queue_is_an_empty_table(spark: SparkSession, server: Server, queue: str) -> None:
    assert read(spark, server, queue).collect() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxRowsPerTriger": "5"}, "did you mean maxRowsPerTrigger?"),
        ({"columns": "ofset"}, "did you mean offset?"),
        ({"where": "region ="}, "region ="),
        ({"startingOffsets": "latest"}, "has no rows"),
        ({"maxRowsPerTrigger": "5"}, "is for streams"),
    ],
)
def test_what_is_wrong_is_told_to_the_user(
    spark: SparkSession, server: Server, queue: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as error:
        read(spark, server, queue, **options).collect()
    assert words in str(error.value)


def test_a_gap_is_an_error_or_is_left_out(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish_many(queue, [Message(b"%d" % n) for n in range(10)])
    beyond = json.dumps({queue: {"0": 12}})
    with pytest.raises(PySparkException) as error:
        read(spark, server, queue, endingOffsets=beyond).collect()
    assert f"lane 0 of queue '{queue}', offsets 10 to 11" in str(error.value)
    assert read(spark, server, queue, endingOffsets=beyond, failOnDataLoss="false").count() == 10


def test_a_token(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "penstock.toml").write_text('[http]\ntoken = "secret-token"\n')
    with running_server(folder, "--config", "penstock.toml") as guarded:
        client = Client(guarded.url, token="secret-token")
        client.declare_queue("q")
        client.publish("q", Message(b"x"))
        assert read(spark, guarded, "q", token="secret-token").count() == 1
        with pytest.raises(PySparkException) as error:
            read(spark, guarded, "q", token="wrong").count()
        assert "token" in str(error.value)
        assert "wrong" not in str(error.value)
        client.close()


def test_packed_rows_are_the_same_rows(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish_many(queue, [Message(b"%d" % number, headers={"n": number}) for number in range(300)])
    plain = read(spark, server, queue, columns="offset,payload,headers").orderBy("offset").collect()
    packs = read(spark, server, queue, columns="offset,payload,headers", packed="true")
    assert packs.columns == ["queue", "queue_id", "lane", "rows", "packed"]
    batches = [pa.ipc.open_stream(row["packed"]).read_all() for row in packs.collect()]
    found = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    assert [(row["offset"], row["payload"], row["headers"]) for row in found] == [
        (row["offset"], bytes(row["payload"]), row["headers"]) for row in plain
    ]
    assert len(found) == 300
