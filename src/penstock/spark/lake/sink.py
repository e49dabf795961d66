"""The way of rows from Spark into the lake: a sink that writes files and does not commit, for the jobs alone.

Tasks write files (`writing.py`). Of every task one report counts, whatever was tried again; the job that asked for
them commits what they name. Spark runs a sink's commit in a process of its own beside the driver, so the reports are
handed over in a file.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.model.errors import InvalidArgument
from penstock.model.events import decode_delivery
from penstock.spark.lake.errors import LakeError, told_by_tasks
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import EVENTS, EVENTS_SCHEMA, MESSAGES, SCHEMAS, STATS, data_schema, table_of
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.writing import DAY_US, Lander, PartitionFiles, Report
from penstock.spark.source.packing import PACKED, unpacked
from penstock.spark.times import EPOCH

FORMAT: Final = "penstock-lake-files"
PLACES: Final = "secretPlaces"
"""Spark shows no values of options with `secret` in their name: this may hold an object store's credentials."""
FOLDER: Final = "folder"
REPORTS: Final = "reports"

Reports = dict[str, Report]
"""By table, what one task wrote."""


class TableVersion(msgspec.Struct, frozen=True):
    """A table at the version that decides what is new."""

    storage: Storage
    version: int


# On the driver -------------------------------------------------------------------------------------------


def register(spark: SparkSession) -> None:
    """Make the data source known to a session, once before `write_files`."""
    spark.dataSource.register(LakeFiles)


def write_files(rows: DataFrame, tables: Mapping[str, LakeTable]) -> dict[str, list[Report]]:
    """Write what is new among rows of the source; by table what its tasks wrote, durable and invisible."""
    places = {name: TableVersion(table.storage, table.version) for name, table in tables.items()}
    with tempfile.TemporaryDirectory(prefix="penstock-reports-") as folder:
        options = {PLACES: msgspec.json.encode(places).decode(), FOLDER: folder}
        with told_by_tasks():
            rows.write.format(FORMAT).mode("append").options(**options).save()
        reports = msgspec.msgpack.decode(Path(folder, REPORTS).read_bytes(), type=list[Reports])
    return {name: [one[name] for one in reports if name in one] for name in tables}


def write_summaries(rows: DataFrame, table: LakeTable) -> list[DataFile]:
    """Write rows of the table `stats`; durable and invisible when this returns."""
    register(rows.sparkSession)
    # Rows of one queue in one task: a file for each queue and day, and not one for each task.
    gathered = rows.repartition("queue").sortWithinPartitions("queue", "at")
    return [file for report in write_files(gathered, {STATS: table})[STATS] for file in report.files]


class LakeFiles(DataSource):
    """Writes files and reports, and makes nothing visible."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        if overwrite:
            raise InvalidArgument("the lake is only ever appended to")
        places = msgspec.json.decode(self.options[PLACES], type=dict[str, TableVersion])
        needed = SCHEMAS[STATS].names if STATS in places else ["queue", "queue_id", "lane", "offset", "published_at"]
        missing = set(needed) - {"date"} - set(schema.fieldNames())
        if missing and PACKED not in schema.fieldNames():
            raise InvalidArgument(f"rows for the lake need a column {sorted(missing)[0]!r}")
        return FilesWriter(places, self.options[FOLDER])


@dataclass
class Written(WriterCommitMessage):
    """What a task tells: its reports, encoded."""

    reports: bytes


class FilesWriter(DataSourceArrowWriter):
    """`write` runs in every task, `commit` or `abort` once, beside the driver."""

    def __init__(self, places: dict[str, TableVersion], folder: str) -> None:
        self._places = places
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        landers: dict[str, Lander | Summaries] = {}
        try:
            for batch in iterator:
                parts = (
                    [(STATS, batch)] if STATS in self._places else chain.from_iterable(map(by_table, unpacked(batch)))
                )
                for name, rows in parts:
                    if name not in landers:
                        landers[name] = self._lander(name)
                    landers[name].add(rows)
            return Written(msgspec.msgpack.encode({name: lander.finish() for name, lander in landers.items()}))
        except BaseException:
            for lander in landers.values():
                lander.abandon()
            raise

    def _lander(self, name: str) -> Lander | Summaries:
        place = self._places[name]
        if name == STATS:
            return Summaries(place.storage)
        mark_of = cache(LakeTable.open(place.storage, place.version).mark)  # a version: the answer cannot change
        return Lander(place.storage, SCHEMAS[name], mark_of, flatten if name == EVENTS else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        reports = [msgspec.Raw(message.reports) for message in messages if isinstance(message, Written)]
        Path(self._folder, REPORTS).write_bytes(msgspec.msgpack.encode(reports))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Other tasks have failed: what these wrote is not needed."""
        for message in messages:
            if isinstance(message, Written):
                for name, report in msgspec.msgpack.decode(message.reports, type=Reports).items():
                    for file in report.files:
                        with suppress(OSError):  # a vacuum finds it
                            self._places[name].storage.remove(file.path)


# In the tasks --------------------------------------------------------------------------------------------


def by_table(batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
    """The rows of each table. A task reads one queue as a rule, so that nothing is copied."""
    if batch.num_rows == 0:
        return []
    queues = batch.column("queue").dictionary_encode()
    tables = [table_of(queue) for queue in queues.dictionary.to_pylist()]
    if len(set(tables)) == 1:
        return [(tables[0], batch)]
    of_row = pa.array(tables).take(queues.indices)
    return [(name, batch.filter(pc.equal(of_row, name))) for name in (MESSAGES, EVENTS)]


class Summaries:
    """One task's way into the table `stats`. Its rows have no offsets: what the job hands over is new."""

    def __init__(self, storage: Storage) -> None:
        self._files = PartitionFiles(storage, SCHEMAS[STATS])

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of each queue and day (UTC)."""
        days = pc.floor(pc.divide(batch.column("at").cast(pa.int64()).cast(pa.float64()), DAY_US)).cast(pa.int64())
        queues = batch.column("queue")
        for queue in pc.unique(queues).to_pylist():
            of_queue = pc.equal(queues, queue)
            for day in sorted(pc.unique(days.filter(of_queue)).to_pylist()):
                wanted = pc.and_(of_queue, pc.equal(days, day))
                self._files.add(queue, str(np.datetime64(day, "D")), batch.filter(wanted))

    def finish(self) -> Report:
        return Report(self._files.finish(), [])

    def abandon(self) -> None:
        self._files.abandon()


def flatten(batch: pa.RecordBatch) -> Iterable[tuple[str, str, pa.RecordBatch]]:
    """Messages of events queues as rows of the table `events`: (queue, date, rows) for each queue and day.

    The same rows as `penstock.spark.events.event_rows` makes with Spark's functions, made here where the files are
    written, because only a message's own offset tells whether the lake has it.
    """
    partitions: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    columns = ("queue", "queue_id", "lane", "offset", "payload")
    places = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    for event_queue, event_queue_id, event_lane, event_offset, payload in places:
        try:
            delivery = decode_delivery(payload)
        except (msgspec.MsgspecError, TypeError) as error:
            raise LakeError(
                f"the message at offset {event_offset} of lane {event_lane} of {event_queue} is no delivery event: "
                f"{error}"
            ) from error
        for event_index, event in enumerate(delivery.events):
            at = EPOCH + dt.timedelta(milliseconds=event.at_ms)
            rows = partitions[delivery.queue, at.date().isoformat()]
            for range_index, (start, end) in enumerate(event.ranges):
                rows.append(
                    {
                        "event_queue_id": event_queue_id,
                        "event_lane": event_lane,
                        "event_offset": event_offset,
                        "event_index": event_index,
                        "range_index": range_index,
                        "namespace": delivery.namespace,
                        "queue_id": delivery.queue_id,
                        "lane": delivery.lane,
                        "group": delivery.group,
                        "kind": event.kind,
                        "start_offset": start,
                        "end_offset": end,
                        "messages": end - start,
                        "at": at,
                        "consumer": event.consumer or None,
                        "attempt": event.attempt or None,
                        "detail": event.detail or None,
                    }
                )
    schema = data_schema(EVENTS_SCHEMA)
    for (queue, date), rows in partitions.items():
        yield queue, date, pa.RecordBatch.from_pylist(rows, schema=schema)
