"""A sink of Spark that writes and does not commit: what its tasks wrote is handed to the job, which commits.

Of every task one report counts, whatever was tried again. Spark runs a sink's commit in a process of its own beside the
driver, so the reports are handed over in a file. Knows neither rows nor tables: `sink.py` and the job `stats` do.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from penstock.spark.lake.errors import told_by_tasks
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.storage import Storage

PLACE: Final = "secretPlace"
"""Spark shows no values of options with `secret` in their name: this may hold an object store's credentials."""
FOLDER: Final = "folder"
REPORTS: Final = "reports"

Report = TypeVar("Report")


def handed_over(rows: DataFrame, source: type[DataSource], place: object, kind: type[Report]) -> list[Report]:
    """Write rows through a sink and give the reports of its tasks; all is durable and invisible then."""
    with tempfile.TemporaryDirectory(prefix="penstock-reports-") as folder:
        options = {PLACE: msgspec.json.encode(place).decode(), FOLDER: folder}
        with told_by_tasks():
            rows.write.format(source.name()).mode("append").options(**options).save()
        return msgspec.msgpack.decode(Path(folder, REPORTS).read_bytes(), type=list[kind])  # type: ignore[valid-type]


@dataclass
class Written(WriterCommitMessage):
    """What a task tells: its report, encoded."""

    report: bytes


class HandoverWriter(DataSourceArrowWriter, Generic[Report]):
    """`write` runs in every task, `commit` once, beside the driver. A subclass says what a task does."""

    report_type: ClassVar[Any]

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @abstractmethod
    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> Report:
        """Write a task's rows; leaves nothing behind where it raises."""

    @abstractmethod
    def files_of(self, report: Report) -> Iterator[tuple[Storage, DataFile]]:
        """The files that a report names, and where they are."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(msgspec.msgpack.encode(self.write_rows(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        reports = [msgspec.Raw(message.report) for message in messages if isinstance(message, Written)]
        Path(self._folder, REPORTS).write_bytes(msgspec.msgpack.encode(reports))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Other tasks have failed: what these wrote is not needed."""
        for message in messages:
            if isinstance(message, Written):
                report: Report = msgspec.msgpack.decode(message.report, type=self.report_type)
                for storage, file in self.files_of(report):
                    with suppress(OSError):  # a vacuum finds it
                        storage.remove(file.path)
