"""`read_lake`: a DataFrame of the files that the Delta log names, and of no others.

A folder also holds files that were merged, removed or never committed, so reading it by listing gives rows twice. This
is a Spark data source of its own: the driver plans from the log, executors read with pyarrow, and Spark needs neither a
jar nor a connector for an object store.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.model.errors import InvalidArgument
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import MESSAGES, chosen, time_column
from penstock.spark.lake.reading import Choice, grouped, read_file
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.session import tasks_at_once
from penstock.spark.times import bound_us

FORMAT: Final = "penstock-lake"
OPTION: Final = "secretRead"
"""Spark shows no values of options with `secret` in their name: these may hold an object store's credentials."""


class LakeRead(msgspec.Struct, frozen=True):
    """One read, settled: a version of a table, the rows and the columns that are wanted of it."""

    storage: Storage
    version: int
    columns: list[str] | None
    choice: Choice
    without: list[str] = []
    """Files that are left out."""
    tasks_min: int = 1


def read_lake(
    spark: SparkSession,
    path: str,
    queues: Sequence[str] | None = None,
    start: dt.datetime | None = None,
    end: dt.datetime | None = None,
    *,
    columns: Sequence[str] | None = None,
    table: str = MESSAGES,
    version: int | None = None,
    storage_options: dict[str, str] | None = None,
) -> DataFrame:
    """The lake's rows of these queues, published in [start, end): all of them, once, as they are in one version.

    Name the `columns` that you need: others are then not read at all. The rows are those of the moment of this call,
    whatever is archived or compacted afterwards, for as long as no vacuum removes the files.
    """
    opened = LakeTable.open(Storage(path, storage_options or {}).under(table), version)
    choice = Choice(
        None if queues is None else tuple(queues),
        bound_us(start, "start"),
        bound_us(end, "end"),
        time=time_column(opened.schema),
    )
    return frame(spark, opened, columns, choice)


def frame(
    spark: SparkSession,
    table: LakeTable,
    columns: Sequence[str] | None,
    choice: Choice,
    without: Sequence[str] = (),
) -> DataFrame:
    """The wanted rows of a table as it is at the handle's version."""
    spark.dataSource.register(LakeSource)
    asked = None if columns is None else list(columns)
    read = LakeRead(table.storage, table.version, asked, choice, list(without), tasks_at_once(spark))
    return spark.read.format(FORMAT).option(OPTION, msgspec.json.encode(read).decode()).load()


class LakeSource(DataSource):
    """Rows of the lake, as `read_lake` asks for them."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def _read(self) -> LakeRead:
        text = self.options.get(OPTION)
        if text is None:
            raise InvalidArgument("read the lake with penstock.spark.lake.source.read_lake")
        return msgspec.json.decode(text, type=LakeRead)

    def schema(self) -> StructType:
        """The asked columns in the table's order."""
        read = self._read()
        return from_arrow_schema(chosen(LakeTable.open(read.storage, read.version).schema, read.columns))

    def reader(self, schema: StructType) -> LakeReader:
        """For `spark.read`."""
        read = self._read()
        table = LakeTable.open(read.storage, read.version)
        return LakeReader(read, table.files(), chosen(table.schema, schema.fieldNames()))


class LakeReader(DataSourceReader):
    """Neighbouring files for each task."""

    def __init__(self, read: LakeRead, files: Sequence[DataFile], schema: pa.Schema) -> None:
        self._asked = read
        left_out = set(read.without)
        self._groups = grouped([file for file in read.choice.files(files) if file.path not in left_out], read.tasks_min)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(group) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        files: list[DataFile] = partition.value or []
        for file in files:
            yield from read_file(self._asked.storage, file, self._schema, self._asked.choice)
