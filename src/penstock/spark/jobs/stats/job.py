"""`stats`: what happened in each queue and group, minute by minute, from what the archive has. Needs no server.

First the table `<lake>/stats` is brought up to the archive's marks (`update.py`), then it is read for the range
that is asked for: totals, a series of minutes, hours or days, and why messages died.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from penstock.model import suggestion
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.lakes import check_least, tables_there
from penstock.spark.jobs.stats.rows import COUNTS, TIMES, floor_to
from penstock.spark.jobs.stats.update import Update
from penstock.spark.lake.errors import LakeMissing
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import STATS
from penstock.spark.lake.reading import Choice
from penstock.spark.lake.source import frame
from penstock.spark.lake.storage import Storage
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


class StatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock pipeline stats` is told."""

    lake: str
    storage_options: dict[str, str] = {}
    queues: str = "*"
    """Which are shown: names, patterns or both, with commas in between. All that the archive has are summed up."""
    group: str | None = None
    """Only this group is shown, beside what concerns the queue itself."""
    start: dt.datetime | None = None
    end: dt.datetime | None = None
    """What is shown begins in a minute of [start, end)."""
    by: By | None = None
    """The step of the series; None: what suits the range."""
    update: bool = True
    """Sum up what was archived since; without it, only show."""
    reasons: int = 10
    """How many reasons of dead letters to show."""
    lookback_hours: int = 24
    """How long before its ack, or before another hand-out, a message's hand-out is looked for."""
    unit_messages: int = 2_000_000
    """What one commit sums up, about: more need more memory on the way."""


def run(spark: SparkSession, options: StatsOptions, progress: Progress) -> Summary:
    """Bring the summaries up to date, then tell of the range."""
    check(options)
    queues = queue_choice(options.queues)
    times = Choice(start_us=bound_us(options.start, "start"), end_us=bound_us(options.end, "end"), time="at")
    storage = Storage(options.lake, options.storage_options)
    facts = {}
    if options.update:
        progress.update(note="summing up")
        update = Update(
            spark, storage, progress, lookback_hours=options.lookback_hours, unit_messages=options.unit_messages
        )
        facts = msgspec.to_builtins(update.run())
    progress.update(note="reading")
    table = _table(storage)
    files = table.files()
    chosen = chosen_queues(queues, sorted({file.queue for file in files}))
    facts |= _covered([file for file in files if file.queue in chosen])
    rows = frame(spark, table, None, msgspec.structs.replace(times, queues=tuple(chosen)))
    if options.group is not None:
        rows = rows.where(F.col("group").isNull() | (F.col("group") == options.group))
    found = report(rows, options.by, options.reasons)
    return progress.summary(lake=options.lake, **facts, **found)


def check(options: StatsOptions) -> None:
    """Raise where there is nothing that could be told, before anything is summed up."""
    check_least(options, reasons=1, lookback_hours=0, unit_messages=1)
    for name in ("start", "end"):
        bound_us(getattr(options, name), name)
    queues = queue_choice(options.queues)
    storage = Storage(options.lake, options.storage_options)
    tables = tables_there(storage)
    if not tables:
        raise LakeMissing(f"there is no lake at {storage.url}: archive something first (penstock pipeline archive)")
    archived = sorted({file.queue for table in tables.values() for file in table.files()})
    if not archived:
        raise LakeMissing(f"nothing is in the lake at {storage.url} yet: archive something first")
    for name in queues.names:
        if name not in archived:
            raise NotFound(f"the lake at {storage.url} has nothing of queue {name!r}: {suggestion(name, archived)}")
    if not chosen_queues(queues, archived):
        there = ", ".join(archived)
        raise NotFound(f"the lake at {storage.url} has no queue called {options.queues!r}: there are {there}")


def _covered(files: Sequence[DataFile]) -> dict[str, int]:
    """The minutes of the first and the last of what was summed up, if anything was."""
    times = [file.times_us for file in files if file.times_us is not None]
    if not times:
        return {}
    return {"covers_from_ms": min(times)[0] // 1_000, "covers_to_ms": max(end for _, end in times) // 1_000}


def _table(storage: Storage) -> LakeTable:
    try:
        return LakeTable.open(storage.under(STATS))
    except LakeMissing:
        raise LakeMissing(
            f"nothing was summed up at {storage.url} yet: leave update=False (--no-update) out once"
        ) from None


# What the summaries say ----------------------------------------------------------------------------------


def report(rows: DataFrame, by: By | None, reasons: int) -> dict[str, Any]:
    """Totals, series and reasons, each a list of plain dicts, and by which step the series goes.

    Parts are added up and sketches merged here, whatever number of runs made them.
    """
    rows.persist()
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
