"""Identities: the name of a sink's ledger, the batch that a task works for, and the source offset that a row is of.

A row of a Penstock queue is known by queue, lane and offset; rows that carry these are never written twice
by the same sink, whatever becomes of Spark's checkpoint. Other rows are known by the batch that they are in. Knows
options, columns and what Spark tells a task; no ledger. Next stop: `sink.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import InvalidArgument, PenstockError
from penstock.spark.sink.columns import ColumnPlan, SourceColumns
from penstock.spark.sink.ledger import PREFIX, IdentityKind
from penstock.spark.sink.options import WriteOptions
from penstock.spark.sink.tally import Offsets

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"


class TaskPlace(msgspec.Struct, frozen=True):
    """Which part of which batch a task writes."""

    partition: int
    attempt: int
    query: str | None
    batch: int | None


def task_place(*, streaming: bool) -> TaskPlace:
    """What Spark's task context says of the task that calls this."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise PenstockError("a write outside of a Spark task: there is no task context")
    query, batch = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
    if streaming and (not query or batch is None or not batch.isdigit()):
        raise PenstockError(
            f"Spark did not tell this task its query and batch ({QUERY_PROPERTY}={query!r}, "
            f"{BATCH_PROPERTY}={batch!r}): without them nothing can be written exactly once. Is it a Spark before 4.1?"
        )
    if not streaming:
        return TaskPlace(context.partitionId(), context.taskAttemptId(), None, None)
    return TaskPlace(context.partitionId(), context.taskAttemptId(), query, int(batch or 0))


# Names ---------------------------------------------------------------------------------------------------


def identity_kind(options: WriteOptions, plan: ColumnPlan) -> IdentityKind:
    """By what rows are known: chosen, or by what they carry."""
    if options.identity == "source" and plan.source is None:
        raise InvalidArgument(
            "identity=source needs to know where each row came from: columns queue, lane and offset of the source, and "
            "the target given by option; or source_queue, source_lane and source_offset beside a target's column"
        )
    if options.identity == "auto":
        return "source" if options.streaming and plan.source is not None else "batch"
    return options.identity


def sink_text(options: WriteOptions, kind: IdentityKind, query: str | None) -> str:
    """A sink in words: the same words again are the same sink."""
    if options.sink_name is not None:
        name = f"sink {options.sink_name}"
    elif options.checkpoint is not None:
        name = f"checkpoint {checkpoint_path(options.checkpoint)}"
    else:
        name = f"query {query}"
    target = options.target or "targets by column"
    if options.routing_key is not None:
        target += f" with key {options.routing_key}"
    # Of batches only the query that numbers them can tell: two queries have each a batch 7.
    return f"{name} to {target}" + (f" of query {query}" if kind == "batch" else "")


def ledger_name(text: str) -> str:
    """The name of the mark at the head of a sink's ledger."""
    return PREFIX + blake2b(text.encode(), digest_size=12).hexdigest()


def checkpoint_path(location: str) -> str:
    """A checkpoint's place, the same however it is written: relative or not, with `file:` or without."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return _absolute(parts.path)
    if parts.scheme and not location.startswith("/"):
        return location.rstrip("/")
    return _absolute(location)


def _absolute(path: str) -> str:
    # Links are left alone: they are part of the name that the user chose.
    return os.path.normpath(Path(path).absolute())


# Rows by their source offset -----------------------------------------------------------------------------


class SourceRows(msgspec.Struct, frozen=True):
    """Rows of one lane: where they are in their batch, and their offsets. `chosen` None: the batch has no others."""

    lane: str
    """`queue id/lane`."""
    seed: int
    offsets: Offsets
    chosen: npt.NDArray[np.bool_] | None


def source_rows(batch: pa.RecordBatch, columns: SourceColumns, queue_id: Callable[[str], int]) -> Iterator[SourceRows]:
    """The rows of each lane; raises where a row does not say where it came from."""
    names = [name for name in (columns.queue_id or columns.queue, columns.lane, columns.offset) if name is not None]
    for name in names:
        if batch.column(name).null_count:
            raise InvalidArgument(
                f"column {name} is NULL in {batch.column(name).null_count} of {batch.num_rows} rows: their source "
                "offset is not known. Nothing was published. Filter them out, or set identity=batch"
            )
    if not batch.num_rows:
        return
    queue, lane, offset = (batch.column(name) for name in names)
    offsets = offset.cast(pa.int64()).to_numpy(zero_copy_only=False)
    for which_queue, which_lane in _distinct(queue, lane):
        number = which_queue if columns.queue_id is not None else queue_id(which_queue)
        key = f"{number}/{which_lane}"
        seed = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
        chosen = pc.and_(pc.equal(queue, which_queue), pc.equal(lane, which_lane)).to_numpy(zero_copy_only=False)
        if chosen.all():
            yield SourceRows(key, seed, offsets, None)
            return
        yield SourceRows(key, seed, offsets[chosen], chosen)


def _distinct(queue: pa.Array, lane: pa.Array) -> list[tuple[Any, int]]:
    table = pa.table({"queue": queue, "lane": lane}).group_by(["queue", "lane"], use_threads=False).aggregate([])
    return list(zip(table["queue"].to_pylist(), table["lane"].to_pylist(), strict=True))


# Rows by what they hold ----------------------------------------------------------------------------------


def content_digest(batch: pa.RecordBatch, target: str) -> int:
    """A checksum of all that is written of rows; their order, and how they are cut, make no difference."""
    sums = [crc32(target.encode())] * batch.num_rows
    for name in sorted(batch.schema.names):
        salt = crc32(name.encode())
        values = _as_bytes(batch.column(name))
        # NULL and the empty string must differ.
        sums = [
            salt ^ before if value is None else crc32(value, salt ^ before) + 1
            for value, before in zip(values, sums, strict=True)
        ]
    return sum(sums)


def _as_bytes(values: pa.Array) -> list[bytes | None]:
    if pa.types.is_binary(values.type):
        return list(values.to_pylist())
    if pa.types.is_string(values.type):
        return list(values.cast(pa.binary()).to_pylist())
    if pa.types.is_map(values.type):
        maps = values.to_pylist()
        return [None if pairs is None else msgspec.msgpack.encode(sorted(pairs, key=itemgetter(0))) for pairs in maps]
    return [None if value is None else str(value).encode() for value in values.to_pylist()]
