"""Summaries become files of the table `stats`: written by tasks, made visible by the job's own commit.

A sink of Spark that writes and does not commit, as the archive's is (`lake/sink.py`): it hands the files of the tasks
that count to the job, through a file, because Spark runs a sink's commit in a process beside the driver.

May not know: what the numbers mean, or marks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.model.errors import InvalidArgument
from penstock.spark.lake.errors import translated
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import STATS_SCHEMA, data_schema
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.writing import DAY_US, PartitionFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT: Final = "penstock-stats-files"
FILES: Final = "files"
PLACE: Final = "secretPlace"
"""Spark shows no values of options with `secret` in their name: this may hold an object store's credentials."""


def write_summaries(rows: DataFrame, storage: Storage) -> list[DataFile]:
    """Write summaries; durable and invisible when this returns."""
    rows.sparkSession.dataSource.register(StatsFiles)
    # Rows of one queue in one task: a file for each queue and day, and not one for each task.
    gathered = rows.repartition("queue").sortWithinPartitions("queue", "at")
    with tempfile.TemporaryDirectory(prefix="penstock-stats-") as folder:
        options = {PLACE: msgspec.json.encode(storage).decode(), "folder": folder}
        try:
            gathered.write.format(FORMAT).mode("append").options(**options).save()
        except Exception as error:
            known = translated(error)
            if known is None:
                raise
            raise known from error
        return msgspec.msgpack.decode(Path(folder, FILES).read_bytes(), type=list[DataFile])


@dataclass
class Written(WriterCommitMessage):
    """What a task tells: its files, encoded."""

    files: bytes


class StatsFiles(DataSource):
    """A sink for this job alone."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StatsWriter:
        """For `df.write`."""
        missing = set(data_schema(STATS_SCHEMA).names) - set(schema.fieldNames())
        if overwrite or missing:
            raise InvalidArgument(f"summaries are only ever appended, whole; missing are {sorted(missing)}")
        return StatsWriter(msgspec.json.decode(self.options[PLACE], type=Storage), self.options["folder"])


class StatsWriter(DataSourceArrowWriter):
    """`write` runs in every task, `commit` once, beside the driver."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        files = PartitionFiles(self._storage, STATS_SCHEMA)
        try:
            for batch in iterator:
                for queue, date, rows in _partitions(batch):
                    files.add(queue, date, rows)
            written = files.finish()
        except BaseException:
            files.abandon()
            raise
        return Written(msgspec.msgpack.encode(written))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = [file for message in messages for file in _files(message)]
        Path(self._folder, FILES).write_bytes(msgspec.msgpack.encode(written))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Other tasks have failed: what these wrote is not needed."""
        for file in (file for message in messages for file in _files(message)):
            with suppress(OSError):  # a vacuum finds it
                self._storage.remove(file.path)


def _files(message: WriterCommitMessage | None) -> list[DataFile]:
    return msgspec.msgpack.decode(message.files, type=list[DataFile]) if isinstance(message, Written) else []


def _partitions(batch: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """The rows of each queue and day (UTC)."""
    days = pc.floor(pc.divide(batch.column("at").cast(pa.int64()).cast(pa.float64()), DAY_US)).cast(pa.int64())
    queues = batch.column("queue")
    for queue in pc.unique(queues).to_pylist():
        of_queue = pc.equal(queues, queue)
        for day in sorted(pc.unique(days.filter(of_queue)).to_pylist()):
            wanted = pc.and_(of_queue, pc.equal(days, day))
            yield queue, str(np.datetime64(day, "D")), batch.filter(wanted)
