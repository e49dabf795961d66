"""The executor's way out of the lake: the wanted rows of one file, and which files and row groups can have any.

Files are chosen by partition and by the log's bounds, row groups by Parquet's; rows are then filtered exactly. Reads
with pyarrow, through the same storage as everything else here. Next stop: `source.py`, which brings Spark in.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.errors import LakeDamaged
from penstock.spark.lake.files import Bounds, DataFile, as_integers, meets
from penstock.spark.lake.layout import IDENTITY, data_schema
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.writing import shaped

BATCH_ROWS: Final = 16_384
TASK_BYTES: Final = 64 * 1024 * 1024
"""A task reads about so much of the files, unless there are cores that would have nothing to do."""


class LaneRange(msgspec.Struct, frozen=True):
    """Offsets [start, end) of one lane."""

    queue_id: int
    lane: int
    start: int
    end: int


class Choice(msgspec.Struct, frozen=True):
    """Which rows are wanted; None is all. Times are [start, end), in microseconds since 1970."""

    queues: tuple[str, ...] | None = None
    start_us: int | None = None
    end_us: int | None = None
    ranges: tuple[LaneRange, ...] | None = None
    """Only where rows have an offset of their own: not of events."""
    time: str = "published_at"
    """The table's time column."""

    def files(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Files that can hold a wanted row."""
        return [file for file in files if self._may_have(file)]

    def _may_have(self, file: DataFile) -> bool:
        if self.queues is not None and file.queue not in self.queues:
            return False
        return self.allows(file.queue_ids, file.lanes, file.offsets, file.times_us)

    def allows(
        self, queue_ids: Bounds | None, lanes: Bounds | None, offsets: Bounds | None, times_us: Bounds | None
    ) -> bool:
        """Whether a wanted row can be between these bounds; None is unknown."""
        if not meets(times_us, self.start_us, self.end_us):
            return False
        return self.ranges is None or any(
            meets(queue_ids, one.queue_id, one.queue_id + 1)
            and meets(lanes, one.lane, one.lane + 1)
            and meets(offsets, one.start, one.end)
            for one in self.ranges
        )

    @property
    def columns(self) -> set[str]:
        """What must be read to decide."""
        by_time = {self.time} if self.start_us is not None or self.end_us is not None else set()
        return by_time | (set(IDENTITY) if self.ranges is not None else set())

    def mask(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Which of the rows are wanted; None if all are."""
        conditions = []
        if self.start_us is not None or self.end_us is not None:
            published = rows.column(self.time).cast(pa.int64())
            if self.start_us is not None:
                conditions.append(pc.greater_equal(published, self.start_us))
            if self.end_us is not None:
                conditions.append(pc.less(published, self.end_us))
        if self.ranges is not None:
            conditions.append(_in_ranges(rows, self.ranges))
        found = None
        for condition in conditions:
            found = condition if found is None else pc.and_(found, condition)
        return found


def _in_ranges(rows: pa.RecordBatch, ranges: Iterable[LaneRange]) -> pa.Array:
    queue_ids, lanes, offsets = (rows.column(name) for name in IDENTITY)
    found = pc.less(offsets, 0)
    for one in ranges:
        here = pc.and_(pc.equal(queue_ids, one.queue_id), pc.equal(lanes, one.lane))
        here = pc.and_(here, pc.and_(pc.greater_equal(offsets, one.start), pc.less(offsets, one.end)))
        found = pc.or_(found, here)
    return found


# One file ------------------------------------------------------------------------------------------------


def read_file(storage: Storage, file: DataFile, schema: pa.Schema, choice: Choice) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a file with the columns of `schema`, the partition's values among them."""
    needed = data_schema(schema)
    names = {field.name for field in needed} | choice.columns
    try:
        with storage.open(file.path) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            present = [name for name in parquet.schema_arrow.names if name in names]
            groups = [number for number in range(parquet.num_row_groups) if _may_have(parquet, number, choice)]
            if not groups:
                return
            # A file needs at least one column to be counted by.
            for rows in parquet.iter_batches(BATCH_ROWS, groups, present or list(IDENTITY), use_threads=False):
                mask = choice.mask(rows)
                wanted = rows if mask is None else rows.filter(mask)
                if wanted.num_rows:
                    yield _with_partition(wanted, file, schema, needed)
    except (OSError, pa.ArrowException) as error:
        raise damaged(storage, file, error) from error


def _may_have(parquet: pq.ParquetFile, number: int, choice: Choice) -> bool:
    """Whether a row group's bounds allow a wanted row."""
    group = parquet.metadata.row_group(number)
    found: dict[str, Bounds] = {}
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in choice.columns and column.statistics is not None and column.statistics.has_min_max:
            found[column.path_in_schema] = as_integers(column.statistics.min, column.statistics.max)
    return choice.allows(found.get("queue_id"), found.get("lane"), found.get("offset"), found.get(choice.time))


def _with_partition(rows: pa.RecordBatch, file: DataFile, schema: pa.Schema, needed: pa.Schema) -> pa.RecordBatch:
    count = rows.num_rows
    inside = shaped(rows, needed, missing_as_null=True)
    columns = []
    for field in schema:
        if field.name == "queue":
            columns.append(pa.repeat(pa.scalar(file.queue, pa.string()), count))
        elif field.name == "date":
            columns.append(pa.repeat(pa.scalar(dt.date.fromisoformat(file.date), pa.date32()), count))
        else:
            columns.append(inside.column(field.name))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def damaged(storage: Storage, file: DataFile, error: object) -> LakeDamaged:
    return LakeDamaged(
        f"the file {file.path} of the lake table {storage.url} (queue {file.queue!r}, {file.date}) cannot be read: "
        f"{error}. penstock pipeline verify lists all such files; bring it back from a backup, or, where the broker "
        "still has its messages, archive them into a new lake"
    )


def problem(storage: Storage, file: DataFile, columns: Sequence[str] | None = None) -> str | None:
    """What is wrong with a file, in words; None if nothing is. Without `columns` every page of it is read."""
    size = storage.size(file.path)
    if size is None:
        return "it is missing"
    if size != file.size:
        return f"it has {size} bytes; the log says {file.size}"
    try:
        with storage.open(file.path) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            names = None if columns is None else [name for name in parquet.schema_arrow.names if name in columns]
            rows = sum(batch.num_rows for batch in parquet.iter_batches(BATCH_ROWS, columns=names, use_threads=False))
    except (OSError, pa.ArrowException) as error:
        return f"it cannot be read: {error}"
    if file.rows is not None and rows != file.rows:
        return f"it has {rows} rows; the log says {file.rows}"
    return None


# Tasks ---------------------------------------------------------------------------------------------------


def grouped(files: Sequence[DataFile], cores: int) -> list[list[DataFile]]:
    """Files for each task: neighbours stay together, and every core gets some."""
    total = sum(file.size for file in files)
    most = max(1, min(TASK_BYTES, -(-total // max(1, cores))))
    groups: list[list[DataFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.size > most:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups
