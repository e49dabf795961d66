"""`df.write.format("penstock")` with a real Spark session: every column, refusals, tasks that fail and are retried."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import Message
from tests.spark.rig import Server
from tests.spark.sink_rig import all_messages, payloads

pytestmark = pytest.mark.timeout(300)
"""The first use of Spark's Python workers takes long on a busy machine."""


def write(rows: DataFrame, server: Server, **options: str) -> None:
    rows.write.format("penstock").options(url=server.url, **options).mode("append").save()


def test_every_column_of_a_message(spark: SparkSession, server: Server, queue: str) -> None:
    moment = dt.datetime(2030, 5, 6, 7, 8, 9, 123_000, dt.UTC)
    rows = spark.createDataFrame(
        [
            (
                bytearray(b"\x00\xff"),
                "p-1",
                "k-1",
                {"region": "eu", "none": None},
                7,
                1.5,
                moment,
                60.25,
                "d-1",
                "application/json",
                "c-1",
                "t-1",
            ),
            (bytearray(b""), None, None, None, None, None, None, None, None, None, None, None),
        ],
        "payload binary, partition string, key string, headers map<string,string>, priority int, delay double, "
        "not_before timestamp, ttl double, dedup_id string, content_type string, correlation_id string, "
        "trace_id string",
    )
    write(rows.coalesce(1), server, queue=queue)
    assert all_messages(server.client, queue) == [
        Message(
            b"\x00\xff",
            partition="p-1",
            key="k-1",
            headers={"region": "eu", "none": None},
            priority=7,
            delay_ms=1_500,
            not_before_ms=round(moment.timestamp() * 1_000),
            ttl_ms=60_250,
            dedup_id="d-1",
            content_type="application/json",
            correlation_id="c-1",
            trace_id="t-1",
        ),
        Message(b""),
    ]


def test_texts_intervals_and_milliseconds(spark: SparkSession, server: Server, queue: str) -> None:
    rows = spark.sql("SELECT 'süß' AS payload, INTERVAL '90' SECOND AS delay, 250L AS ttl_ms, NULL AS partition")
    write(rows, server, queue=queue)
    assert all_messages(server.client, queue) == [Message("süß".encode(), delay_ms=90_000, ttl_ms=250)]


def test_typed_headers_go_through_without_loss(spark: SparkSession, server: Server, queue: str) -> None:
    copy = f"{queue}-copy"
    server.client.declare_queue(copy)
    headers = {
        "null": None,
        "boolean": True,
        "integer": 2**60,
        "float": 0.1,
        "text": "ä",
        "bytes": b"\x00",
        "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "nested": {"list": [1, "a", None]},
    }
    sent = [Message(b"1", headers=headers, key="k", ttl_ms=86_400_000), Message(b"2")]
    server.client.publish_many(queue, sent)
    read = spark.read.format("penstock").options(
        url=server.url, queue=queue, columns="payload,typed_headers,headers,key"
    )
    write(read.load(), server, queue=copy)
    found = all_messages(server.client, copy)
    assert found[0].headers == headers
    assert [message.key for message in found] == ["k", None]
    assert found[1].headers is None


def test_what_a_read_gives_can_be_written(spark: SparkSession, server: Server, queue: str) -> None:
    """The source's own columns are in the way of nothing."""
    copy = f"{queue}-copy"
    server.client.declare_queue(copy)
    sent = [Message(str(number).encode(), partition=f"p{number % 3}", priority=number % 5) for number in range(100)]
    server.client.publish_many(queue, sent)
    write(spark.read.format("penstock").options(url=server.url, queue=queue).load(), server, queue=copy)
    assert all_messages(server.client, copy) == sent


def test_an_exchange_routes_by_column_and_by_option(spark: SparkSession, server: Server, queue: str) -> None:
    exchange = f"{queue}-topic"
    server.client.declare_exchange(exchange, kind="topic")
    server.client.bind(exchange, queue, pattern="orders.#")
    rows = spark.sql("SELECT * FROM VALUES ('1', 'orders.eu'), ('2', 'other') AS t(payload, routing_key)")
    write(rows, server, exchange=exchange)
    write(rows.drop("routing_key"), server, exchange=exchange, routingKey="orders.us")
    found = all_messages(server.client, queue)
    assert sorted((message.payload, message.key) for message in found) == [
        (b"1", "orders.eu"),
        (b"1", "orders.us"),
        (b"2", "orders.us"),
    ]


def test_sorted_rows_keep_their_order(spark: SparkSession, server: Server, queue: str) -> None:
    rows = (
        spark.range(0, 30_000, numPartitions=4)
        .orderBy(F.desc("id"))
        .select(F.col("id").cast("string").alias("payload"))
    )
    write(rows, server, queue=queue)
    assert payloads(server.client, queue) == [str(number) for number in reversed(range(30_000))]


def test_a_transaction_id_writes_once(spark: SparkSession, server: Server, queue: str) -> None:
    rows = spark.range(1_000).select(F.col("id").cast("string").alias("payload"))
    for _ in range(2):
        write(rows, server, queue=queue, transactionId=f"{queue}-daily")
    assert sorted(map(int, payloads(server.client, queue))) == list(range(1_000))


def test_tasks_that_fail_and_are_retried(spark: SparkSession, server: Server, queue: str) -> None:
    """Of two partitions the first two attempts fail, late: when chunks of them are staged already."""

    def name(number: int) -> str:  # made here, it travels to the workers by value
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() % 2 and context.attemptNumber() < 2 and number % 30_000 == 25_000:
            raise RuntimeError("a task that fails on purpose")
        return str(number)

    rows = spark.range(0, 120_000, numPartitions=4).select(F.udf(name, "string", useArrow=False)("id").alias("payload"))
    write(rows, server, queue=queue)
    assert payloads(server.client, queue) == [str(number) for number in range(120_000)]


def test_a_write_whose_tasks_fail_publishes_nothing(spark: SparkSession, server: Server, queue: str) -> None:
    rows = spark.range(0, 50_000, numPartitions=2).selectExpr(
        "if(id = 49999, raise_error('bad row'), string(id)) AS payload"
    )
    with pytest.raises(Exception, match="bad row"):
        write(rows, server, queue=queue)
    assert payloads(server.client, queue) == []


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("'a' AS payload, 1 AS color", {"queue": "q"}, "no column 'color'"),
        ("1 AS payload", {"queue": "q"}, "column payload is of type int"),
        ("'a' AS payload", {}, "nothing says where the rows shall go"),
        ("'a' AS payload", {"queue": "q", "colour": "red"}, "no option 'colour'"),
    ],
)
def test_refused_before_a_row_is_read(
    spark: SparkSession, server: Server, select: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        write(spark.sql(f"SELECT {select}"), server, **options)


def test_only_append(spark: SparkSession, server: Server, queue: str) -> None:
    rows = spark.sql("SELECT 'a' AS payload").write.format("penstock").options(url=server.url, queue=queue)
    with pytest.raises(AnalysisException, match="can only be written with mode"):
        rows.mode("overwrite").save()
    with pytest.raises(AnalysisException, match="Append"):
        rows.mode("ignore").save()
