"""Summaries become files of the table `stats`: written by tasks, made visible by the job's own commit.

The sink is one that hands over (`lake/handover.py`), as the archive's is.

May not know: what the numbers mean, or marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.model.errors import InvalidArgument
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.handover import FOLDER, PLACE, HandoverWriter, handed_over
from penstock.spark.lake.layout import STATS_SCHEMA, data_schema
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.writing import DAY_US, PartitionFiles

FORMAT: Final = "penstock-stats-files"


def write_summaries(rows: DataFrame, storage: Storage) -> list[DataFile]:
    """Write summaries; durable and invisible when this returns."""
    rows.sparkSession.dataSource.register(StatsFiles)
    # Rows of one queue in one task: a file for each queue and day, and not one for each task.
    gathered = rows.repartition("queue").sortWithinPartitions("queue", "at")
    return [file for files in handed_over(gathered, StatsFiles, storage, list[DataFile]) for file in files]


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
        return StatsWriter(msgspec.json.decode(self.options[PLACE], type=Storage), self.options[FOLDER])


class StatsWriter(HandoverWriter[list[DataFile]]):
    """Summaries to files by queue and day."""

    report_type = list[DataFile]

    def __init__(self, storage: Storage, folder: str) -> None:
        super().__init__(folder)
        self._storage = storage

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        files = PartitionFiles(self._storage, STATS_SCHEMA)
        try:
            for batch in batches:
                for queue, date, rows in _partitions(batch):
                    files.add(queue, date, rows)
            return files.finish()
        except BaseException:
            files.abandon()
            raise

    def files_of(self, report: list[DataFile]) -> Iterator[tuple[Storage, DataFile]]:
        return ((self._storage, file) for file in report)


def _partitions(batch: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """The rows of each queue and day (UTC)."""
    days = pc.floor(pc.divide(batch.column("at").cast(pa.int64()).cast(pa.float64()), DAY_US)).cast(pa.int64())
    queues = batch.column("queue")
    for queue in pc.unique(queues).to_pylist():
        of_queue = pc.equal(queues, queue)
        for day in sorted(pc.unique(days.filter(of_queue)).to_pylist()):
            wanted = pc.and_(of_queue, pc.equal(days, day))
            yield queue, str(np.datetime64(day, "D")), batch.filter(wanted)
