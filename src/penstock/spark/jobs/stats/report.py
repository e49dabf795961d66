"""What the summaries say of a range of time: totals, a series of minutes, hours or days, and why messages died.

Parts are added up and sketches merged here, whatever number of runs made them.

May not know: how summaries come about, or how numbers look on a terminal.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from penstock.model.errors import InvalidArgument
from penstock.spark.jobs.stats.rows import COUNTS, TIMES, floor_to
from penstock.spark.lake.reading import Choice
from penstock.spark.lake.source import frame
from penstock.spark.lake.table import LakeTable
from penstock.spark.source.options import chosen_queues, queue_choice
from penstock.spark.times import bound_us

By = Literal["minute", "hour", "day"]
STEPS_MS: Final[dict[By, int]] = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
STEPS_MAX: Final = 10_000
"""Of one series: more would be nothing that anybody looks at."""
STEPS_USUAL: Final = 240
"""The most rows of a series; without a given step, the smallest one that stays below this is taken."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
NUMBERS: Final = tuple(name for name in COUNTS if name != "died")


class Range:
    """Which summaries are wanted."""

    def __init__(self, queues: str, group: str | None, start: dt.datetime | None, end: dt.datetime | None) -> None:
        self.queues = queue_choice(queues)
        self.group = group
        self.start_us, self.end_us = bound_us(start, "start"), bound_us(end, "end")


def report(spark: SparkSession, table: LakeTable, wanted: Range, by: By | None, reasons: int) -> dict[str, Any]:
    """Totals, series and reasons, each a list of plain dicts, and by which step the series goes."""
    rows = _rows(spark, table, wanted).persist()
    try:
        totals = sorted(map(_numbers, _added(rows, []).collect()), key=_place)
        step = by or usual_step(totals)
        series = _series(rows, totals, step)
        return {"by": step, "totals": totals, "series": series, "reasons": _reasons(rows, reasons)}
    finally:
        rows.unpersist()


def usual_step(totals: list[dict[str, Any]]) -> By:
    """The smallest step that keeps a series short."""
    for step, milliseconds in STEPS_MS.items():
        if _steps(totals, milliseconds) <= STEPS_USUAL:
            return step
    return "day"


def _steps(totals: list[dict[str, Any]], milliseconds: int) -> int:
    if not totals:
        return 0
    first, last = min(row["first_ms"] for row in totals), max(row["last_ms"] for row in totals)
    return int(last // milliseconds - first // milliseconds + 1)


def _rows(spark: SparkSession, table: LakeTable, wanted: Range) -> DataFrame:
    queues = chosen_queues(wanted.queues, sorted({file.queue for file in table.files()}))
    choice = Choice(tuple(queues), wanted.start_us, wanted.end_us, time="at")
    rows = frame(spark, table, None, choice)
    if wanted.group is not None:
        rows = rows.where(F.col("group").isNull() | (F.col("group") == wanted.group))
    return rows


def _added(rows: DataFrame, more_keys: list[Column]) -> DataFrame:
    """The numbers of each queue and group, and of whatever else is asked for. The queue itself has no group."""
    sums = [F.sum(name).alias(name) for name in NUMBERS]
    times = [
        column
        for name in TIMES
        for column in (
            F.sum(name).alias(name),
            F.max(f"{name}_max_ms").alias(f"{name}_max_ms"),
            F.kll_merge_agg_bigint(f"{name}_sketch").alias(f"{name}_sketch"),
        )
    ]
    ends = [F.min(F.unix_millis("at")).alias("first_ms"), F.max(F.unix_millis("at")).alias("last_ms")]
    added = rows.groupBy("queue", "group", *more_keys).agg(*sums, *times, *ends)
    ranks = F.array(*(F.lit(rank) for rank in QUANTILES.values()))
    for name in TIMES:
        quantiles = F.kll_sketch_get_quantile_bigint(f"{name}_sketch", ranks)
        added = added.withColumn(f"{name}_quantiles", F.when(F.col(name) > 0, quantiles)).drop(f"{name}_sketch")
    return added


def _numbers(row: Row) -> dict[str, Any]:
    """As it is shown: times as a dict, null where there were none."""
    found: dict[str, Any] = {"queue": row["queue"], "group": row["group"], **{name: row[name] for name in NUMBERS}}
    for name, values in TIMES.items():
        quantiles = row[f"{name}_quantiles"]
        found[values] = (
            None
            if quantiles is None
            else {
                "count": row[name],
                **dict(zip(QUANTILES, quantiles, strict=True)),
                "max": row[f"{name}_max_ms"],
            }
        )
    return found | {"first_ms": row["first_ms"], "last_ms": row["last_ms"]}


def _place(row: Row | dict[str, Any]) -> tuple[str, str]:
    """The queue itself stands before its groups."""
    return row["queue"], row["group"] or ""


def _series(rows: DataFrame, totals: list[dict[str, Any]], step: By) -> list[dict[str, Any]]:
    """The numbers of each step in which something happened, by rising time."""
    milliseconds = STEPS_MS[step]
    if (steps := _steps(totals, milliseconds)) > STEPS_MAX:
        raise InvalidArgument(
            f"the range has {steps:,} {step}s, and a series {STEPS_MAX:,} at most: choose a larger step than {step!r}, "
            "or a shorter range"
        )
    when = F.unix_millis(floor_to(F.col("at"), milliseconds)).alias("at_ms")
    found = sorted(_added(rows, [when]).collect(), key=lambda row: (*_place(row), row["at_ms"]))
    left_out = {"first_ms", "last_ms"}
    return [
        {"at_ms": row["at_ms"]} | {name: value for name, value in _numbers(row).items() if name not in left_out}
        for row in found
    ]


def _reasons(rows: DataFrame, most: int) -> list[dict[str, Any]]:
    """What most messages died of, with the minutes of the first and the last."""
    found = (
        rows.where(F.col("reason").isNotNull())
        .groupBy("queue", "group", "reason", "error")
        .agg(
            F.sum("died").alias("dead"),
            F.min(F.unix_millis("at")).alias("first_ms"),
            F.max(F.unix_millis("at")).alias("last_ms"),
        )
        .orderBy(F.desc("dead"), "queue", "group", "reason", "error")
        .limit(most)
        .collect()
    )
    return [row.asDict() for row in found]
