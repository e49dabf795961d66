"""What is measured of Penstock: reading a queue, writing one, archiving it, small micro-batches, the way through.

Each workload takes the bench with its filled queue and gives rows. Ids are in the first eight bytes of the payloads;
what is checked of them is not in the time.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import penstock
from bench.peers_lib.payloads import Source, percentile
from bench.peers_lib.penstock_http import Penstock
from bench.spark_lib.measuring import Row, timed
from penstock.batch import encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE: Final = "bench"
PAYLOAD_BYTES: Final = 200
LOAD_BATCH: Final = 1_000
SMALL_BATCH: Final = 1_000
SMALL_BATCHES: Final = 60
WARM_UP: Final = 10
"""Micro-batches that are left out: the first ones load classes."""
WARM_UP_ROWS: Final = 500_000
RATE: Final = 2_000
RATE_SECONDS: Final = 20.0
TICK_S: Final = 0.01
_id: Final = struct.Struct("<QQ").unpack_from


class Bench:
    """A server with a full queue, and a Spark session."""

    def __init__(self, spark: SparkSession, folder: Path, count: int, server: Penstock) -> None:
        self.spark = spark
        self.folder = folder
        self.count = count
        self.server = server

    def __enter__(self) -> Bench:
        (self.folder / "server").mkdir()
        self.server.start(self.folder / "server")
        self.client = penstock.Client(self.url)
        self.fill(QUEUE, self.count)
        # One read first, which is not measured: the session's first jobs load and compile classes and start Python.
        some = f'{{"{QUEUE}":{{"0":{min(self.count, WARM_UP_ROWS)}}}}}'
        self.read(endingOffsets=some).count()
        self.read(endingOffsets=some).write.format("noop").mode("append").save()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def fill(self, queue: str, count: int) -> None:
        self.client.declare_queue(queue)
        self.client.declare_group(queue, "kept")  # somebody who has not read it: nothing is trimmed
        source = Source("random", PAYLOAD_BYTES)
        while source.next_id < count:
            messages = [
                penstock.Message(payload) for payload in source.payloads(min(LOAD_BATCH, count - source.next_id))
            ]
            self.client.publish_batch(queue, encode(messages))

    def read(self, queue: str = QUEUE, **options: str) -> DataFrame:
        return self.spark.read.format("penstock").options(url=self.url, queue=queue, **options).load()

    def stream(self, queue: str = QUEUE, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("penstock")
        return reader.options(url=self.url, queue=queue, startingOffsets="earliest", **options).load()

    def parquet(self) -> DataFrame:
        """The same payloads as a file: what both sinks are fed from."""
        place = self.folder / "payloads"
        if not place.exists():
            self.read().select("offset", "payload").write.parquet(str(place))
        return self.spark.read.parquet(str(place))


def wrong_ids(frame: DataFrame, count: int) -> str:
    """What is wrong with the ids in the payloads of a frame that should have each of them once; empty if nothing is."""
    ids = frame.selectExpr("substring(payload, 1, 8) AS id", "length(payload) AS bytes")
    found = ids.selectExpr("count(*) AS n", "count(DISTINCT id) AS ids", "min(bytes)", "max(bytes)").first()
    assert found is not None
    if tuple(found) == (count, count, PAYLOAD_BYTES, PAYLOAD_BYTES):
        return ""
    return f"{found[0]:,} rows with {found[1]:,} ids of {found[2]} to {found[3]} bytes, expected {count:,}"


# Reading -------------------------------------------------------------------------------------------------


def read_count(bench: Bench) -> list[Row]:
    """count() over a queue, with payloads and without"""
    rows = []
    for name, options in (("read-count", {}), ("read-count-meta", {"includePayload": "false"})):
        frame = bench.read(**options)
        with timed(name, bench.count, bench.server.roots) as row:
            counted = frame.count()
        row.wrong = "" if counted == bench.count else f"{counted:,} rows counted of {bench.count:,}"
        rows.append(row)
    return rows


def read_all(bench: Bench) -> list[Row]:
    """every column of a queue, given to Spark and thrown away"""
    frame = bench.read()
    with timed("read-all", bench.count, bench.server.roots) as row:
        frame.write.format("noop").mode("append").save()
    row.wrong = wrong_ids(bench.read(), bench.count)
    return [row]


# Writing -------------------------------------------------------------------------------------------------


def write(bench: Bench) -> list[Row]:
    """a DataFrame (of a Parquet file) into a queue"""
    frame = bench.parquet().select("payload")
    bench.client.declare_queue("written")
    bench.client.declare_group("written", "kept")
    with timed("write", bench.count, bench.server.roots) as row:
        frame.write.format("penstock").options(url=bench.url, queue="written").mode("append").save()
    row.wrong = wrong_ids(bench.read("written"), bench.count)
    bench.client.delete_queue("written")
    return [row]


def archive(bench: Bench) -> list[Row]:
    """a queue into the lake: Parquet under a Delta log, fsynced"""
    from penstock.spark import read_lake
    from penstock.spark.jobs.archive import job
    from penstock.spark.jobs.frame import Progress

    lake = str(bench.folder / "lake")
    options = job.ArchiveOptions(url=bench.url, lake=lake, queues=QUEUE)
    with timed("archive", bench.count, bench.server.roots) as row, Progress("archive", "bench") as progress:
        progress.finish(job.run(bench.spark, options, progress))
    row.wrong = wrong_ids(read_lake(bench.spark, lake), bench.count)
    return [row]


# Streams -------------------------------------------------------------------------------------------------


def micro_batch(bench: Bench) -> list[Row]:
    """micro-batches of 1,000 rows: what each of them costs besides its rows"""
    count = SMALL_BATCH * SMALL_BATCHES
    bench.fill("small", count)
    frame = bench.stream("small", maxRowsPerTrigger=str(SMALL_BATCH))
    times: list[float] = []
    with timed("micro-batch", count, bench.server.roots) as row:
        query = frame.writeStream.format("noop").trigger(availableNow=True)
        running = query.option("checkpointLocation", str(bench.folder / "small")).start()
        running.awaitTermination()
    progress = [_batch(one) for one in running.recentProgress]
    times = [ms for rows, ms in progress if rows][WARM_UP:]
    done = sum(rows for rows, _ in progress)
    row.wrong = "" if done == count else f"{done:,} rows in the micro-batches, expected {count:,}"
    row.numbers = {"p50 ms": median(times), "p95 ms": percentile(times, 0.95)}
    return [row]


def _batch(progress: Any) -> tuple[int, float]:
    return progress["numInputRows"], float(progress["durationMs"]["triggerExecution"])


def latency(bench: Bench) -> list[Row]:
    """2,000 messages a second: from publish to the end of the micro-batch that has them"""
    bench.client.declare_queue("steady")
    count = int(RATE * RATE_SECONDS)
    seen: list[tuple[int, float]] = []

    def take(frame: DataFrame, _batch_id: int) -> None:
        payloads = [bytes(one["payload"]) for one in frame.select("payload").collect()]
        now = time.monotonic_ns()
        seen.extend((number, (now - stamp) / 1e6) for number, stamp in map(_id, payloads))

    query = bench.stream("steady").writeStream.foreachBatch(take)
    running = query.option("checkpointLocation", str(bench.folder / "steady")).start()
    try:
        publisher = threading.Thread(target=_publish_steadily, args=(bench.url, "steady", count), daemon=True)
        with timed("latency-2000", count, bench.server.roots) as row:
            publisher.start()
            publisher.join()
            deadline = time.monotonic() + 60
            while len(seen) < count and time.monotonic() < deadline and running.isActive:
                time.sleep(0.05)
    finally:
        running.stop()
    # The first seconds load classes; they are no steady state.
    times = [ms for number, ms in seen if number > count // 4]
    ids = [number for number, _ in seen]
    row.wrong = "" if sorted(ids) == list(range(count)) else f"{len(ids):,} messages came of {count:,}"
    row.numbers = {"p50 ms": percentile(times, 0.5), "p99 ms": percentile(times, 0.99)}
    return [row]


def _publish_steadily(url: str, queue: str, count: int) -> None:
    source = Source("random", PAYLOAD_BYTES)
    with contextlib.closing(penstock.Client(url)) as client:
        began = time.monotonic()
        while source.next_id < count:
            due = min(count, int((time.monotonic() - began) * RATE)) - source.next_id
            if due > 0:
                client.publish_many(queue, [penstock.Message(payload) for payload in source.payloads(due)])
            time.sleep(TICK_S)


WORKLOADS: Final[dict[str, Callable[[Bench], list[Row]]]] = {
    "read-count": read_count,
    "read-all": read_all,
    "write": write,
    "archive": archive,
    "micro-batch": micro_batch,
    "latency": latency,
}
