"""Reads as Spark plans them, on the driver: from options, Spark's checkpoint and what the server holds to slices.

A batch read settles its offsets when Spark plans the query, and they stay so for the life of the DataFrame. A stream
has one reader in one process for the life of a query; a micro-batch is a pair of positions (`offsets.py`) in Spark's
checkpoint, so the same batch is the same messages again whatever happened in between. Positions that cannot be read on
from are mended in batches of their own, which have no rows: queues and lanes that are new are entered at their
earliest offset, and gaps are skipped where data loss may not fail the query. What a task does is in `reading.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.model.errors import NotFound, OffsetGone, WrongKind
from penstock.spark.clients import client_of
from penstock.spark.source.cursor import Cursor
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.offsets import Position, position_json, position_of
from penstock.spark.source.options import Bound, ReadOptions
from penstock.spark.source.planning import (
    Heads,
    LaneKey,
    LaneSlice,
    advanced,
    backlog,
    checked_range,
    clipped,
    counted,
    ends,
    estimated_bytes,
    mended,
    placed,
    readable,
    shares,
    sliced,
    until,
)
from penstock.spark.source.reading import ReadSpec, judge_gaps, read_slice


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
            chosen = options.queues
            raise NotFound(f"the option {chosen.option} is {chosen.text!r}, and no queue is called so")
        self._check_group(heads)
        start = self._placed(reader, options.starting, heads)
        end = self._placed(reader, options.ending, heads)
        checked_range(start, end)
        start, lost = mended(start, heads)
        end, beyond = clipped(end, heads)
        judge_gaps([*lost, *beyond], fail=options.fail_on_data_loss)
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

    def _placed(self, reader: HeadReader, place: Bound, heads: Heads) -> Position:
        return placed(place, reader.at_times(place, heads) if place.has_times else heads)


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over the chosen queues."""

    def __init__(self, options: ReadOptions, spec: ReadSpec) -> None:
        self._options = options
        self._spec = spec
        self._heads = HeadReader(spec.access, options.queues)
        self._cursor = None if options.cursor is None else Cursor(spec.access, options.cursor)
        self._initial: Position | None = None
        self._target: Position | None = None
        self._waits_since: float | None = None

    # A new query ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. Spark asks twice; the answer is the same."""
        if self._initial is None:
            place = self._options.starting
            heads = self._heads.now()
            self._heads.check_names(heads)
            if self._cursor is not None:
                # Before the place is settled: from here on, a queue without retain options keeps its messages for it.
                self._cursor.declare(ends(heads))
                heads = self._heads.now()
            named = place.offsets if place.times is None else place.times
            if named is not None:
                heads = self._named(heads, named)
            if place.has_times:
                heads = self._heads.at_times(place, heads)
            self._initial = placed(place, heads)
        return position_json(self._initial)

    def _named(self, heads: Heads, offsets: Collection[str]) -> Heads:
        """Without queues that only a pattern chooses and no place is given for: they are entered as new ones are."""
        names = {*offsets, *self._options.queues.names}
        return {name: head for name, head in heads.items() if name in names}

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with what is there now."""
        self._target = ends(self._heads.now())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Rows of a micro-batch, unless the trigger asks for all."""
        return ReadMaxRows(self._options.rows_max)

    # The next batch ---------------------------------------------------------------------------------------

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself where there is none.

        Spark asks when the batch that ended at `start` is in its log of commits, so the cursor may be moved there: that
        is sooner than `commit`, which comes with the next batch, and not for the last one.
        """
        position = position_of(start)
        heads = self._visible(position)
        if self._cursor is not None:
            self._show_progress(position, heads)
        readable_from, gaps = mended(position, heads)
        judge_gaps(gaps, fail=self._options.fail_on_data_loss)
        if readable_from != position:
            return position_json(counted(readable_from, gaps))
        rows = backlog(position, until(ends(heads), self._target))
        if not rows or self._waits(sum(rows.values()), limit):
            return start
        return position_json(advanced(position, self._admitted(position, heads, rows, limit)))

    def _visible(self, position: Position) -> Heads:
        """What is there; for a query that ends with a target, no queue that came after it."""
        heads = self._heads.recent()
        self._heads.check_names({*position, *heads})
        if self._target is None:
            return heads
        return {name: head for name, head in heads.items() if name in position or name in self._target}

    def _waits(self, rows: int, limit: ReadLimit) -> bool:
        """Whether there are too few rows, and the first of them has not waited too long. Never where the query ends."""
        rows_min = self._options.rows_min
        if rows_min is None or rows >= rows_min or self._target is not None or not isinstance(limit, ReadMaxRows):
            self._waits_since = None
            return False
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if (now - self._waits_since) * 1000 < self._options.delay_ms:
            return True
        self._waits_since = None
        return False

    def _admitted(
        self, position: Position, heads: Heads, rows: dict[LaneKey, int], limit: ReadLimit
    ) -> dict[LaneKey, int]:
        """How many rows of each lane go into the batch."""
        if not isinstance(limit, ReadMaxRows):
            return rows
        given = shares(rows, limit.max_rows)
        if self._options.bytes_max is None:
            return given
        size = shares(estimated_bytes(given, heads), self._options.bytes_max)
        return {
            key: self._within(key, position[key[0]].lanes[key[1]], count, max(1, size[key]))
            for key, count in given.items()
            if count
        }

    def _within(self, key: LaneKey, begin: int, count: int, size: int) -> int:
        """How many of a lane's next rows fit into a number of bytes."""
        try:
            extent = client_of(self._spec.access).extent(*key, begin, max_rows=count, max_bytes=size)
        except (OffsetGone, NotFound):
            return count  # gone since the heads were seen: `partitions` finds that, and says it
        return min(count, extent.end - begin)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Everything that is there: what is between it and the end of a batch is the backlog."""
        return position_json(ends(self._heads.recent()))

    # One batch --------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The slices of a batch, planned now or before a restart."""
        begin, gaps = readable(position_of(start), position_of(end), self._heads.recent())
        judge_gaps(gaps, fail=self._options.fail_on_data_loss)
        slices = sliced(begin, position_of(end), self._options.partitions_min)
        return [InputPartition(part) for part in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice."""
        wanted: LaneSlice | None = partition.value
        return iter(()) if wanted is None else read_slice(self._spec, wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below `end`."""
        if self._cursor is not None:
            self._show_progress(position_of(end), self._heads.recent())

    def _show_progress(self, position: Position, heads: Heads) -> None:
        assert self._cursor is not None
        there = {name: queue for name, queue in position.items() if name in heads and heads[name].id == queue.id}
        self._cursor.declare(there)
        self._cursor.advance(there)
