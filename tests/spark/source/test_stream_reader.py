"""`spark.readStream.format("penstock")`: batches, restarts, lost files of the checkpoint, gaps, cursors, new queues."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Client, Message
from penstock.spark import source_metrics
from tests.spark.rig import PATIENCE_S, Server, until

pytestmark = pytest.mark.timeout(300)  # real queries on a machine that may be busy with others

Batches = dict[int, list[tuple[str, int, int]]]
"""By batch id: (queue, lane, offset) of its rows, sorted. A batch that is run again replaces itself."""


def stream(spark: SparkSession, server: Server, queue: str, **options: object) -> DataFrame:
    given = {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
    return spark.readStream.format("penstock").options(url=server.url, queue=queue, **given).load()


def started(
    df: DataFrame, checkpoint: Path, batches: Batches, fault: Callable[[int], None] | None = None, **trigger: Any
) -> StreamingQuery:
    def collect(rows: DataFrame, batch: int) -> None:
        batches[batch] = sorted((row.queue, row.lane, row.offset) for row in rows.collect())
        if fault is not None:
            fault(batch)

    writer = df.select("queue", "lane", "offset").writeStream.foreachBatch(collect)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def now(df: DataFrame, checkpoint: Path, batches: Batches) -> StreamingQuery:
    """Run until what is there has been read."""
    query = started(df, checkpoint, batches, availableNow=True)
    assert query.awaitTermination(int(PATIENCE_S))
    return query


def filled(client: Client, queue: str, count: int, chunk: int = 100) -> None:
    for low in range(0, count, chunk):
        messages = [Message(b"%d" % number, partition=str(number)) for number in range(low, min(low + chunk, count))]
        client.publish_many(queue, messages)


def places(client: Client, *queues: str) -> list[tuple[str, int, int]]:
    """Everything that is in the log."""
    return sorted(
        (queue, lane.lane, offset)
        for queue in queues
        for lane in client.lanes(queue).lanes
        for offset in range(lane.first, lane.end)
    )


def all_rows(batches: Batches) -> list[tuple[str, int, int]]:
    return sorted(itertools.chain(*batches.values()))


def test_available_now_in_several_batches_and_then_what_is_new(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    server.client.declare_queue("now", lanes=3)
    filled(server.client, "now", 1_000)
    batches: Batches = {}
    query = now(stream(spark, server, "now", maxRowsPerTrigger=300), tmp_path, batches)
    assert [len(rows) for rows in batches.values()] == [300, 300, 300, 100]
    assert all_rows(batches) == places(server.client, "now")
    progress = [one for one in query.recentProgress if one.numInputRows]
    assert [one.numInputRows for one in progress] == [300, 300, 300, 100]
    assert progress[0].sources[0].latestOffset == progress[-1].sources[0].endOffset
    filled(server.client, "now", 50)
    now(stream(spark, server, "now"), tmp_path, batches)
    assert len(batches[4]) == 50
    assert all_rows(batches) == places(server.client, "now")
    # Options of the start are for new queries only.
    now(stream(spark, server, "now", startingOffsets="latest"), tmp_path, batches)
    assert all_rows(batches) == places(server.client, "now")


def test_lost_files_of_the_checkpoint_lose_no_rows(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    filled(server.client, queue, 500)
    batches: Batches = {}
    now(stream(spark, server, queue, maxRowsPerTrigger=200), tmp_path, batches)
    assert [len(rows) for rows in batches.values()] == [200, 200, 100]
    before = batches[2]

    # The commit of the last batch was lost: the same batch again, whatever has come since.
    removed(tmp_path, "commits", 2)
    filled(server.client, queue, 100)
    again: Batches = {}
    now(stream(spark, server, queue), tmp_path, again)
    assert list(again) == [2, 3]
    assert again[2] == before
    assert len(again[3]) == 100

    # Its plan was lost too: planned again from where the batch before it ended.
    for batch in (2, 3):
        removed(tmp_path, "commits", batch)
        removed(tmp_path, "offsets", batch)
    replanned: Batches = {}
    now(stream(spark, server, queue), tmp_path, replanned)
    assert all_rows(replanned) == places(server.client, queue)[400:]

    # All of it was lost.
    shutil.rmtree(tmp_path)
    anew: Batches = {}
    now(stream(spark, server, queue), tmp_path, anew)
    assert all_rows(anew) == places(server.client, queue)


def removed(checkpoint: Path, what: str, batch: int) -> None:
    (checkpoint / what / str(batch)).unlink()
    (checkpoint / what / f".{batch}.crc").unlink(missing_ok=True)


def test_a_batch_that_fails_is_the_same_batch_again(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    filled(server.client, queue, 300)
    failed: Batches = {}

    def fail(batch: int) -> None:
        if batch == 1:
            raise RuntimeError("on purpose")

    query = started(stream(spark, server, queue, maxRowsPerTrigger=100), tmp_path, failed, fail, availableNow=True)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        query.awaitTermination(int(PATIENCE_S))
    batches: Batches = {0: failed[0]}
    now(stream(spark, server, queue, maxRowsPerTrigger=10_000), tmp_path, batches)
    assert batches[1] == failed[1]
    assert all_rows(batches) == places(server.client, queue)


def test_a_running_stream_sees_new_queues_and_shows_its_progress(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    client = server.client
    client.declare_queue("live-1")
    filled(client, "live-1", 100)
    batches: Batches = {}
    df = stream(spark, server, "live-*", startingOffsets="latest", cursor="live-report", maxRowsPerTrigger=40)
    query = started(df, tmp_path, batches, processingTime="0 seconds")
    try:
        until(lambda: "live-report" in client.groups("live-1"), "the cursor is there")
        until(lambda: query.status["isDataAvailable"] is False, "the stream waits")
        filled(client, "live-1", 50)
        client.declare_queue("live-2", lanes=2)
        filled(client, "live-2", 70)
        wanted = [*places(client, "live-1")[100:], *places(client, "live-2")]
        until(lambda: all_rows(batches) == wanted, "all rows of both queues")
        until(lambda: lags(client, "live-1", "live-2") == [0, 0], "the cursor has come to the end")
        assert query.lastProgress is not None
    finally:
        query.stop()
    assert query.exception() is None
    # Nothing twice, nothing of before the start.
    assert len(set(all_rows(batches))) == len(all_rows(batches)) == 120


def lags(client: Client, *queues: str) -> list[int]:
    return [group.lag for queue in queues for group in client.stats(queue).groups if group.group == "live-report"]


def test_the_cursor_is_at_the_end_after_available_now(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    filled(server.client, queue, 100)
    now(stream(spark, server, queue, cursor="live-report", maxRowsPerTrigger=30), tmp_path, {})
    assert lags(server.client, queue) == [0]


def test_a_batch_waits_for_its_minimum(spark: SparkSession, server: Server, queue: str, tmp_path: Path) -> None:
    batches: Batches = {}
    df = stream(spark, server, queue, minRowsPerTrigger=20, maxTriggerDelay="1h")
    query = started(df, tmp_path, batches, processingTime="0 seconds")
    try:
        filled(server.client, queue, 10)
        until(lambda: query.status["isDataAvailable"] is False and not query.status["isTriggerActive"], "it waits")
        assert batches == {}
        filled(server.client, queue, 10)
        until(lambda: bool(batches), "a batch")
    finally:
        query.stop()
    assert batches == {0: places(server.client, queue)}


def test_bytes_bound_a_batch(spark: SparkSession, server: Server, queue: str, tmp_path: Path) -> None:
    filled(server.client, queue, 1_000)
    size = server.client.lanes(queue).lanes[0].bytes
    batches: Batches = {}
    now(stream(spark, server, queue, maxBytesPerTrigger=size // 4), tmp_path, batches)
    assert 4 <= len(batches) <= 6
    assert all_rows(batches) == places(server.client, queue)


def test_a_gap_stops_a_stream_or_is_counted(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    client = server.client
    client.declare_queue("short", retain_messages=100)
    filled(client, "short", 100)
    batches: Batches = {}
    now(stream(spark, server, "short"), tmp_path, batches)
    filled(client, "short", 500)
    until(lambda: client.lanes("short").lanes[0].first == 500, "retention")
    query = started(stream(spark, server, "short"), tmp_path, batches, availableNow=True)
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination(int(PATIENCE_S))
    assert "lane 0 of queue 'short', offsets 100 to 499: removed by retention" in str(error.value)
    assert "failOnDataLoss=false" in str(error.value)
    lenient = now(stream(spark, server, "short", failOnDataLoss="false"), tmp_path, batches)
    assert all_rows(batches) == [("short", 0, offset) for offset in [*range(100), *range(500, 600)]]
    end = json.loads(lenient.recentProgress[-1].sources[0].endOffset)
    assert end["queues"]["short"]["lost"] == 400


@pytest.mark.parametrize("change", ["another queue", "declared again"])
def test_a_checkpoint_that_is_not_of_this_queue(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path, change: str
) -> None:
    filled(server.client, queue, 10)
    now(stream(spark, server, queue), tmp_path, {})
    if change == "another queue":
        other = f"{queue}-other"
    else:
        server.client.delete_queue(queue)
        other = queue
    server.client.declare_queue(other)
    filled(server.client, other, 20)
    query = started(stream(spark, server, other), tmp_path, {}, availableNow=True)
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination(int(PATIENCE_S))
    assert f"queue '{queue}'" in str(error.value)
    assert ("does not choose it" if change == "another queue" else "declared again") in str(error.value)
    batches: Batches = {}
    now(stream(spark, server, other, failOnDataLoss="false"), tmp_path, batches)
    assert all_rows(batches) == places(server.client, other)


def test_a_wrong_option_stops_the_query_with_words(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    query = started(stream(spark, server, queue, endingOffsets="latest"), tmp_path, {}, availableNow=True)
    with pytest.raises(StreamingQueryException, match="is for batch reads: a stream goes on"):
        query.awaitTermination(int(PATIENCE_S))


def test_the_progress_tells_how_far_behind_the_stream_is(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    filled(server.client, queue, 250)
    query = now(stream(spark, server, queue, maxRowsPerTrigger=100), tmp_path / "checkpoint", {})
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    behind = [source_metrics(report)[0].backlog for report in reports]
    assert behind == [{queue: {0: 150}}, {queue: {0: 50}}, {queue: {0: 0}}]
    assert source_metrics(reports[0])[0].as_texts()["maxOffsetsBehindLatest"] == "150"


def interfaces(spark: SparkSession, name: str) -> set[str]:
    """What a class of Spark's implements, its parents included."""
    jvm: Any = spark._jvm
    found: set[str] = set()
    kind = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    while kind is not None:
        found |= {one.getSimpleName() for one in kind.getInterfaces()}
        kind = kind.getSuperclass()
    return found


def test_what_spark_does_not_ask_python_sources_yet(spark: SparkSession) -> None:
    """When this fails, Spark has learnt it: fill `metrics` of the progress, and prune columns without being told."""
    package = "org.apache.spark.sql.execution.datasources.v2.python"
    assert "SupportsPushDownRequiredColumns" not in interfaces(spark, f"{package}.PythonScanBuilder")
    assert "ReportsSourceMetrics" not in interfaces(spark, f"{package}.PythonMicroBatchStreamWithAdmissionControl")
