"""A batch read: the offsets are settled when Spark plans the query, and stay so for the life of the DataFrame.

The driver's side: from options to slices. What a task does is in `reading.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.model.errors import NotFound, WrongKind
from penstock.spark.clients import client_of
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.losses import judge_gaps
from penstock.spark.source.offsets import Position
from penstock.spark.source.options import Place, ReadOptions
from penstock.spark.source.planning import Gap, Heads, LaneSlice, checked_range, clipped, mended, placed, sliced
from penstock.spark.source.reading import ReadSpec, read_slice


class PenstockBatchReader(DataSourceReader):
    """Reads [start, end) of every lane of the chosen queues."""

    def __init__(self, options: ReadOptions, spec: ReadSpec) -> None:
        self._options = options
        self._spec = spec

    def partitions(self) -> list[InputPartition]:
        """One for each lane or slice of it."""
        return [InputPartition(part) for part in self.slices()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice. Spark makes a partition without a value where there is nothing to read."""
        wanted: LaneSlice | None = partition.value
        return iter(()) if wanted is None else read_slice(self._spec, wanted)

    def slices(self) -> list[LaneSlice]:
        """What is read, and by how many tasks."""
        options = self._options
        reader = HeadReader(self._spec.access, options.queues)
        heads = reader.now()
        reader.check_names(heads)
        if not heads:
            raise NotFound(f"the option queue is {options.queues.text!r}, and no queue is called so")
        self._check_group(heads)
        start = self._placed(reader, options.starting, heads, "startingOffsets")
        end = self._placed(reader, options.ending, heads, "endingOffsets")
        checked_range(start, end)
        gaps: list[Gap] = []
        start, lost = mended(start, heads)
        gaps += lost
        end, beyond = clipped(end, heads)
        gaps += beyond
        judge_gaps(gaps, fail=options.fail_on_data_loss)
        return sliced(start, end, options.partitions_min)

    def _check_group(self, heads: Heads) -> None:
        """Every queue must have the group: better now than in the middle of a job."""
        client, group = client_of(self._spec.access), self._options.group
        for queue in heads if group is not None else ():
            groups = client.groups(queue)
            if group not in groups:
                there = f"it has {', '.join(sorted(groups))}" if groups else "it has none"
                raise NotFound(f"queue {queue!r} has no group {group!r} whose delivery state could be read; {there}")
            if groups[group].get("kind") == "stream":
                raise WrongKind(f"group {group!r} of queue {queue!r} is a stream: it has no delivery state")

    def _placed(self, reader: HeadReader, place: Place, heads: Heads, option: str) -> Position:
        if place.time_ms is None:
            return placed(place, heads, option)
        # The ends were settled before: what came or went meanwhile does not count.
        then = reader.now(place.time_ms)
        return placed(place, {name: then.get(name, head) for name, head in heads.items()}, option)
