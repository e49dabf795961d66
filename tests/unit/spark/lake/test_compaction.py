"""Compaction without Spark: fewer files, the same rows; old days go; readers and writers are not disturbed."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.lake import compaction
from penstock.spark.lake.errors import LakeConflict, LakeDamaged
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import MESSAGES_SCHEMA
from penstock.spark.lake.reading import Choice
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from tests.unit.spark.lake.generated_rows import DAY, at, content, identities, read_rows, rows
from tests.unit.spark.lake.test_lake import archive, opened

MEBIBYTE = 1024 * 1024
LATER = "2026-04-01"


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    """Ten small files with two lanes each, on two days."""
    lake = opened(Storage(str(tmp_path / "messages")))
    for start in range(0, 100, 10):
        moment = DAY + dt.timedelta(days=start // 50)
        lake = archive(lake, *(rows(start, start + 10, lane=lane, published=at(moment)) for lane in (0, 1)))
    return lake


def compacted(lake: LakeTable, before: str = LATER, target: int = MEBIBYTE) -> LakeTable:
    done = [
        compaction.merge(lake.storage, MESSAGES_SCHEMA, merge)
        for merge in compaction.merges(lake.files(), before, target)
    ]
    return compaction.replace(lake, done)[0]


def test_small_files_become_one_for_each_partition(lake: LakeTable) -> None:
    before = content(lake)
    merged = compacted(lake)
    assert [(file.date, file.rows) for file in sorted(merged.files(), key=lambda file: file.date)] == [
        ("2026-03-01", 100),
        ("2026-03-02", 100),
    ]
    assert content(merged) == before
    assert (merged.mark(7, 0), merged.floor(7, 1)) == (100, 0)
    assert compaction.merges(merged.files(), LATER, MEBIBYTE) == []


def test_recent_days_and_large_files_are_left_alone(lake: LakeTable) -> None:
    sizes = sum(file.size for file in lake.files())
    assert {file.date for merge in compaction.merges(lake.files(), "2026-03-02", MEBIBYTE) for file in merge} == {
        "2026-03-01"
    }
    assert compaction.merges(lake.files(), LATER, 100) == []
    halves = compaction.merges(lake.files(), LATER, sizes // 4)
    assert all(sum(file.size for file in merge) <= sizes // 4 for merge in halves)
    assert compaction.day_before(3, dt.date(2026, 3, 2)) == "2026-02-27"


def test_a_reader_that_began_before_goes_on(lake: LakeTable) -> None:
    reader = iter(list(read_rows(lake.storage, lake, Choice())))
    merged = compacted(lake)
    assert merged.vacuum(1) == []  # merged away a moment ago: still there for those who read it
    assert len(list(reader)) == 200
    assert len(content(lake)) == 200


def test_a_vacuum_removes_what_was_merged_long_ago(lake: LakeTable) -> None:
    merged = compacted(lake)
    for path in Path(lake.storage.url).rglob("*.parquet"):
        os.utime(path, (0, 0))
    removed = merged.vacuum(0)
    assert len(removed) == 10
    assert len(content(merged.reopened())) == 200


def test_an_archive_at_the_same_time_is_not_disturbed(lake: LakeTable) -> None:
    """In both orders: the archive's commit between the merge and its commit, and the other way round."""
    done = [
        compaction.merge(lake.storage, MESSAGES_SCHEMA, one) for one in compaction.merges(lake.files(), LATER, MEBIBYTE)
    ]
    stale = lake.reopened()
    archive(lake.reopened(), rows(100, 110))
    merged, count = compaction.replace(lake, done)
    assert count == 2
    assert len(identities(merged)) == 210
    after = archive(stale, rows(0, 20, lane=2))
    assert len(identities(after)) == len(set(identities(after))) == 230


def test_of_two_compactions_one_wins_and_nothing_doubles(lake: LakeTable) -> None:
    plans = compaction.merges(lake.files(), LATER, MEBIBYTE)
    first, second = ([compaction.merge(lake.storage, MESSAGES_SCHEMA, one) for one in plans] for _ in range(2))
    assert compaction.replace(lake.reopened(), first)[1] == 2
    table, count = compaction.replace(lake, second)
    assert count == 0
    assert len(content(table.reopened())) == 200
    assert all(not (Path(lake.storage.url) / file.path).exists() for one in second for file in one.added)


def test_a_commit_whose_answer_was_lost_keeps_the_files_that_it_made_visible(
    lake: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store may take a log entry, and its client still say that somebody else was first."""
    really = LakeTable.replace

    def lost(table: LakeTable, *arguments: Any) -> LakeTable:
        monkeypatch.setattr(LakeTable, "replace", really)
        really(table, *arguments)
        raise LakeConflict("another writer was first")

    monkeypatch.setattr(LakeTable, "replace", lost)
    before = content(lake)
    done = [
        compaction.merge(lake.storage, MESSAGES_SCHEMA, one) for one in compaction.merges(lake.files(), LATER, MEBIBYTE)
    ]
    table, count = compaction.replace(lake, done)
    assert count == 2
    assert content(table) == before


def test_a_damaged_file_is_not_merged_away(lake: LakeTable) -> None:
    file = lake.files()[3]
    (Path(lake.storage.url) / file.path).unlink()
    with pytest.raises(LakeDamaged, match=file.path.rpartition("/")[2]):
        compacted(lake)
    assert len(lake.reopened().files()) == 10


def test_old_days_expire_and_the_floor_rises(lake: LakeTable) -> None:
    old = compaction.expired(lake.files(), "2026-03-02")
    table = compaction.expire(lake, old, {(7, 0): 50, (7, 1): 50})
    assert identities(table) == [(7, lane, offset) for lane in (0, 1) for offset in range(50, 100)]
    assert (table.floor(7, 0), table.mark(7, 0)) == (50, 100)
    assert compaction.expired(table.files(), "2026-03-02") == []
    assert compaction.expired(table.files(), LATER, ["others"]) == []
    with pytest.raises(LakeConflict, match="are gone"):
        compaction.expire(table, old, {})


# While a partition grows ---------------------------------------------------------------------------------


def small(number: int, size: int, date: str = "2026-03-01", queue: str = "orders") -> DataFile:
    return DataFile(f"{queue}/{date}/{number}", size, 1, queue, date, offsets=(number, number))


def test_a_day_of_commits_is_rewritten_a_few_times_and_leaves_few_files() -> None:
    files: list[DataFile] = []
    most = rewritten = 0
    for number in range(8_640):
        files.append(small(number, 10_000))
        if number % 6 == 5:  # every minute
            for group in compaction.tiers(files, 128 * MEBIBYTE):
                gone = {file.path for file in group}
                files = [file for file in files if file.path not in gone]
                size = sum(file.size for file in group)
                rewritten += size
                files.append(small(-rewritten, size))
        most = max(most, len(files))
    assert most <= 40
    assert rewritten <= 5 * 8_640 * 10_000
    assert sum(file.size for file in files) == 8_640 * 10_000


def test_only_files_of_one_partition_and_size_are_merged() -> None:
    sizes = [small(number, 10_000) for number in range(7)]
    assert compaction.tiers(sizes, MEBIBYTE) == []
    assert compaction.tiers([*sizes, small(7, 10_000, date="2026-03-02")], MEBIBYTE) == []
    assert compaction.tiers([*sizes, small(7, 200_000)], MEBIBYTE) == []
    eight = [*sizes, small(7, 11_000)]
    assert compaction.tiers(eight, MEBIBYTE) == [eight]
    assert compaction.tiers([small(number, MEBIBYTE) for number in range(20)], MEBIBYTE) == []
    assert [len(group) for group in compaction.tiers(eight, 40_000)] == [4, 3]  # none larger than wanted, none alone
