"""A server that is killed and started again in the middle of a read: the read goes on, with every row once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from penstock import Client, Message
from tests.spark.rig import PATIENCE_S, Server, running_server, until

pytestmark = pytest.mark.timeout(300)  # real queries on a machine that may be busy with others

MESSAGES = 12_000
PAYLOAD_BYTES = 2_000


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Server]:
    """A server that gives scans 6 MB a second: a read of its queue of 24 MB takes some seconds."""
    (tmp_path / "penstock.toml").write_text("[limits]\nscan_bytes_per_second = 6000000\n")
    with running_server(tmp_path, "--config", "penstock.toml") as server:
        chance = random.Random(3)
        server.client.declare_queue("large", lanes=2)
        for low in range(0, MESSAGES, 500):
            messages = [
                Message(b"%08d" % number + chance.randbytes(PAYLOAD_BYTES), partition=str(number))
                for number in range(low, low + 500)
            ]
            server.client.publish_many("large", messages)
        yield server


def test_a_batch_read_over_a_killed_server(spark: SparkSession, slow: Server, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    found: list[Row] = []
    df = spark.read.format("penstock").options(url=slow.url, queue="large", columns="lane,offset,payload").load()
    marked = df.rdd.mapPartitions(marking(begun))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.extend(marked.collect())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: begun.exists() or not thread.is_alive(), "the first rows")
    assert thread.is_alive(), failures
    slow.restart()
    thread.join(PATIENCE_S)
    assert failures == []
    assert sorted(int(bytes(row.payload[:8])) for row in found) == list(range(MESSAGES))
    assert len({(row.lane, row.offset) for row in found}) == MESSAGES


def marking(begun: Path) -> Callable[[Iterable[Row]], Iterator[Row]]:
    """Passes rows on, and leaves a file when the first of them have come."""

    def mark(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            begun.touch()
            yield row

    return mark


def test_a_stream_over_a_killed_server(spark: SparkSession, slow: Server, tmp_path: Path) -> None:
    options = {"url": slow.url, "queue": "large", "startingOffsets": "earliest", "maxRowsPerTrigger": "3000"}
    df = spark.readStream.format("penstock").options(**options).load().select("lane", "offset")
    rows: dict[int, set[tuple[int, int]]] = {}
    writer = df.writeStream.foreachBatch(
        lambda batch, number: rows.__setitem__(number, {(row.lane, row.offset) for row in batch.collect()})
    )
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    until(lambda: bool(rows) or not query.isActive, "the first batch")
    assert query.isActive, query.exception()
    slow.restart()
    assert query.awaitTermination(int(PATIENCE_S))
    places = {(one.lane, offset) for one in Client(slow.url).lanes("large").lanes for offset in range(one.end)}
    assert sum(len(found) for found in rows.values()) == MESSAGES == len(places)
    assert set().union(*rows.values()) == places
