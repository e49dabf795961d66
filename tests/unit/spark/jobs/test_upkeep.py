"""A lake that is written to all day stays small, while readers and time travel go on. No Spark: tasks run here."""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.jobs.archive import upkeep
from penstock.spark.jobs.archive.upkeep import Upkeep
from penstock.spark.jobs.frame import Progress
from penstock.spark.lake.errors import LakeConflict, LakeDamaged
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import KEEP_DAYS, RETENTION, LakeTable
from tests.unit.spark.lake import delta_protocol
from tests.unit.spark.lake.generated_rows import at, content, rows
from tests.unit.spark.lake.test_lake import archive, opened

NOW = dt.datetime.now(dt.UTC)
DAY_S = 86_400


def here(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """Tasks in this process."""
    return [function(argument) for argument in arguments]


class Clock:
    """Stands in for `time` in the upkeep: a day is over at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(upkeep, "time", made)
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "lake"))


def commits(table: LakeTable, count: int, start: int = 0) -> LakeTable:
    """So many commits of one file each, of messages that are published now."""
    for number in range(start, start + count):
        table = archive(table, rows(number, number + 1, published=at(NOW)))
    return table


def ids(count: int) -> list[tuple[int, int, int]]:
    return [(7, 0, offset) for offset in range(count)]


def folder(lake: Storage) -> Path:
    return Path(lake.under("messages").url)


def test_many_commits_of_a_day_leave_few_files_and_every_row(lake: Storage, clock: Clock) -> None:
    table = commits(opened(lake.under("messages")), 20)
    before = content(table)
    tidy = Upkeep(lake, Progress("archive"), 2, here)
    tidy.look()
    merged = LakeTable.open(table.storage)
    assert len(merged.files()) == 1
    assert (tidy.done.merged, tidy.done.into) == (20, 1)
    assert content(merged) == before
    assert content(table) == before  # who began before goes on with the files of then
    assert (merged.mark(7, 0), merged.floor(7, 0)) == (20, 0)

    table = commits(merged, 10, start=20)
    tidy.look()  # not due yet
    assert len(LakeTable.open(table.storage).files()) == 11
    clock.now += upkeep.MERGE_EVERY_S
    tidy.look()
    assert len(LakeTable.open(table.storage).files()) == 1
    assert delta_protocol.identities(folder(lake)) == ids(30)


def test_a_commit_from_before_a_merge_still_lands(lake: Storage) -> None:
    table = commits(opened(lake.under("messages")), 10)
    Upkeep(lake, Progress("archive"), 2, here).look()
    after = archive(table, rows(10, 12, published=at(NOW)))  # the archive's handle is of the version before
    assert [row["offset"] for row in content(after)] == list(range(12))


def aged(lake: Storage, versions: range, days: float) -> None:
    """Log entries and checkpoints of these versions were written so many days ago."""
    then = time.time() - days * DAY_S
    for version in versions:
        for path in (folder(lake) / "_delta_log").glob(f"{version:020}.*"):
            os.utime(path, (then, then))


def log_versions(lake: Storage, kind: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in (folder(lake) / "_delta_log").glob(f"*{kind}"))


def test_the_log_loses_what_is_older_than_the_kept_days(
    lake: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.lake.table.CHECKPOINT_EVERY", 5)
    with monkeypatch.context() as then:  # long ago, as far as the marks know
        then.setattr("penstock.spark.lake.table.now_ms", lambda: int((time.time() - 40 * DAY_S) * 1_000))
        table = commits(opened(lake.under("messages")).keep_for(3), 25)
    last = table.version
    aged(lake, range(13), days=4)
    aged(lake, range(13, 20), days=2)
    Upkeep(lake, Progress("archive"), 2, here).look()

    kept = log_versions(lake, ".json")
    assert kept[0] == 5  # a checkpoint, from which the oldest version of the last three days is read
    assert log_versions(lake, ".checkpoint.parquet")[0] == 5
    for version in range(5, last + 1):
        archived = version - 1  # one commit made the table, one said how long to keep it
        assert delta_protocol.identities(folder(lake), version) == ids(archived)
        assert len(content(LakeTable.open(table.storage, version))) == archived
    assert delta_protocol.identities(folder(lake)) == ids(25)
    assert LakeTable.open(table.storage).mark(7, 0) == 25
    assert delta_protocol.active_files(folder(lake)) == {file.path for file in LakeTable.open(table.storage).files()}


def test_spare_checkpoints_go_and_what_they_shortened_is_still_read(
    lake: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.lake.table.CHECKPOINT_EVERY", 5)
    table = commits(opened(lake.under("messages")), 30)
    before = log_versions(lake, ".checkpoint.parquet")
    assert before == list(range(5, 31, 5))
    tidy = Upkeep(lake, Progress("archive"), 2, here)
    tidy.look()
    after = log_versions(lake, ".checkpoint.parquet")
    assert len(after) == 4  # the first of today and the newest three
    assert after[0] == 5
    assert log_versions(lake, ".json") == list(range(table.version + 1 + 1))  # and the merge's
    assert delta_protocol.identities(folder(lake), 13) == ids(13)
    assert len(content(LakeTable.open(table.storage, 13))) == 13


def test_files_that_left_the_lake_long_ago_are_freed(lake: Storage, clock: Clock) -> None:
    table = commits(opened(lake.under("messages")), 10)
    tidy = Upkeep(lake, Progress("archive"), 2, here)
    tidy.look()
    assert len(list(folder(lake).rglob("part-*"))) == 11  # what was merged stays for the readers of the last days
    table.reopened()._delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(list(folder(lake).rglob("part-*"))) == 1
    orphan = next(folder(lake).rglob("part-*")).with_name("part-killed.zstd.parquet")
    orphan.write_bytes(b"of a task that was killed")
    os.utime(orphan, (0, 0))
    clock.now += upkeep.CLEAN_EVERY_S
    tidy.look()
    assert (tidy.done.freed, orphan.exists()) == (1, False)


def test_how_long_is_kept_is_said_by_deltas_own_properties(lake: Storage) -> None:
    table = opened(lake.under("messages"))
    assert table.keep_days == KEEP_DAYS == 7
    assert table.keep_for(7).version == table.version
    changed = table.keep_for(30)
    assert (changed.keep_days, changed.version) == (30, table.version + 1)
    assert changed.properties["delta.logRetentionDuration"] == "interval 30 days"
    assert changed.properties["delta.deletedFileRetentionDuration"] == "interval 30 days"
    in_weeks = dict(zip(RETENTION, ("interval 2 weeks", "INTERVAL 9 days"), strict=True))
    LakeTable.open(table.storage)._delta.alter.set_table_properties(in_weeks)
    assert LakeTable.open(table.storage).keep_days == 9
    changed = LakeTable.open(table.storage).keep_for(30)
    with pytest.raises(LakeConflict, match="another writer"):
        archive(table, rows(0, 1))  # written again by the archive, with the table as it is now
    assert len(content(archive(changed, rows(0, 1)))) == 1


def test_what_fails_is_told_once_and_the_archive_goes_on(
    lake: Storage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    commits(opened(lake.under("messages")), 10)

    def broken(_function: Callable[[Any], Any], _arguments: Sequence[Any]) -> list[Any]:
        raise LakeDamaged("a file is cut short")

    tidy = Upkeep(lake, Progress("archive"), 2, broken)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tidy.look()
            clock.now += upkeep.MERGE_EVERY_S
    assert [record.getMessage() for record in caplog.records] == [
        f"the lake at {lake.url} was not tidied up, and will be later: a file is cut short"
    ]


def test_a_stop_is_not_kept_waiting(lake: Storage) -> None:
    table = commits(opened(lake.under("messages")), 10)
    progress = Progress("archive")
    progress.stop()
    Upkeep(lake, progress, 2, here).look()
    assert len(LakeTable.open(table.storage).files()) == 10
