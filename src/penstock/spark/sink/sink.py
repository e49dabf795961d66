"""The sink `penstock` of Spark: `df.write.format("penstock")` and `df.writeStream.format("penstock")`.

Tasks stage (`task.py`), the driver publishes with one commit (`commit.py`). Spark makes a new writer for every batch,
and copies of it for the tasks and the commit: a writer holds a plan, and what is learnt travels in the tasks' messages.

What is promised: each row is published exactly once, through retried and speculative tasks, replayed and changed
batches, a killed server and a killed driver; with identity=source also through a lost checkpoint. Rows of one target
keep their order inside a Spark partition, and partitions follow each other by their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.model.errors import Forbidden, InvalidArgument, NotFound, PenstockError
from penstock.spark.sink.columns import column_plan
from penstock.spark.sink.commit import abort, commit_batch, commit_write
from penstock.spark.sink.identity import task_place
from penstock.spark.sink.options import write_options
from penstock.spark.sink.task import SinkSpec, TaskDone, sink_spec, write_task


class PenstockWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows."""
        return write_task(self._spec, task_place(streaming=False), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish all of them."""
        commit_write(self._spec, _reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, where a task or the commit failed."""
        abort(self._spec, cast("list[TaskDone | None]", messages))


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """A stream's sink, for one micro-batch."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows."""
        return write_task(self._spec, task_place(streaming=True), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: publish all of them, and write down that they are."""
        commit_batch(self._spec, _reports(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """On the driver, where a task or the commit failed."""
        abort(self._spec, cast("list[TaskDone | None]", messages))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> PenstockWriter:
    """The writer of `df.write`; all that can be known to be wrong before a row is read is said here."""
    if overwrite:
        raise InvalidArgument(
            'mode("overwrite") would have to delete messages that consumers may be working on: a queue can only be '
            'written with mode("append"); to empty one first, purge it'
        )
    return PenstockWriter(_spec(options, schema, streaming=False))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> PenstockStreamWriter:
    """The writer of `df.writeStream`."""
    if overwrite:
        raise InvalidArgument(
            'outputMode("complete") replaces the whole result with each batch, and a queue cannot take back what it '
            'delivered: use outputMode("append"), for an aggregation with a watermark'
        )
    return PenstockStreamWriter(_spec(options, schema, streaming=True))


def _spec(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkSpec:
    checked = write_options(options, streaming=streaming)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    spec = sink_spec(checked, column_plan(fields, checked))
    _check_target(spec)
    return spec


def _check_target(spec: SinkSpec) -> None:
    """Raise where the target of all rows is not there. Who may not ask is told by the tasks."""
    options = spec.options
    with suppress(Forbidden):
        if options.queue is not None:
            is_there = spec.client.has_queue(options.queue)
        else:
            is_there = options.exchange is None or options.exchange in spec.client.exchanges()
        if not is_there:
            raise NotFound(
                f"there is no {options.target} in namespace {options.namespace!r} of {options.url}: create it before "
                "rows are written to it"
            )


def _reports(messages: list[WriterCommitMessage | None]) -> list[TaskDone]:
    if not all(isinstance(message, TaskDone) for message in messages):
        raise PenstockError("a task has no report, so that its rows are not known to be durable; nothing was published")
    return cast("list[TaskDone]", messages)
