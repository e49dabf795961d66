"""`compact`: small files of the lake become large ones, days past their retention go, and so do unused files.

The order matters: what is merged or expired only leaves the table; the vacuum at the end frees the space of what left
it long ago, so that readers are not disturbed. Needs no server.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.model.errors import InvalidArgument
from penstock.spark.jobs.compact.merging import merge_files
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.lakes import check_least, in_tasks, tables_there
from penstock.spark.lake import compaction
from penstock.spark.lake.errors import LakeMissing
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import EVENTS, IDENTITY, MESSAGES, SCHEMAS, STATS, chosen
from penstock.spark.lake.reading import Choice, read_file
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable, LaneKey


class CompactOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock pipeline compact` is told."""

    lake: str
    storage_options: dict[str, str] = {}
    older_than_days: int = 1
    """Merge files of days that ended so long ago; 0 is today too."""
    target_bytes: int = 128 * 1024 * 1024
    """How large merged files should be."""
    expire_days: int | None = None
    """How many days to keep; None keeps everything."""
    expire_queues: list[str] | None = None
    """Only these queues' messages expire; None: those of all, and all delivery events."""
    vacuum: bool = True
    """Free files that left the table long ago, and forget entries of its log as old."""
    vacuum_hours: int | None = None
    """How long ago; readers may take no longer than that. None: the days that the lake keeps (`archive`)."""
    alone: bool = False
    """No archive runs on this lake now: only then may `vacuum_hours` be 0, for its newest files are in no log yet."""
    dry_run: bool = False
    """Only tell what would be done."""


class Counts(msgspec.Struct):
    """What was done to the tables."""

    merged: int = 0
    into: int = 0
    expired: int = 0
    expired_rows: int = 0
    freed: int = 0


def run(spark: SparkSession, options: CompactOptions, progress: Progress) -> Summary:
    """Merge, expire, vacuum, in every table; what `stats` made is small and stays."""
    today = dt.datetime.now(dt.UTC).date()
    counts = Counts()
    for name, table in check(options).items():
        progress.update(note=f"table {name}")
        table = _expire(spark, options, table, name, today, counts)
        if not progress.stopping:
            table = _merge(spark, options, table, name, today, counts, progress)
        if options.vacuum and not progress.stopping:
            hours = table.keep_days * 24 if options.vacuum_hours is None else options.vacuum_hours
            counts.freed += len(table.reopened().vacuum(hours, dry_run=options.dry_run))
            if not options.dry_run:
                table.reopened().clean_log()
    return progress.summary(lake=options.lake, dry_run=options.dry_run, **msgspec.structs.asdict(counts))


def check(options: CompactOptions) -> dict[str, LakeTable]:
    """The lake's tables; raises where there is none, or an option cannot be right."""
    check_least(options, older_than_days=0, target_bytes=1, expire_days=0, vacuum_hours=0)
    if options.vacuum_hours == 0 and not options.alone:
        raise InvalidArgument(
            "vacuum_hours is 0: that would also free files that a running archive has written and not committed yet. "
            "Give 1 or more, or alone=True (--alone) if no archive runs on this lake"
        )
    if options.expire_queues is not None and options.expire_days is None:
        raise InvalidArgument("expire_queues says whose messages expire; give expire_days too")
    tables = tables_there(Storage(options.lake, options.storage_options))
    if not tables:
        raise LakeMissing(f"there is no lake at {options.lake}: archive something first (penstock pipeline archive)")
    return tables


# Small files ---------------------------------------------------------------------------------------------


def _merge(
    spark: SparkSession,
    options: CompactOptions,
    table: LakeTable,
    name: str,
    today: dt.date,
    counts: Counts,
    progress: Progress,
) -> LakeTable:
    before = compaction.day_before(options.older_than_days - 1, today)
    plan = compaction.merges(table.files(), before, options.target_bytes)
    if options.dry_run:
        counts.merged += sum(map(len, plan))
        counts.into += len(plan)
        return table
    done = 0
    cores = spark.sparkContext.defaultParallelism
    for changed, merges in merge_files(table, name, plan, cores, partial(in_tasks, spark)):
        table = changed
        counts.merged += merges.merged
        counts.into += merges.into
        done += merges.groups
        progress.add(merges.rows)
        progress.update(done=done, total=len(plan))
        if progress.stopping:
            break
    return table


# Old days ------------------------------------------------------------------------------------------------


def _expire(
    spark: SparkSession, options: CompactOptions, table: LakeTable, name: str, today: dt.date, counts: Counts
) -> LakeTable:
    if options.expire_days is None or name == STATS or (options.expire_queues is not None and name == EVENTS):
        return table
    old = compaction.expired(table.files(), compaction.day_before(options.expire_days, today), options.expire_queues)
    counts.expired += len(old)
    counts.expired_rows += sum(file.rows or 0 for file in old)
    if not old or options.dry_run:
        return table
    return compaction.expire(table, old, _floors(spark, table.storage, name, old))


def _floors(spark: SparkSession, storage: Storage, name: str, old: Sequence[DataFile]) -> dict[LaneKey, int]:
    """For each lane, the offset after the last that goes."""
    floors: dict[LaneKey, int] = {}
    for part in in_tasks(spark, partial(_lane_ends, storage, name), list(old)):
        for lane, end in part.items():
            floors[lane] = max(end, floors.get(lane, 0))
    return floors


def _lane_ends(storage: Storage, name: str, file: DataFile) -> dict[LaneKey, int]:
    """Where the lanes of one file end, in a task."""
    columns = IDENTITY if name == MESSAGES else tuple(f"event_{column}" for column in IDENTITY)
    ends: dict[LaneKey, int] = {}
    for rows in read_file(storage, file, chosen(SCHEMAS[name], columns), Choice()):
        lanes = pa.Table.from_batches([rows]).group_by(list(columns[:2])).aggregate([(columns[2], "max")])
        for row in lanes.to_pylist():
            lane = row[columns[0]], row[columns[1]]
            ends[lane] = max(row[f"{columns[2]}_max"] + 1, ends.get(lane, 0))
    return ends
