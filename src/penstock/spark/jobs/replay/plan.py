"""Which part of history a replay or a route goes through: offsets, settled once and cut into units.

No message is read for it but by number.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.model.errors import InvalidArgument
from penstock.spark.jobs.lakes import LakeOptions, check_positive, tables_to_read
from penstock.spark.lake.errors import LakeMissing
from penstock.spark.lake.layout import MESSAGES
from penstock.spark.lake.reading import Choice
from penstock.spark.lake.source import frame
from penstock.spark.lake.table import LakeTable
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.options import chosen_queues
from penstock.spark.source.planning import LaneSlice
from penstock.spark.times import bound_us, microseconds

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
    ends = reader.now(None if options.end is None else _milliseconds(options.end))
    starts = reader.now(None if options.start is None else _milliseconds(options.start))
    found = []
    for queue, head in ends.items():
        begun = starts.get(queue)
        for lane, one in head.lanes.items():
            mark = None if table is None else table.mark(head.id, lane)
            start = max(one.first, mark or 0)
            if begun is not None and begun.id == head.id and begun.lanes[lane].at_time is not None:
                start = max(start, begun.lanes[lane].at_time or 0)
            end = one.end if one.at_time is None else one.at_time
            if end > start:
                found.append(LaneSlice(queue, head.id, lane, start, end))
    return found


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
