"""What the sink's tests stand on: writers driven without a JVM, and all messages of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import Client, Message
from penstock.spark.sink.sink import PenstockStreamWriter, PenstockWriter, batch_writer, stream_writer
from penstock.spark.sink.task import TaskDone


def all_messages(client: Client, queue: str) -> list[Message]:
    """The log of every lane of a queue, lane by lane."""
    found: list[Message] = []
    for place in client.lanes(queue).lanes:
        offset = place.first
        while offset < place.end:
            read = client.read_from(queue, offset, max=10_000, lane=place.lane)
            found += [received.message for received in read.messages]
            offset = read.messages[-1].offset + 1
    return found


def payloads(client: Client, queue: str) -> list[str]:
    return [message.payload.decode() for message in all_messages(client, queue)]


def enter_task(partition: int, attempt: int, query: str | None = None, batch: int | None = None) -> None:
    """Make this process look like a task to whoever asks Spark."""
    context: TaskContext = object.__new__(TaskContext)
    context._partitionId = partition
    context._taskAttemptId = attempt
    context._localProperties = (
        {} if query is None else {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    )
    TaskContext._taskContext = context


def leave_task() -> None:
    TaskContext._taskContext = None


Rows = Sequence[pa.RecordBatch]


def batch_writer_of(options: Mapping[str, str], rows: pa.RecordBatch) -> PenstockWriter:
    return batch_writer(options, from_arrow_schema(rows.schema), False)


def stream_writer_of(options: Mapping[str, str], rows: pa.RecordBatch) -> PenstockStreamWriter:
    return stream_writer(options, from_arrow_schema(rows.schema), False)


class StreamRun:
    """A query as far as its sink sees it: batches with numbers, each of several tasks."""

    def __init__(self, options: Mapping[str, str], query: str) -> None:
        self.options = options
        self.query = query
        self._attempts = 0

    def write(self, batch: int, partition: int, rows: Rows) -> TaskDone:
        """One attempt of one task."""
        writer = stream_writer_of(self.options, rows[0])
        self._attempts += 1
        enter_task(partition, self._attempts, self.query, batch)
        try:
            done = writer.write(iter(rows))
        finally:
            leave_task()
        assert isinstance(done, TaskDone)
        return done

    def commit(self, batch: int, done: Sequence[TaskDone], rows: Rows) -> None:
        stream_writer_of(self.options, rows[0]).commit(list(done), batch)

    def run(self, batch: int, *tasks: pa.RecordBatch) -> None:
        """A whole micro-batch of one Arrow batch a task."""
        done = [self.write(batch, partition, [rows]) for partition, rows in enumerate(tasks)]
        self.commit(batch, done, tasks)


def plain_rows(names: Iterable[object]) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array([str(name) for name in names], pa.string())})


def source_rows(queue: str, offsets: Sequence[int], lane: int = 0) -> pa.RecordBatch:
    """Rows as a read of a queue gives them, with payloads that say which they are."""
    count = len(offsets)
    return pa.record_batch(
        {
            "queue": pa.array([queue] * count, pa.string()),
            "lane": pa.array([lane] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "payload": pa.array([f"{lane}:{offset}" for offset in offsets], pa.string()),
        }
    )
