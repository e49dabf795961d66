"""`compact` through Spark: fewer files and the same rows, also for a reader in the middle; old days go."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import InvalidArgument
from penstock.spark.jobs.compact import job as compact
from penstock.spark.jobs.compact.job import CompactOptions
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.lake.errors import LakeDamaged, LakeMissing
from penstock.spark.lake.source import read_lake
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from tests.spark.lakes import lake_ids, lake_table
from tests.unit.spark.lake.generated_rows import at, rows
from tests.unit.spark.lake.test_lake import archive, opened

TODAY = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def run_compact(spark: SparkSession, lake: Path, **more: Any) -> Summary:
    with Progress("compact", "test") as progress:
        summary = compact.run(spark, CompactOptions(lake=str(lake), **more), progress)
        progress.finish(summary)
    return summary


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Twelve small files of two lanes: four of today, and of each of the two days before."""
    table: LakeTable = opened(Storage(str(tmp_path / "lake")).under("messages"))
    for start in range(0, 120, 10):
        moment = TODAY - dt.timedelta(days=2 - start // 40)
        table = archive(table, *(rows(start, start + 10, lane=lane, published=at(moment)) for lane in (0, 1)))
    return tmp_path / "lake"


IDS = [(7, lane, offset) for lane in (0, 1) for offset in range(120)]


def test_a_dry_run_only_tells(spark: SparkSession, lake: Path) -> None:
    version = lake_table(lake).version
    summary = run_compact(spark, lake, dry_run=True, expire_days=1)
    assert (summary.details["merged"], summary.details["into"], summary.details["expired"]) == (8, 2, 4)
    assert lake_table(lake).version == version


def test_small_files_are_merged_and_readers_are_not_disturbed(spark: SparkSession, lake: Path) -> None:
    before = read_lake(spark, str(lake), columns=["queue_id", "lane", "offset"])
    assert before.count() == 240
    summary = run_compact(spark, lake)
    assert (summary.details["merged"], summary.details["into"], summary.details["freed"]) == (8, 2, 0)
    assert len(lake_table(lake).files()) == 6
    assert lake_ids(spark, lake) == IDS
    assert before.count() == 240  # planned before: its files are still there
    assert read_lake(spark, str(lake)).count() == 240
    # The naive way, for comparison: what is merged is still in the folder.
    assert spark.read.parquet(str(lake / "messages")).count() == 400
    again = run_compact(spark, lake)
    assert (again.details["merged"], again.rows) == (0, 0)
    for path in (lake / "messages").rglob("*.parquet"):
        os.utime(path, (0, 0))
    with pytest.raises(InvalidArgument, match="running archive"):
        run_compact(spark, lake, vacuum_hours=0)
    assert run_compact(spark, lake, vacuum_hours=0, alone=True).details["freed"] == 8
    assert lake_ids(spark, lake) == IDS


def test_today_is_merged_if_asked(spark: SparkSession, lake: Path) -> None:
    assert run_compact(spark, lake, older_than_days=0).details["merged"] == 12
    assert run_compact(spark, lake, older_than_days=0).details["merged"] == 0
    assert lake_ids(spark, lake) == IDS


def test_days_past_their_retention_go(spark: SparkSession, lake: Path) -> None:
    assert run_compact(spark, lake, expire_days=1, expire_queues=["others"]).details["expired"] == 0
    summary = run_compact(spark, lake, expire_days=1, expire_queues=["orders"])
    assert (summary.details["expired"], summary.details["expired_rows"]) == (1, 80)  # merged before it expired
    assert lake_ids(spark, lake) == [identity for identity in IDS if identity[2] >= 40]
    table = lake_table(lake)
    assert [(table.floor(7, lane), table.mark(7, lane)) for lane in (0, 1)] == [(40, 120), (40, 120)]


def test_a_damaged_file_is_named_and_left(spark: SparkSession, lake: Path) -> None:
    file = lake_table(lake).files()[0]
    (lake / "messages" / file.path).unlink()
    with pytest.raises(LakeDamaged, match=file.path.rpartition("/")[2]):
        run_compact(spark, lake)
    assert len(lake_table(lake).files()) == 12


def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeMissing, match="there is no lake at"):
        run_compact(spark, tmp_path / "nothing")
    with pytest.raises(InvalidArgument, match="vacuum_hours is -1"):
        run_compact(spark, tmp_path, vacuum_hours=-1)
    with pytest.raises(InvalidArgument, match="give expire_days too"):
        run_compact(spark, tmp_path, expire_queues=["orders"])
