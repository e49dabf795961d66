"""Runs the executor's part of a landing through Spark: a DataFrame of the source's rows becomes files and reports.

Tasks write files (`writing.py`), and their reports are handed to the job (`handover.py`), which commits (`landing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.model.errors import InvalidArgument
from penstock.spark.lake.events import flatten
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.handover import FOLDER, PLACE, HandoverWriter, handed_over
from penstock.spark.lake.layout import EVENTS, MESSAGES, SCHEMAS, table_of
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.writing import Lander, Report
from penstock.spark.source.packing import PACKED, unpacked

FORMAT: Final = "penstock-lake-files"
Reports = dict[str, Report]
"""By table, what one task wrote."""


def register(spark: SparkSession) -> None:
    """Make the data source known to a session, once before `write_files`."""
    spark.dataSource.register(LakeFiles)


def write_files(rows: DataFrame, tables: Mapping[str, LakeTable]) -> dict[str, list[Report]]:
    """Write what is new among rows of the source; by table what its tasks wrote, durable and invisible."""
    places = {name: Place(table.storage, table.version) for name, table in tables.items()}
    reports = handed_over(rows, LakeFiles, places, Reports)
    return {name: [one[name] for one in reports if name in one] for name in tables}


class Place(msgspec.Struct, frozen=True):
    """A table at the version that decides what is new."""

    storage: Storage
    version: int


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
        places = msgspec.json.decode(self.options[PLACE], type=dict[str, Place])
        return FilesWriter(places, self.options[FOLDER])


class FilesWriter(HandoverWriter[Reports]):
    """Rows to the files of their tables."""

    report_type = Reports

    def __init__(self, places: dict[str, Place], folder: str) -> None:
        super().__init__(folder)
        self._places = places

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> Reports:
        landers: dict[str, Lander] = {}
        try:
            for batch in batches:
                for name, rows in chain.from_iterable(map(by_table, unpacked(batch))):
                    if name not in landers:
                        landers[name] = self._lander(name)
                    landers[name].add(rows)
            return {name: lander.finish() for name, lander in landers.items()}
        except BaseException:
            for lander in landers.values():
                lander.abandon()
            raise

    def _lander(self, name: str) -> Lander:
        place = self._places[name]
        mark_of = cache(LakeTable.open(place.storage, place.version).mark)  # a version: the answer cannot change
        return Lander(place.storage, SCHEMAS[name], mark_of, flatten if name == EVENTS else None)

    def files_of(self, report: Reports) -> Iterator[tuple[Storage, DataFile]]:
        for name, one in report.items():
            yield from ((self._places[name].storage, file) for file in one.files)


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
