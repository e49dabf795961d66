"""Messages of history as Spark rows: read from lake and log, filtered, counted, made into what the sink publishes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from penstock.spark.filters.columns import filter_column
from penstock.spark.jobs.lakes import read_log
from penstock.spark.jobs.replay.plan import HistoryOptions, lake_messages
from penstock.spark.lake.errors import LakeGap
from penstock.spark.lake.reading import LaneRange
from penstock.spark.lake.source import frame
from penstock.spark.source.planning import LaneSlice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs.replay.job import ReplayOptions

COLUMNS: Final = (
    "queue", "queue_id", "lane", "offset", "published_at", "partition", "payload", "headers", "typed_headers", "key",
    "content_type", "priority", "ttl_ms", "delay_ms", "not_before", "dedup_id", "trace_id", "correlation_id",
)  # fmt: skip
MESSAGE: Final = (
    "payload", "partition", "key", "typed_headers", "priority", "ttl_ms", "dedup_id", "content_type", "correlation_id",
    "trace_id",
)  # fmt: skip
"""What is published of a row."""
_VALUE: Final = "struct<kind:string,text:string,integer:bigint,float:double>"


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


def wanted(options: ReplayOptions) -> Column:
    """Which messages are replayed, of those within the times."""
    conditions: list[Column] = [F.lit(True)]
    if options.partitions is not None:
        conditions.append(F.col("partition").isin(options.partitions))
    for name, value in (options.headers or {}).items():
        conditions.append(F.col("headers")[name] == value)
    if options.where is not None:
        conditions.append(filter_column(options.where))
    return reduce(Column.__and__, conditions)


def dedup_id(options: HistoryOptions) -> Column:
    """The message's own, where it is kept."""
    return F.col("dedup_id") if options.keep_dedup_ids else F.lit(None).cast("string")


def published(rows: DataFrame, options: ReplayOptions) -> DataFrame:
    """The messages as the sink takes them. Delays are over; a ttl counts from now on."""
    return rows.withColumns({"typed_headers": _headers(options), "dedup_id": dedup_id(options)}).select(*MESSAGE)


def _headers(options: ReplayOptions) -> Column:
    """The message's own, and where it was; those of an earlier replay give way."""
    time = F.date_format("published_at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    added = {
        "x-original-queue": _value("text", text=F.col("queue")),
        "x-original-queue-id": _value("integer", integer=F.col("queue_id")),
        "x-original-lane": _value("integer", integer=F.col("lane").cast("bigint")),
        "x-original-offset": _value("integer", integer=F.col("offset")),
        "x-original-published-at": _value("time", text=time),
        "x-original-dedup-id": _value("text", text=F.col("dedup_id")),
        "x-replay": _value("text", text=F.lit(options.name)),
    }
    own = F.coalesce(F.col("typed_headers"), F.create_map().cast(f"map<string,{_VALUE}>"))
    names = [F.lit(name) for name in added]
    kept = F.map_filter(own, lambda name, _: ~name.isin(names))
    more = F.create_map(*(item for name, value in added.items() for item in (F.lit(name), value)))
    known = F.map_filter(more, lambda _, value: value["text"].isNotNull() | value["integer"].isNotNull())
    return F.map_concat(kept, known)


def _value(kind: str, *, text: Column | None = None, integer: Column | None = None) -> Column:
    """One typed header."""
    return F.struct(
        F.lit(kind).alias("kind"),
        (F.lit(None).cast("string") if text is None else text).alias("text"),
        (F.lit(None).cast("bigint") if integer is None else integer).alias("integer"),
        F.lit(None).cast("double").alias("float"),
    )


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
