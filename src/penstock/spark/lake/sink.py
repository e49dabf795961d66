"""Runs the executor's part of a landing through Spark: a DataFrame of the source's rows becomes files and reports.

Inside it is a Spark data source that writes and does not commit: tasks write files (`writing.py`), and the reports of
those that count, one of every task whatever was tried again, are handed to the job, which commits (`landing.py`). Spark
runs a sink's commit in a process of its own beside the driver, so they are handed over in a file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.model.errors import InvalidArgument
from penstock.spark.lake.errors import translated
from penstock.spark.lake.events import flatten
from penstock.spark.lake.layout import EVENTS, MESSAGES, SCHEMAS, table_of
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable, LaneKey
from penstock.spark.lake.writing import Lander, Report
from penstock.spark.source.packing import PACKED, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "penstock-lake-files"
REPORTS: Final = "reports"
PLACES: Final = "secretPlaces"
"""Spark shows no values of options with `secret` in their name: these may hold an object store's credentials."""

Reports = dict[str, list[Report]]
"""By table, what its tasks wrote."""


def register(spark: SparkSession) -> None:
    """Make the data source known to a session, once before `write_files`."""
    spark.dataSource.register(LakeFiles)


def write_files(rows: DataFrame, tables: Mapping[str, LakeTable]) -> Reports:
    """Write what is new among rows of the source; durable and invisible when this returns."""
    places = {name: Place(table.storage, table.version) for name, table in tables.items()}
    with tempfile.TemporaryDirectory(prefix="penstock-reports-") as folder:
        options = {PLACES: msgspec.json.encode(places).decode(), "folder": folder}
        try:
            rows.write.format(FORMAT).mode("append").options(**options).save()
        except Exception as error:
            known = translated(error)
            if known is None:
                raise
            raise known from error
        reports = msgspec.msgpack.decode(Path(folder, REPORTS).read_bytes(), type=list[Reports])
    return {name: [report for one in reports for report in one.get(name, [])] for name in tables}


class Place(msgspec.Struct, frozen=True):
    """A table at the version that decides what is new."""

    storage: Storage
    version: int


@dataclass
class Written(WriterCommitMessage):
    """What a task tells: its reports, encoded."""

    reports: bytes


class LakeFiles(DataSource):
    """A sink for the jobs alone: it writes files and reports, and makes nothing visible."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        """For `df.write`."""
        if overwrite:
            raise InvalidArgument("the lake is only ever appended to")
        missing = {"queue", "queue_id", "lane", "offset", "published_at"} - set(schema.fieldNames())
        if missing and PACKED not in schema.fieldNames():
            raise InvalidArgument(f"rows for the lake need a column {sorted(missing)[0]!r}")
        places = msgspec.json.decode(self.options[PLACES], type=dict[str, Place])
        return FilesWriter(places, self.options["folder"])


class FilesWriter(DataSourceArrowWriter):
    """`write` runs in every task, `commit` once, beside the driver."""

    def __init__(self, places: dict[str, Place], folder: str) -> None:
        self._places = places
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        landers: dict[str, Lander] = {}
        try:
            for batch in iterator:
                for name, rows in chain.from_iterable(map(by_table, unpacked(batch))):
                    if name not in landers:
                        landers[name] = self._lander(name)
                    landers[name].add(rows)
            reports = {name: [lander.finish()] for name, lander in landers.items()}
        except BaseException:
            for lander in landers.values():
                lander.abandon()
            raise
        return Written(msgspec.msgpack.encode(reports))

    def _lander(self, name: str) -> Lander:
        place = self._places[name]
        mark_of = remembered(LakeTable.open(place.storage, place.version).mark)
        return Lander(place.storage, SCHEMAS[name], mark_of, flatten if name == EVENTS else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message.reports for message in messages if isinstance(message, Written)]
        Path(self._folder, REPORTS).write_bytes(joined(parts))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Other tasks have failed: what these wrote is not needed."""
        for message in messages:
            if isinstance(message, Written):
                for name, reports in msgspec.msgpack.decode(message.reports, type=Reports).items():
                    for file in (file for report in reports for file in report.files):
                        with suppress(OSError):  # a vacuum finds it
                            self._places[name].storage.remove(file.path)


def joined(parts: Sequence[bytes]) -> bytes:
    """Encoded values as one encoded list."""
    return msgspec.msgpack.encode([msgspec.Raw(part) for part in parts])


def remembered(mark_of: Callable[[int, int], int | None]) -> Callable[[int, int], int | None]:
    """The same, asked once for each lane: a handle stands for one version, so the answer cannot change."""
    known: dict[LaneKey, int | None] = {}

    def found(queue_id: int, lane: int) -> int | None:
        key = queue_id, lane
        if key not in known:
            known[key] = mark_of(queue_id, lane)
        return known[key]

    return found


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
