"""The executor's way into the lake: Arrow rows become Parquet files, fsynced, and a report of what is in them.

Nothing written here is visible until the driver commits it (`landing.py`). Rows that the lake has already, below their
lane's mark, are left out. A task that fails removes what it wrote as far as it can; what a killed one leaves behind has
a name that nothing knows, and goes with the next vacuum.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.errors import LakeError
from penstock.spark.lake.files import Bounds, DataFile
from penstock.spark.lake.layout import (
    IDENTITY,
    PLAIN_COLUMNS,
    data_schema,
    offset_column,
    partition_folder,
    time_column,
)
from penstock.spark.lake.storage import Storage
from penstock.spark.source.packing import LOST_FROM

GROUP_ROWS: Final = 128 * 1024
GROUP_BYTES: Final = 48 * 1024 * 1024
"""Rows or bytes of a row group: what a task keeps in memory for each open file."""
FILE_BYTES: Final = 256 * 1024 * 1024
OPEN_FILES: Final = 8
"""A batch that is spread over more partitions closes the file that waited longest."""
DAY_US: Final = 86_400_000_000

MarkOf = Callable[[int, int], int | None]
"""The first offset that the lake does not have, of (queue id, lane)."""


class Run(msgspec.Struct, array_like=True):
    """Consecutive offsets [first, end) of a lane that a task saw and wrote."""

    queue: str
    queue_id: int
    lane: int
    first: int
    end: int
    is_lost: bool = False
    """They are damaged in the server's store: the task was told, and has nothing to write."""


class Report(msgspec.Struct, array_like=True):
    """What one task wrote."""

    files: list[DataFile]
    runs: list[Run]
    rows: int = 0
    repeated: int = 0
    """Rows that were in the lake already and were left out."""


class Piece(NamedTuple):
    """Rows of one batch with consecutive offsets of one lane, published on one day (UTC)."""

    start: int
    stop: int
    queue: str
    queue_id: int
    lane: int
    offset: int
    date: str


Flatten = Callable[[pa.RecordBatch], Iterable[tuple[str, str, pa.RecordBatch]]]
"""From rows of the source to (queue, date, rows of another table): how events land."""


class Lander:
    """One task's way into one table: rows are added, files come out."""

    def __init__(self, storage: Storage, schema: pa.Schema, mark_of: MarkOf, flatten: Flatten | None = None) -> None:
        self._files = PartitionFiles(storage, schema)
        self._mark_of = mark_of
        self._flatten = flatten
        self._report = Report([], [])

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows that the lake does not have."""
        if LOST_FROM in batch.schema.names:
            _note_lost(batch, self._mark_of, self._report)
            return
        for piece in pieces(batch):
            new = _new_rows(batch, piece, self._mark_of, self._report)
            if new is None:
                continue
            if self._flatten is None:
                self._files.add(piece.queue, piece.date, new)
            else:
                for queue, date, rows in self._flatten(new):
                    self._files.add(queue, date, rows)

    def finish(self) -> Report:
        """Durable, and still invisible, when this returns."""
        self._report.files = self._files.finish()
        return self._report

    def abandon(self) -> None:
        """Remove what was written."""
        self._files.abandon()


def _note_lost(batch: pa.RecordBatch, mark_of: MarkOf, report: Report) -> None:
    """Note what is lost from its lane's mark on."""
    for row in batch.to_pylist():
        first = max(row[LOST_FROM], mark_of(row["queue_id"], row["lane"]) or 0)
        if first < row["lost_to"]:
            report.runs.append(Run(row["queue"], row["queue_id"], row["lane"], first, row["lost_to"], is_lost=True))


def _new_rows(batch: pa.RecordBatch, piece: Piece, mark_of: MarkOf, report: Report) -> pa.RecordBatch | None:
    """The rows of a piece from its lane's mark on, noted in the report."""
    mark = mark_of(piece.queue_id, piece.lane)
    count = piece.stop - piece.start
    known = 0 if mark is None else min(max(0, mark - piece.offset), count)
    report.repeated += known
    if known == count:
        return None
    first, end = piece.offset + known, piece.offset + count
    last = report.runs[-1] if report.runs else None
    place = (piece.queue_id, piece.lane, first, False)
    if last is not None and (last.queue_id, last.lane, last.end, last.is_lost) == place:
        last.end = end
    else:
        report.runs.append(Run(piece.queue, piece.queue_id, piece.lane, first, end))
    report.rows += count - known
    return batch.slice(piece.start + known, count - known)


def pieces(batch: pa.RecordBatch) -> Iterator[Piece]:
    """Cut a batch where queue, lane or day change, and where an offset does not follow the one before."""
    if batch.num_rows == 0:
        return
    for name in ("queue", "published_at", *IDENTITY):
        if batch.column(name).null_count:
            raise LakeError(f"{batch.column(name).null_count} rows have no {name}: they cannot be told from others")
    queue_ids, lanes, offsets = (batch.column(name).to_numpy(zero_copy_only=False) for name in IDENTITY)
    days = batch.column("published_at").cast(pa.int64()).to_numpy() // DAY_US
    breaks = (np.diff(offsets) != 1) | (np.diff(lanes) != 0) | (np.diff(queue_ids) != 0) | (np.diff(days) != 0)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
    names = batch.column("queue")
    for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield Piece(
            start,
            stop,
            names[start].as_py(),
            int(queue_ids[start]),
            int(lanes[start]),
            int(offsets[start]),
            str(np.datetime64(int(days[start]), "D")),
        )


# Files ---------------------------------------------------------------------------------------------------


class PartitionFiles:
    """The open files of a task, one for each partition."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        self._storage = storage
        self._schema = data_schema(schema)
        self._bounded = ("queue_id", "lane", offset_column(schema), time_column(schema), "event_queue_id")
        self._open: dict[tuple[str, str], _File] = {}
        self._done: list[DataFile] = []

    def add(self, queue: str, date: str, rows: pa.RecordBatch) -> None:
        """Write rows to the file of their partition."""
        key = queue, date
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            file = _File(self._storage, self._schema, self._bounded, queue, date)
        self._open[key] = file  # now the last in line to be closed
        file.add(shaped(rows, self._schema))
        if file.size >= FILE_BYTES:
            self._close(key)

    def finish(self) -> list[DataFile]:
        """Close all and make them durable; what was written."""
        for key in list(self._open):
            self._close(key)
        self._storage.settle_folders(file.path for file in self._done)
        return self._done

    def abandon(self) -> None:
        """Remove what was written."""
        with suppress(
            Exception
        ):  # what cannot be removed goes with the next vacuum; the first error is the one to tell
            for file in self._open.values():
                file.abandon()
            for done in self._done:
                self._storage.remove(done.path)

    def _close(self, key: tuple[str, str]) -> None:
        self._done.append(self._open[key].close())
        del self._open[key]


class _File:
    """One Parquet file that is being written."""

    def __init__(self, storage: Storage, schema: pa.Schema, bounded: Sequence[str], queue: str, date: str) -> None:
        self._storage = storage
        self._queue, self._date = queue, date
        self._path = f"{partition_folder(queue, date)}/part-{uuid.uuid4().hex}.zstd.parquet"
        self._output = storage.create(self._path)
        self._writer = parquet_writer(self._output, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._bounds = _Extremes(bounded)

    @property
    def size(self) -> int:
        return self._output.tell()

    def add(self, rows: pa.RecordBatch) -> None:
        self._bounds.add(rows)
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=GROUP_ROWS)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> DataFile:
        self._write()
        self._writer.close()
        size = self._output.tell()
        self._output.close()
        return DataFile(self._path, size, self._rows, self._queue, self._date, *self._bounds.all())

    def abandon(self) -> None:
        with suppress(Exception):
            self._writer.close()
        with suppress(Exception):
            self._output.close()
        self._storage.remove(self._path)


class _Extremes:
    """The least and greatest values of the columns that the log keeps them for."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._bounds: dict[str, Bounds] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        for name in self._names:
            if name not in rows.schema.names:
                continue  # messages are no events; summaries have no lane and no offset of their own either
            column = rows.column(name)
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            found = pc.min_max(column).as_py()
            if found["min"] is None:
                continue
            low, high = self._bounds.get(name, (found["min"], found["max"]))
            self._bounds[name] = min(low, found["min"]), max(high, found["max"])

    def all(self) -> list[Bounds | None]:
        return [self._bounds.get(name) for name in self._names]


def parquet_writer(output: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """zstd, with a checksum on every page, so that `verify` can tell a bit that flipped."""
    plain = PLAIN_COLUMNS.intersection(schema.names)
    flat = [field.name for field in schema if field.name not in plain and not pa.types.is_nested(field.type)]
    return pq.ParquetWriter(
        output,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=flat,
        write_statistics=[field.name for field in schema if field.name != "payload"],
        write_page_checksum=True,
        store_schema=False,
    )


def shaped(rows: pa.RecordBatch, schema: pa.Schema, *, missing_as_null: bool = False) -> pa.RecordBatch:
    """The schema's columns, in its order, with its types: Spark names the zone of its session, and parts of a map."""
    columns = []
    for field in schema:
        if missing_as_null and field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        columns.append(column if column.type.equals(field.type, check_metadata=True) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
