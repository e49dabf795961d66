"""`df.writeStream.format("penstock")`: exactly once, whatever happens to commits, checkpoint files and the server."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from penstock import Message
from penstock.spark.source.source import PenstockSource
from tests.spark.rig import Server, until
from tests.spark.sink_rig import all_messages, payloads

pytestmark = pytest.mark.timeout(300)
"""The first use of Spark's Python workers takes long on a busy machine."""


class Copy:
    """A query from one queue to another that runs to the end of what there is, as often as it is told to."""

    def __init__(self, spark: SparkSession, server: Server, target: str, folder: Path) -> None:
        self.spark = spark
        self.server = server
        self.source = f"{target}-source"
        self.target = target
        self.checkpoint = folder / "checkpoint"
        self.format = "penstock"
        self.options: dict[str, str] = {}
        self.rows_per_batch = 1_000
        self.change: Callable[[DataFrame], DataFrame] = lambda rows: rows
        server.client.declare_queue(self.source, lanes=2)
        self._sent = 0

    def send(self, count: int) -> None:
        """More messages, over both lanes."""
        numbers = range(self._sent, self._sent + count)
        self.server.client.publish_many(
            self.source, [Message(str(number).encode(), partition=f"p{number % 7}") for number in numbers]
        )
        self._sent += count

    def run(self) -> None:
        query = self.start()
        query.awaitTermination()

    def start(self) -> Any:
        rows = (
            self.spark.readStream.format("penstock")
            .options(url=self.server.url, queue=self.source, startingOffsets="earliest")
            .option("maxRowsPerTrigger", self.rows_per_batch)
            .load()
        )
        writer = self.change(rows).writeStream.format(self.format).options(url=self.server.url, queue=self.target)
        return (
            writer.options(checkpointLocation=str(self.checkpoint), **self.options).trigger(availableNow=True).start()
        )

    def forget(self, *names: str) -> None:
        """Delete files of the checkpoint, with their checksums."""
        for name in names:
            path = self.checkpoint / name
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    @property
    def last_batch(self) -> int:
        return max(int(path.name) for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit())

    def check(self) -> None:
        """Every message that was sent is there once, and those of a partition are in order."""
        found = all_messages(self.server.client, self.target)
        assert sorted(int(message.payload) for message in found) == list(range(self._sent))
        for partition in {message.partition for message in found}:
            numbers = [int(message.payload) for message in found if message.partition == partition]
            assert numbers == sorted(numbers), f"out of order in {partition}"


@pytest.fixture
def copy(spark: SparkSession, server: Server, queue: str, tmp_path: Path) -> Iterator[Copy]:
    made = Copy(spark, server, queue, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()


def failing_source(folder: Path, when: str) -> type[PenstockSource]:
    """The data source with a sink of which one commit fails, before or after it has done its work."""
    flag = folder / "fail"
    flag.touch()

    class FailingSource(PenstockSource):
        @classmethod
        def name(cls) -> str:
            return f"penstock-failing-{when}"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            writer = super().streamWriter(schema, overwrite)
            commit = writer.commit

            def failing_commit(messages: list[Any], batchId: int) -> None:
                if when == "after":
                    commit(messages, batchId)
                if flag.exists():
                    flag.unlink()
                    raise RuntimeError(f"a commit that fails {when} its work, on purpose")
                if when == "before":
                    commit(messages, batchId)

            writer.commit = failing_commit  # type: ignore[method-assign]
            return writer

    return FailingSource


def without_source(rows: DataFrame) -> DataFrame:
    return rows.select("payload", "partition")


# identity=source -----------------------------------------------------------------------------------------


def test_a_copy_in_several_batches(copy: Copy) -> None:
    copy.send(3_500)
    copy.run()
    copy.check()
    assert copy.last_batch >= 3
    copy.send(100)
    copy.run()
    copy.check()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_raises(copy: Copy, tmp_path: Path, when: str) -> None:
    source = failing_source(tmp_path, when)
    copy.spark.dataSource.register(source)
    copy.format = source.name()
    copy.send(2_500)
    with pytest.raises(StreamingQueryException, match=f"fails {when} its work"):
        copy.run()
    done = len(payloads(copy.server.client, copy.target))
    assert (done > 0) == (when == "after")
    copy.run()
    copy.check()


def test_a_removed_commit_file(copy: Copy) -> None:
    copy.send(2_500)
    copy.run()
    copy.forget(f"commits/{copy.last_batch}")
    copy.send(700)
    copy.run()
    copy.check()


def test_removed_offset_and_commit_files_and_more_data(copy: Copy) -> None:
    """Spark plans the last batch anew, with what has come since: a sink that looks at numbers of batches loses rows."""
    copy.rows_per_batch = 100_000
    copy.send(2_000)
    copy.run()
    last = copy.last_batch
    copy.send(1_500)
    copy.forget(f"offsets/{last}", f"commits/{last}")
    copy.run()
    assert copy.last_batch == last
    copy.check()


def test_several_lost_batches_and_smaller_ones_after_it(copy: Copy) -> None:
    copy.send(4_000)
    copy.run()
    last = copy.last_batch
    for number in range(last - 2, last + 1):
        copy.forget(f"offsets/{number}", f"commits/{number}")
    copy.send(500)
    copy.rows_per_batch = 300
    copy.run()
    copy.check()


def test_a_deleted_checkpoint(copy: Copy) -> None:
    copy.send(2_500)
    copy.run()
    shutil.rmtree(copy.checkpoint)
    copy.send(700)
    copy.rows_per_batch = 600
    copy.run()
    copy.check()


def test_a_sink_name_survives_a_checkpoint_elsewhere(copy: Copy) -> None:
    copy.options = {"sinkName": f"{copy.target}-copy"}
    copy.send(1_200)
    copy.run()
    copy.checkpoint = copy.checkpoint.with_name("another")
    copy.send(300)
    copy.run()
    copy.check()


def test_rows_that_are_filtered_and_split(copy: Copy) -> None:
    """Some messages give no row, some give two; the checkpoint is lost all the same."""

    def halves(rows: DataFrame) -> DataFrame:
        number = F.col("payload").cast("string").cast("int")
        parts = F.when(number % 5 == 0, F.array(F.lit("a"), F.lit("b"))).otherwise(F.array(F.lit("a")))
        return rows.where(number % 3 == 0).withColumn("key", F.explode(parts))

    copy.change = halves
    copy.send(1_500)
    copy.run()
    shutil.rmtree(copy.checkpoint)
    copy.send(600)
    copy.run()
    found = sorted((int(message.payload), message.key) for message in all_messages(copy.server.client, copy.target))
    numbers = range(0, 2_100, 3)
    assert found == sorted([(n, "a") for n in numbers] + [(n, "b") for n in numbers if n % 5 == 0])


@pytest.mark.timeout(180)
def test_a_server_that_is_killed_in_the_middle(copy: Copy) -> None:
    copy.send(30_000)
    copy.rows_per_batch = 2_000
    query = copy.start()
    for share in (3_000, 12_000):
        until(lambda share=share: copy.server.client.lanes(copy.target).lanes[0].end > share, "some of it is there")  # type: ignore[misc]
        copy.server.restart()
    query.awaitTermination()
    copy.check()


# identity=batch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_raises_without_source_offsets(copy: Copy, tmp_path: Path, when: str) -> None:
    source = failing_source(tmp_path, when)
    copy.spark.dataSource.register(source)
    copy.format = source.name()
    copy.change = without_source
    copy.send(2_500)
    with pytest.raises(StreamingQueryException, match=f"fails {when} its work"):
        copy.run()
    copy.run()
    copy.check()


def test_a_removed_commit_file_without_source_offsets(copy: Copy) -> None:
    copy.change = without_source
    copy.send(2_500)
    copy.run()
    copy.forget(f"commits/{copy.last_batch}")
    copy.send(700)
    copy.run()
    copy.check()


def test_a_batch_planned_anew_without_source_offsets_is_an_error(copy: Copy) -> None:
    """What is new in it cannot be told from what is not: nothing may be lost in silence."""
    copy.change = without_source
    copy.rows_per_batch = 100_000
    copy.send(2_000)
    copy.run()
    last = copy.last_batch
    copy.send(1_500)
    copy.forget(f"offsets/{last}", f"commits/{last}")
    with pytest.raises(StreamingQueryException, match=r"batch \d+ of this query was written before with 2000 rows"):
        copy.run()
    assert len(payloads(copy.server.client, copy.target)) == 2_000


def test_an_aggregation_with_a_watermark(copy: Copy) -> None:
    """Windows come out when a later message has passed them, each once."""

    def counts(rows: DataFrame) -> DataFrame:
        counted = (
            rows.withWatermark("published_at", "0 seconds").groupBy(F.window("published_at", "1 millisecond")).count()
        )
        return counted.select(F.to_json(F.struct("window.start", "count")).alias("payload"))

    copy.change = counts
    for _ in range(4):
        now_ms = int(time.time() * 1_000)
        copy.send(100)
        until(lambda now_ms=now_ms: int(time.time() * 1_000) > now_ms + 2, "the next millisecond")  # type: ignore[misc]
    copy.run()
    first = payloads(copy.server.client, copy.target)
    assert sum(json.loads(text)["count"] for text in first) == 300, "the last window is open"
    copy.forget(f"commits/{copy.last_batch}")
    copy.run()
    assert payloads(copy.server.client, copy.target) == first


def test_complete_mode_is_refused(copy: Copy) -> None:
    copy.send(10)
    rows = copy.spark.readStream.format("penstock").options(url=copy.server.url, queue=copy.source).load()
    counted = rows.groupBy("partition").count().select(F.to_json(F.struct("*")).alias("payload"))
    writer = counted.writeStream.format("penstock").options(url=copy.server.url, queue=copy.target)
    writer = writer.options(checkpointLocation=str(copy.checkpoint)).outputMode("complete").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="cannot take back what it"):
        writer.start().awaitTermination()
