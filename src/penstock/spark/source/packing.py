"""Rows of the source packed by the thousand: one row for each record batch, which is in it as Arrow IPC bytes.

Spark moves every row between Python and the JVM and back; a sink that takes Arrow anyway needs none of that. Packed, a
million messages are some hundred rows to Spark, with the queue, lane and offsets of each in columns of its own. Knows
Arrow alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

PACKED: Final = "packed"
PACKED_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("queue_id", pa.int64()),
        ("lane", pa.int32()),
        ("rows", pa.int32()),
        (PACKED, pa.binary()),
    ]
)
LOST_FROM: Final = "lost_from"
LOST_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("queue_id", pa.int64()),
        ("lane", pa.int32()),
        (LOST_FROM, pa.int64()),
        ("lost_to", pa.int64()),
    ]
)
"""In the place of messages: offsets [lost_from, lost_to) that are damaged in the server's store."""


def packed_gap(queue: str, queue_id: int, lane: int, start: int, end: int) -> pa.RecordBatch:
    """A row that stands for messages that cannot be had; its `rows` are 0."""
    row = {"queue": queue, "queue_id": queue_id, "lane": lane, LOST_FROM: start, "lost_to": end}
    return _packed(pa.RecordBatch.from_pylist([row], LOST_SCHEMA), queue, queue_id, lane, 0)


def packed(rows: pa.RecordBatch, queue: str, queue_id: int, lane: int) -> pa.RecordBatch:
    """A record batch as one row."""
    return _packed(rows, queue, queue_id, lane, rows.num_rows)


def _packed(rows: pa.RecordBatch, queue: str, queue_id: int, lane: int, count: int) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    values = [[queue], [queue_id], [lane], [count], [sink.getvalue().to_pybytes()]]
    columns = [pa.array(value, field.type) for value, field in zip(values, PACKED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


def unpacked(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The record batches of packed rows; a batch that is not packed is its own."""
    if PACKED not in batch.schema.names:
        yield batch
        return
    for value in batch.column(PACKED):
        yield from pa.ipc.open_stream(value.as_buffer())
