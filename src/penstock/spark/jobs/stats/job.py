"""`stats`: what happened in each queue and group, minute by minute, from what the archive has. Needs no server.

First the table `<lake>/stats` is brought up to the archive's marks (`update.py`), then it is read for the range
that is asked for (`report.py`).
"""

from __future__ import annotations

import datetime as dt

import msgspec
from pyspark.sql import SparkSession

from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.lakes import check_least
from penstock.spark.jobs.stats.report import By, Range, report
from penstock.spark.jobs.stats.update import Update
from penstock.spark.lake.errors import LakeMissing
from penstock.spark.lake.layout import STATS
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable


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
    check_least(options, reasons=1, lookback_hours=0, unit_messages=1)
    wanted = Range(options.queues, options.group, options.start, options.end)
    storage = Storage(options.lake, options.storage_options)
    facts = {}
    if options.update:
        progress.update(note="summing up")
        update = Update(
            spark, storage, progress, lookback_hours=options.lookback_hours, unit_messages=options.unit_messages
        )
        facts = msgspec.to_builtins(update.run())
    progress.update(note="reading")
    found = report(spark, _table(storage), wanted, options.by, options.reasons)
    return progress.summary(lake=options.lake, **facts, **found)


def _table(storage: Storage) -> LakeTable:
    try:
        return LakeTable.open(storage.under(STATS))
    except LakeMissing:
        raise LakeMissing(f"nothing was summed up at {storage.url} yet: update the statistics first") from None
