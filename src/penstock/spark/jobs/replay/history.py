"""What a replay and a route share: which offsets of history they go through, and its messages as Spark rows.

The offsets are settled once and cut into units, without reading a message but by number. Rows come from lake and log,
are filtered and counted, and become what the sink publishes.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.model.errors import InvalidArgument
from penstock.spark.jobs.lakes import LakeOptions, check_positive, read_log, tables_to_read
from penstock.spark.lake.errors import LakeGap, LakeMissing
from penstock.spark.lake.layout import MESSAGES
from penstock.spark.lake.reading import Choice, LaneRange
from penstock.spark.lake.source import frame
from penstock.spark.lake.table import LakeTable
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.options import Bound, chosen_queues
from penstock.spark.source.planning import Heads, LaneSlice
from penstock.spark.times import bound_us, microseconds

COLUMNS: Final = (
    "queue",
    "queue_id",
    "lane",
    "offset",
    "published_at",
    "partition",
    "payload",
    "headers",
    "typed_headers",
    "key",
    "content_type",
    "priority",
    "ttl_ms",
    "delay_ms",
    "not_before",
    "dedup_id",
    "trace_id",
    "correlation_id",
)
MESSAGE: Final = (
    "payload",
    "partition",
    "key",
    "typed_headers",
    "priority",
    "ttl_ms",
    "dedup_id",
    "content_type",
    "correlation_id",
    "trace_id",
)
"""What is published of a row."""
UNIT_ROWS: Final = 200_000


class HistoryOptions(LakeOptions, frozen=True, kw_only=True):
    """Which messages of the lake and the log a job publishes again, and how."""

    events: bool = False
    start: dt.datetime | None = None
    end: dt.datetime | None = None
    """Messages published in [start, end)."""
    live: bool = True
    """Also what is in the log and not in the lake yet."""
    keep_dedup_ids: bool = False
    """Keep dedup ids: of messages that bear the same, the target then takes only one."""
    unit_rows: int = UNIT_ROWS
    """Offsets that are read and published as one."""
    dry_run: bool = False
    """Count what would be published, by queue and day, and publish nothing."""

    @property
    def times(self) -> Choice:
        """The lake's rows within [start, end)."""
        return Choice(start_us=bound_us(self.start, "start"), end_us=bound_us(self.end, "end"))

    def check(self) -> None:
        """Raise where an option cannot be right."""
        if self.events:
            raise InvalidArgument("delivery events tell what happened: they cannot be replayed and are not routed")
        check_positive(self, "unit_rows")
        for name in ("start", "end"):
            bound_us(getattr(self, name), name)


class Plan(msgspec.Struct, frozen=True):
    """All offsets of a replay, and how many of them make a unit."""

    slices: list[LaneSlice]
    unit_rows: int


def planned(spark: SparkSession, options: HistoryOptions, unit_rows: int) -> Plan:
    """What the lake and the log have now, within the times that are asked for."""
    table = lake_messages(options)
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    if table is not None:
        for slice_ in _in_lake(spark, options, table):
            found[slice_.queue, slice_.queue_id, slice_.lane] = slice_.start, slice_.end
    if options.live:
        for slice_ in _in_log(options, table):
            key = slice_.queue, slice_.queue_id, slice_.lane
            start, end = found.get(key, (slice_.start, slice_.end))
            found[key] = min(start, slice_.start), max(end, slice_.end)
    return Plan([LaneSlice(*key, *span) for key, span in sorted(found.items())], unit_rows)


def lake_messages(options: LakeOptions) -> LakeTable | None:
    """The lake's messages; None where nothing was archived yet."""
    try:
        return tables_to_read(options).get(MESSAGES)
    except LakeMissing:
        return None


def _in_lake(spark: SparkSession, options: HistoryOptions, table: LakeTable) -> list[LaneSlice]:
    queues = chosen_queues(options.choice, sorted({file.queue for file in table.files()}))
    columns = ["queue", "queue_id", "lane", "offset"]
    wanted = msgspec.structs.replace(options.times, queues=tuple(queues))
    lanes = frame(spark, table, columns, wanted).groupBy(*columns[:3])
    ends = lanes.agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()
    return [LaneSlice(row["queue"], row["queue_id"], row["lane"], row["first"], row["last"] + 1) for row in ends]


def _in_log(options: HistoryOptions, table: LakeTable | None) -> list[LaneSlice]:
    """What is beyond the lake's marks."""
    reader = HeadReader(options.access, options.choice)
    heads = reader.now()
    starts, ends = (_at(reader, heads, moment) for moment in (options.start, options.end))
    found = []
    for queue, head in heads.items():
        for lane, one in head.lanes.items():
            mark = None if table is None else table.mark(head.id, lane)
            start = max(one.first, mark or 0, starts[queue].lanes[lane].at_time or 0)
            at_end = ends[queue].lanes[lane].at_time
            end = one.end if at_end is None else min(at_end, one.end)
            if end > start:
                found.append(LaneSlice(queue, head.id, lane, start, end))
    return found


def _at(reader: HeadReader, heads: Heads, moment: dt.datetime | None) -> Heads:
    """Where lanes were at the moment, if there is one."""
    return heads if moment is None else reader.at_times(Bound(time_ms=_milliseconds(moment)), heads)


def _milliseconds(moment: dt.datetime) -> int:
    """Rounded up: the first millisecond that is not before the moment."""
    return -(-microseconds(moment) // 1_000)


def units(plan: Plan) -> list[list[LaneSlice]]:
    """The slices in pieces of at most `unit_rows` in all; always the same of the same plan."""
    found: list[list[LaneSlice]] = []
    room = 0
    for slice_ in plan.slices:
        start = slice_.start
        while start < slice_.end:
            if room == 0:
                found.append([])
                room = plan.unit_rows
            end = min(slice_.end, start + room)
            found[-1].append(msgspec.structs.replace(slice_, start=start, end=end))
            room -= end - start
            start = end
    return found


# Messages ------------------------------------------------------------------------------------------------


def rows_of(
    spark: SparkSession, options: HistoryOptions, slices: Sequence[LaneSlice], is_wanted: Column
) -> DataFrame | None:
    """The wanted messages of these offsets: below a lane's mark from the lake, from there on from the log."""
    table = lake_messages(options)
    archived: list[LaneRange] = []
    logged: list[LaneSlice] = []
    for one in slices:
        mark = (None if table is None else table.mark(one.queue_id, one.lane)) or 0
        floor = (None if table is None else table.floor(one.queue_id, one.lane)) or 0
        if one.start < min(floor, mark):
            raise LakeGap(
                f"offsets {one.start} to {min(one.end, floor, mark)} of queue {one.queue!r}, lane {one.lane}, have "
                f"expired from the lake, which begins at {floor}: they cannot be replayed any more. Plan a replay "
                "under another name, with a start after that"
            )
        if one.start < mark:
            archived.append(LaneRange(one.queue_id, one.lane, one.start, min(one.end, mark)))
        if one.end > mark:
            logged.append(LaneSlice(one.queue, one.queue_id, one.lane, max(one.start, mark), one.end))
    parts: list[DataFrame] = []
    if table is not None and archived:
        queues = tuple({one.queue for one in slices})
        choice = msgspec.structs.replace(options.times, queues=queues, ranges=tuple(archived))
        parts.append(frame(spark, table, COLUMNS, choice).select(*COLUMNS))
    if logged:
        parts.append(_logged(spark, options, logged))
    if not parts:
        return None
    rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return rows.where(_in_time(options)).where(is_wanted)


def _logged(spark: SparkSession, options: HistoryOptions, slices: Sequence[LaneSlice]) -> DataFrame:
    low: dict[str, dict[int, int]] = defaultdict(dict)
    high: dict[str, dict[int, int]] = defaultdict(dict)
    for one in slices:
        low[one.queue][one.lane], high[one.queue][one.lane] = one.start, one.end
    for queue in list(low):
        found = options.client.lanes(queue)
        ids = {one.queue_id for one in slices if one.queue == queue}
        if ids != {found.queue_id}:
            raise LakeGap(
                f"the queue {queue!r} was deleted since the replay was planned (queue_id {min(ids)}), and its last "
                "messages were not archived: they are gone"
            )
        for lane in found.lanes:
            low[queue].setdefault(lane.lane, lane.first)
            high[queue].setdefault(lane.lane, low[queue][lane.lane])
    return read_log(spark, options, low, high, COLUMNS).select(*COLUMNS)


def _in_time(options: HistoryOptions) -> Column:
    conditions: list[Column] = [F.lit(True)]
    if options.start is not None:
        conditions.append(F.col("published_at") >= F.lit(options.start))
    if options.end is not None:
        conditions.append(F.col("published_at") < F.lit(options.end))
    return reduce(Column.__and__, conditions)


def dedup_id(options: HistoryOptions) -> Column:
    """The message's own, where it is kept."""
    return F.col("dedup_id") if options.keep_dedup_ids else F.lit(None).cast("string")


def days_of(rows: DataFrame | None) -> list[dict[str, Any]]:
    """How many rows there are of each queue and day."""
    if rows is None:
        return []
    grouped = rows.groupBy("queue", F.to_date("published_at").cast("string").alias("date")).count()
    return [row.asDict() for row in grouped.orderBy("queue", "date").collect()]


def counted(seen: Observation, rows: DataFrame, counts: Mapping[str, Column]) -> dict[str, int]:
    """What an observation of `rows` counted while they were written.

    Where nothing was left to write, Spark may have dropped the plan, with the counters in it: then it is counted again.
    """
    try:
        found = seen.get
    except Py4JJavaError:
        row = rows.agg(*(column.alias(name) for name, column in counts.items())).first()
        found = {} if row is None else row.asDict()
    return {name: int(found.get(name) or 0) for name in counts}
