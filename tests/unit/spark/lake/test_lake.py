"""The lake without Spark: rows go in by the executor's and the driver's code, and come out as they were, once."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from penstock.model.events import Delivery, Event, encode_delivery
from penstock.spark.lake import landing, log_files, table, writing
from penstock.spark.lake.errors import (
    LakeConflict,
    LakeDamaged,
    LakeError,
    LakeFull,
    LakeGap,
    LakeMissing,
    WrongLake,
    translated,
)
from penstock.spark.lake.layout import (
    EVENTS_SCHEMA,
    FOLDER_CHARACTERS_MAX,
    MESSAGES_SCHEMA,
    partition_folder,
    table_of,
)
from penstock.spark.lake.reading import Choice, LaneRange, grouped, problem, read_file
from penstock.spark.lake.sink import by_table, flatten
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.writing import Lander, Report
from penstock.spark.source.packing import packed_gap, unpacked
from tests.unit.spark.lake.generated_rows import DAY, at, content, identities, rows

SERVER = "server-1"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "lake" / "messages"))


@pytest.fixture
def lake(storage: Storage) -> LakeTable:
    return opened(storage)


def opened(storage: Storage, server: str = SERVER, namespace: str = "default") -> LakeTable:
    return LakeTable.open_for(storage, MESSAGES_SCHEMA, server, namespace)


def first_offset(_queue: str, _queue_id: int, _lane: int) -> int:
    """What the broker would say: nothing was removed."""
    return 0


def write(lake: LakeTable, *batches: pa.RecordBatch) -> Report:
    lander = Lander(lake.storage, MESSAGES_SCHEMA, lake.mark)
    for batch in batches:
        lander.add(batch)
    return lander.finish()


def archive(lake: LakeTable, *batches: pa.RecordBatch, allow_gaps: bool = False) -> LakeTable:
    return landing.commit(lake, [write(lake, *batches)], first_offset, allow_gaps=allow_gaps).table


# Writing and reading -------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were(lake: LakeTable) -> None:
    batch = rows(0, 50)
    lake = archive(lake, batch)
    expected = [{**row, "date": DAY.date()} for row in batch.to_pylist()]
    assert content(lake) == expected
    assert (lake.mark(7, 0), lake.floor(7, 0)) == (50, 0)


def test_a_file_for_each_day_of_utc(lake: LakeTable) -> None:
    batch = rows(0, 10, published=lambda offset: DAY + dt.timedelta(hours=20 + offset))
    lake = archive(lake, batch)
    assert [(file.date, file.rows, file.offsets) for file in lake.files()] == [
        ("2026-03-01", 4, (0, 3)),
        ("2026-03-02", 6, (4, 9)),
    ]
    assert len(content(lake)) == 10


def test_the_log_tells_bounds_by_which_files_are_left_out(lake: LakeTable) -> None:
    for day in range(3):
        moment = DAY + dt.timedelta(days=day, microseconds=1_500)
        lake = archive(lake, rows(day * 10, day * 10 + 10, published=at(moment)))
    day_us = 86_400_000_000
    begin = int(DAY.timestamp()) * 1_000_000
    assert lake.files()[0].times_us == (begin + 1_000, begin + 2_000)
    second = Choice(start_us=begin + day_us, end_us=begin + 2 * day_us)
    assert [file.offsets for file in second.files(lake.files())] == [(10, 19)]
    assert [row["offset"] for row in content(lake, second)] == list(range(10, 20))
    # Exactly at the microsecond: the log's milliseconds must lose nothing.
    assert len(content(lake, Choice(start_us=begin + 1_500, end_us=begin + 1_501))) == 10
    assert content(lake, Choice(start_us=begin + 1_501, end_us=begin + day_us)) == []


def test_times_are_exact_within_a_file(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 20, published=lambda offset: DAY + dt.timedelta(milliseconds=offset)))
    begin = int(DAY.timestamp()) * 1_000_000
    choice = Choice(start_us=begin + 5_000, end_us=begin + 9_000)
    assert [row["offset"] for row in content(lake, choice)] == [5, 6, 7, 8]


def test_offset_ranges_are_exact_and_skip_row_groups(lake: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", 10)
    lake = archive(lake, *(rows(start, start + 10) for start in range(0, 100, 10)))
    [file] = lake.files()
    with lake.storage.open(file.path) as source:
        assert pq.ParquetFile(source).num_row_groups == 10
    choice = Choice(ranges=(LaneRange(7, 0, 38, 42), LaneRange(7, 1, 0, 99), LaneRange(8, 0, 0, 99)))
    assert [row["offset"] for row in content(lake, choice)] == [38, 39, 40, 41]
    # Row groups outside of the range are not even opened: breaking their pages must not matter.
    asked: list[list[int]] = []
    real = pq.ParquetFile.iter_batches

    def noted(self: Any, size: int, groups: list[int], *more: Any, **named: Any) -> Any:
        asked.append(groups)
        return real(self, size, groups, *more, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    assert len(list(read_file(lake.storage, file, MESSAGES_SCHEMA, choice))) > 0
    assert asked == [[3, 4]]


@pytest.mark.parametrize(
    "queue",
    ["../x", "a/b c%20", "größe ünï 🚰", "a*[b]?{c}", "queue=1/date=2", "..", "%2e%2e%2f", "1", "x" * 255, "🚰" * 255],
)
def test_a_queue_of_any_name_stays_below_the_lake(lake: LakeTable, tmp_path: Path, queue: str) -> None:
    lake = archive(lake, rows(0, 5, queue=queue))
    assert [(row["queue"], row["offset"]) for row in content(lake)] == [(queue, offset) for offset in range(5)]
    [file] = lake.files()
    folder, _, _ = file.path.partition("/")
    assert folder.startswith("queue=")
    assert len(folder) <= FOLDER_CHARACTERS_MAX + 6
    assert sorted(path.name for path in (tmp_path / "lake" / "messages").iterdir()) == sorted(["_delta_log", folder])
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_long_names_that_begin_alike_have_folders_of_their_own() -> None:
    assert partition_folder("ü" * 254 + "a", "2026-01-01") != partition_folder("ü" * 254 + "b", "2026-01-01")


def test_other_programs_read_the_table(lake: LakeTable) -> None:
    from deltalake import DeltaTable

    lake = archive(lake, rows(0, 20, queue="a/b c%20"), rows(0, 10, queue="../x", queue_id=8))
    found = (
        DeltaTable(lake.storage.uri).to_pyarrow_table().sort_by([("queue_id", "ascending"), ("offset", "ascending")])
    )
    assert found.column("offset").to_pylist() == [*range(20), *range(10)]
    assert set(found.column("queue").to_pylist()) == {"a/b c%20", "../x"}
    assert found.column("payload")[3].as_py() == b"7/0/3"
    assert found.column("headers")[3].as_py() == [("n", "3")]


# Marks: once, and all ------------------------------------------------------------------------------------


def test_a_batch_that_comes_again_changes_nothing(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30))
    version = lake.version
    report = write(lake, rows(0, 30))
    assert (report.rows, report.repeated, report.files) == (0, 30, [])
    lake = landing.commit(lake, [report], first_offset).table
    assert lake.version == version
    assert len(identities(lake)) == 30


def test_a_wider_batch_adds_only_what_is_new(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30))
    lake = archive(lake, rows(10, 20), rows(20, 45))
    assert identities(lake) == [(7, 0, offset) for offset in range(45)]
    assert lake.mark(7, 0) == 45


def test_a_gap_fails_and_leaves_nothing(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30))
    with pytest.raises(
        LakeGap, match=r"offsets 30 to 39 of lane 0 of queue 'orders' \(queue_id 7\) are not in the lake"
    ):
        archive(lake, rows(40, 50))
    with pytest.raises(LakeGap, match=r"offsets 35 to 35"):
        archive(lake, rows(30, 35), rows(36, 50))
    assert len(identities(lake.reopened())) == 30
    assert lake.reopened().mark(7, 0) == 30


def lost(start: int, end: int) -> pa.RecordBatch:
    """What a task is given in the place of damaged messages."""
    [rows] = unpacked(packed_gap("orders", 7, 0, start, end))
    return rows


def test_what_is_lost_moves_the_mark_and_is_one_gap(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30))
    reports = [write(lake, rows(25, 40), lost(40, 45)), write(lake, lost(45, 50), rows(50, 60), lost(60, 70))]
    with pytest.raises(LakeGap, match="offsets 40 to 49"):
        landing.commit(lake, reports, first_offset)
    landed = landing.commit(lake, reports, first_offset, allow_gaps=True)
    assert landed.gaps == [landing.Gap("orders", 7, 0, 40, 50), landing.Gap("orders", 7, 0, 60, 70)]
    assert (landed.rows, landed.repeated, landed.table.mark(7, 0)) == (20, 5, 70)
    alone = landing.commit(landed.table, [write(landed.table, lost(60, 80))], first_offset, allow_gaps=True)
    assert (alone.gaps, alone.table.mark(7, 0)) == ([landing.Gap("orders", 7, 0, 70, 80)], 80)
    known = landing.commit(alone.table, [write(alone.table, lost(60, 80))], first_offset)
    assert (known.gaps, known.marks) == ([], {})


def test_a_gap_that_is_allowed_is_recorded(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30))
    landed = landing.commit(lake, [write(lake, rows(40, 50))], first_offset, allow_gaps=True)
    assert landed.gaps == [landing.Gap("orders", 7, 0, 30, 40)]
    assert landed.table.mark(7, 0) == 50
    newest = Path(lake.storage.url) / "_delta_log" / f"{landed.table.version:020}.json"
    assert '"start":30' in newest.read_text().replace(" ", "")


def test_a_new_lane_must_begin_where_the_broker_begins(lake: LakeTable) -> None:
    report = write(lake, rows(20, 30))
    with pytest.raises(LakeGap, match="offsets 5 to 19"):
        landing.commit(lake, [report], lambda *_: 5)
    landed = landing.commit(lake, [report], lambda *_: 20)
    assert (landed.table.floor(7, 0), landed.table.mark(7, 0)) == (20, 30)


def test_the_same_offsets_from_two_tasks_are_refused(lake: LakeTable) -> None:
    reports = [write(lake, rows(0, 20)), write(lake, rows(15, 30))]
    with pytest.raises(LakeError, match="offsets 15 to 19 of lane 0 of queue 'orders' came twice"):
        landing.commit(lake, reports, first_offset)
    assert identities(lake.reopened()) == []


def test_tasks_may_report_in_any_order(lake: LakeTable) -> None:
    reports = [write(lake, rows(start, start + 10)) for start in (20, 0, 10)]
    assert identities(landing.commit(lake, reports, first_offset).table) == [(7, 0, offset) for offset in range(30)]


def test_a_queue_declared_again_is_another(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30))
    lake = archive(lake, rows(0, 10, queue_id=9))
    assert (lake.mark(7, 0), lake.mark(9, 0)) == (30, 10)
    assert len(identities(lake)) == 40


def test_lanes_have_marks_of_their_own(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 30), rows(0, 12, lane=1))
    assert (lake.mark(7, 0), lake.mark(7, 1), lake.mark(7, 2)) == (30, 12, None)


def test_rows_without_an_identity_are_refused(lake: LakeTable) -> None:
    batch = rows(0, 3)
    column = pa.array([0, None, 2], pa.int64())
    broken = batch.set_column(batch.schema.get_field_index("offset"), "offset", column)
    with pytest.raises(LakeError, match="1 rows have no offset"):
        write(lake, broken)


# Two writers, failures, power cuts -----------------------------------------------------------------------


@pytest.mark.parametrize("known", [0, 10])
def test_of_two_archives_one_wins_and_nothing_doubles(storage: Storage, known: int) -> None:
    lake = opened(storage)
    if known:
        lake = archive(lake, rows(0, known))
    first, second = lake.reopened(), lake.reopened()
    reports = [write(handle, rows(known, 30)) for handle in (first, second)]
    landing.commit(first, [reports[0]], first_offset)
    with pytest.raises(LakeConflict, match="the high-water offset of queue 7, lane 0 has moved"):
        landing.commit(second, [reports[1]], first_offset)
    again = archive(second.reopened(), rows(known, 40))
    assert identities(again) == [(7, 0, offset) for offset in range(40)]


def test_two_archives_of_different_lanes_do_not_meet(lake: LakeTable) -> None:
    first, second = lake.reopened(), lake.reopened()
    archive(first, rows(0, 30))
    merged = archive(second, rows(0, 10, lane=1))
    assert (merged.mark(7, 0), merged.mark(7, 1)) == (30, 10)
    assert len(identities(merged)) == 40


def test_marks_outlive_checkpoints_of_the_log(lake: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CHECKPOINT_EVERY", 5)
    for start in range(0, 120, 10):
        lake = archive(lake, rows(start, start + 10))
    log = Path(lake.storage.url) / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    for entry in sorted(log.glob("*.json"))[:6]:
        entry.unlink()  # as a clean-up of the log does
    lake = lake.reopened()
    assert (lake.mark(7, 0), lake.floor(7, 0)) == (120, 0)
    assert len(identities(archive(lake, rows(100, 130)))) == 130


def test_a_task_that_fails_removes_its_files(lake: LakeTable) -> None:
    lander = Lander(lake.storage, MESSAGES_SCHEMA, lake.mark)
    lander.add(rows(0, 10))
    assert len(list(Path(lake.storage.url).rglob("*.parquet"))) == 1
    lander.abandon()
    assert list(Path(lake.storage.url).rglob("*.parquet")) == []


def test_files_of_a_killed_task_are_invisible_and_go_with_a_vacuum(lake: LakeTable) -> None:
    orphan = Path(lake.storage.url) / write(lake, rows(0, 10)).files[0].path
    lake = archive(lake, rows(0, 10))
    assert len(identities(lake)) == 10
    assert lake.vacuum(1) == []
    os.utime(orphan, (0, 0))
    assert [Path(lake.storage.url) / path for path in lake.vacuum(1)] == [orphan]
    assert not orphan.exists()
    assert len(identities(lake.reopened())) == 10


def test_everything_is_on_the_disk_before_it_counts(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files before the commit, the log entry and all names before it returns."""
    synced: list[str] = []
    real = os.fsync

    def noted(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    lake = opened(storage)
    root = Path(storage.url)
    assert {str(root / "_delta_log" / f"{0:020}.json"), str(root / "_delta_log"), str(root)} <= set(synced)
    assert {str(root.parent), str(root.parent.parent)} <= set(synced)
    synced.clear()
    report = write(lake, rows(0, 10))
    file = root / report.files[0].path
    assert synced == [str(file), str(file.parent), str(file.parent.parent), str(root)]
    synced.clear()
    landing.commit(lake, [report], first_offset)
    assert synced == [str(root / "_delta_log" / f"{1:020}.json"), str(root / "_delta_log")]


def test_an_entry_that_a_power_cut_tore_is_put_aside(lake: LakeTable) -> None:
    lake = archive(archive(lake, rows(0, 10)), rows(10, 20))
    newest = Path(lake.storage.url) / "_delta_log" / f"{lake.version:020}.json"
    for torn in (b"", newest.read_bytes()[:-30]):
        newest.write_bytes(torn)
        again = opened(lake.storage)
        assert (again.version, again.mark(7, 0)) == (1, 10)
        again = archive(again, rows(0, 20))
        assert identities(again) == [(7, 0, offset) for offset in range(20)]


def test_a_checkpoint_that_a_power_cut_tore_is_put_aside(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 10))
    lake.checkpoint()
    log = Path(lake.storage.url) / "_delta_log"
    [checkpoint] = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"")
    (log / "_last_checkpoint").write_bytes(b"{")
    assert identities(opened(lake.storage)) == [(7, 0, offset) for offset in range(10)]
    assert checkpoint.with_name(checkpoint.name + ".torn").exists()


def test_a_damaged_entry_in_the_middle_of_the_log_is_an_error(lake: LakeTable) -> None:
    lake = archive(archive(lake, rows(0, 10)), rows(10, 20))
    (Path(lake.storage.url) / "_delta_log" / f"{1:020}.json").write_bytes(b"{")
    with pytest.raises(LakeDamaged, match=r"00000000000000000001\.json is not readable, and newer ones follow"):
        opened(lake.storage)
    assert log_files.mend(None) == []


def test_another_servers_lake_is_refused(lake: LakeTable) -> None:
    with pytest.raises(WrongLake, match="holds queues of another server"):
        opened(lake.storage, "server-2")
    with pytest.raises(WrongLake, match="namespace 'default'"):
        opened(lake.storage, SERVER, "other")


def test_a_table_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable, Schema

    DeltaTable.create(str(tmp_path / "other"), Schema.from_arrow(pa.schema([("a", pa.int64())])))
    with pytest.raises(WrongLake, match="not a lake of Penstock's"):
        LakeTable.open(Storage(str(tmp_path / "other")))


def test_a_lake_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LakeMissing, match="there is no lake table at"):
        LakeTable.open(Storage(str(tmp_path / "nothing")))


# Damage --------------------------------------------------------------------------------------------------


def test_a_missing_short_or_changed_file_is_named(lake: LakeTable) -> None:
    noise = random.Random(2)
    payloads = [noise.randbytes(100) for _ in range(2_000)]
    batch = rows(0, 2_000)
    index = batch.schema.get_field_index("payload")
    lake = archive(lake, batch.set_column(index, "payload", pa.array(payloads, pa.binary())))
    [file] = lake.files()
    path = Path(lake.storage.url) / file.path
    assert problem(lake.storage, file) is None
    good = path.read_bytes()
    changed = bytearray(good)
    # What cannot be compressed is stored as it is: only the page's checksum can tell that one bit of it is another.
    changed[good.index(payloads[1_000][:50]) + 25] ^= 1
    path.write_bytes(changed)
    found = problem(lake.storage, file)
    assert found is not None
    assert "cannot be read" in found
    path.write_bytes(good[:-1])
    assert problem(lake.storage, file) == f"it has {len(good) - 1} bytes; the log says {len(good)}"
    path.unlink()
    assert problem(lake.storage, file) == "it is missing"
    with pytest.raises(LakeDamaged, match=file.path.rpartition("/")[2]):
        content(lake)


def test_another_files_rows_under_the_same_name_are_found(lake: LakeTable) -> None:
    lake = archive(lake, rows(0, 100))
    [file] = lake.files()
    path = Path(lake.storage.url) / file.path
    with pq.ParquetFile(path) as parquet:
        short = parquet.read().slice(1)
    pq.write_table(short, path)
    size = path.stat().st_size
    assert problem(lake.storage, replace(file, size=size)) == "it has 99 rows; the log says 100"


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("unshare") is None, reason="needs a small file system")
def test_a_full_disk_is_said_so_and_nothing_is_visible(tmp_path: Path) -> None:
    """In a process with a file system of its own that has one MiB."""
    script = """
import os, sys
from pathlib import Path
from penstock.spark.lake.errors import LakeFull
from tests.unit.spark.lake.test_lake import archive, identities, opened, write, rows, Storage
lake = archive(opened(Storage(sys.argv[1] + "/messages")), rows(0, 100))
import random
big = rows(100, 6_000)
noise = random.Random(1)
import pyarrow as pa
payload = pa.array([noise.randbytes(400) for _ in range(big.num_rows)], pa.binary())
big = big.set_column(big.schema.get_field_index("payload"), "payload", payload)
from penstock.spark.lake.layout import MESSAGES_SCHEMA
from penstock.spark.lake.writing import Lander
lander = Lander(lake.storage, MESSAGES_SCHEMA, lake.mark)
try:
    lander.add(big)
    lander.finish()
except LakeFull as error:
    assert "no space is left" in str(error), error
    lander.abandon()
else:
    raise SystemExit("it had room")
assert len(list(Path(sys.argv[1]).rglob("*.parquet"))) == 1, "the file of the failed task is still there"
# A disk without room for the log entry itself.
report = write(lake, rows(100, 110))
filler = Path(sys.argv[1], "filler").open("wb", buffering=0)
try:
    while filler.write(b"x" * 512):
        pass
except OSError:
    pass
from penstock.spark.lake import landing
try:
    landing.commit(lake, [report], lambda *_: 0)
except LakeFull as error:
    pass
else:
    raise SystemExit("it had room for the log")
assert identities(lake.reopened()) == [(7, 0, offset) for offset in range(100)]
filler.close()
os.remove(filler.name)
again = archive(opened(Storage(sys.argv[1] + "/messages")), rows(0, 200))
assert identities(again) == [(7, 0, offset) for offset in range(200)]
print("well")
"""
    place = tmp_path / "small"
    place.mkdir()
    command = f'mount -t tmpfs -o size=1m tmpfs {place} && exec {sys.executable} -c "$SCRIPT" {place}'
    environment = {**os.environ, "SCRIPT": script, "PYTHONPATH": os.pathsep.join(["src", "."])}
    probe = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine does not let us mount a file system")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr


def test_an_error_of_a_task_comes_back_from_sparks_text() -> None:
    text = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted. Traceback (most recent call last):
  File "writing.py", line 1, in add
OSError: [Errno 28] No space left on device
penstock.spark.lake.errors.LakeFull: no space is left for x. Free some
\tat org.apache.spark.scheduler.DAGScheduler"""
    found = translated(RuntimeError(text))
    assert isinstance(found, LakeFull)
    assert str(found) == "no space is left for x. Free some"
    assert translated(RuntimeError("ValueError: something else")) is None
    assert translated(RuntimeError("penstock.spark.lake.errors.Unknown: what")) is None


# Elsewhere -----------------------------------------------------------------------------------------------


class RemoteStorage(Storage, frozen=True):
    """A folder that is used as an object store is: through deltalake, by URL."""

    @property
    def root(self) -> None:
        return None


def test_an_object_store_is_written_and_read_through_deltalake(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    storage = RemoteStorage(f"file://{tmp_path}/messages")
    lake = LakeTable.open_for(storage, MESSAGES_SCHEMA, SERVER, "default")
    lake = archive(lake, rows(0, 30, queue="a/b c%20"))
    assert isinstance(lake.storage, RemoteStorage)
    assert [(row["queue"], row["offset"]) for row in content(lake)] == [("a/b c%20", offset) for offset in range(30)]
    [file] = lake.files()
    assert storage.size(file.path) == file.size
    assert problem(storage, file) is None
    assert storage.size("nothing") is None
    storage.remove(file.path)
    assert problem(storage, file) == "it is missing"


def test_tasks_get_neighbours_and_every_core_gets_some(lake: LakeTable) -> None:
    for start in range(0, 80, 10):
        lake = archive(lake, rows(start, start + 10))
    files = lake.files()
    assert [len(group) for group in grouped([replace(file, size=100) for file in files], 4)] == [2, 2, 2, 2]
    assert [file for group in grouped(files, 3) for file in group] == files
    assert grouped([], 4) == []


# Events --------------------------------------------------------------------------------------------------


def test_events_land_by_the_queue_that_they_are_about(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "events"))
    lake = LakeTable.open_for(storage, EVENTS_SCHEMA, SERVER, "default")
    day_ms = 86_400_000
    at_ms = int(DAY.timestamp()) * 1_000
    deliveries = [
        Delivery("default", "a/b", 1, "work", [Event("claimed", [(0, 5), (7, 9)], at_ms, "c1", 2)], 3),
        Delivery("default", "orders", 0, "work", [Event("dead", [(4, 5)], at_ms + day_ms, "", 0, "boom")], 4),
    ]
    batch = rows(10, 12, queue="$events", queue_id=1)
    payloads = pa.array([encode_delivery(delivery) for delivery in deliveries], pa.binary())
    batch = batch.set_column(batch.schema.get_field_index("payload"), "payload", payloads)
    lander = Lander(storage, EVENTS_SCHEMA, lake.mark, flatten)
    lander.add(batch)
    landed = landing.commit(lake, [lander.finish()], lambda *_: 10)
    assert landed.table.mark(1, 0) == 12
    found = [
        row
        for file in landed.table.files()
        for part in read_file(storage, file, EVENTS_SCHEMA, Choice(time="at"))
        for row in part.to_pylist()
    ]
    short = [(row["queue"], row["event_offset"], row["range_index"], row["messages"], row["attempt"]) for row in found]
    assert short == [("a/b", 10, 0, 5, 2), ("a/b", 10, 1, 2, 2), ("orders", 11, 0, 1, None)]
    assert (found[2]["at"], found[2]["date"], found[2]["consumer"], found[2]["detail"]) == (
        DAY + dt.timedelta(days=1),
        (DAY + dt.timedelta(days=1)).date(),
        None,
        "boom",
    )
    assert [file.offsets for file in landed.table.files()] == [(10, 10), (11, 11)]
    assert [file.event_queue_ids for file in landed.table.files()] == [(1, 1), (1, 1)]
    again = Lander(storage, EVENTS_SCHEMA, landed.table.mark, flatten)
    again.add(batch)
    assert again.finish().files == []


def test_a_message_that_is_no_event_is_an_error(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "events"))
    lake = LakeTable.open_for(storage, EVENTS_SCHEMA, SERVER, "default")
    with pytest.raises(LakeError, match="offset 10 of lane 0 of \\$events is no delivery event"):
        Lander(storage, EVENTS_SCHEMA, lake.mark, flatten).add(rows(10, 11, queue="$events"))


def test_every_events_queue_lands_among_the_events() -> None:
    queues = ["$events", "orders", "$events-5", "events", "$eventsx"]
    parts = [rows(number, number + 2, queue=queue, queue_id=number) for number, queue in enumerate(queues)]
    for queue, part in zip(queues, parts, strict=True):
        assert [(name, found.num_rows) for name, found in by_table(part)] == [(table_of(queue), 2)]
    mixed = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    found = {name: part.column("queue").to_pylist() for name, part in by_table(mixed)}
    assert found == {
        "messages": ["orders", "orders", "events", "events", "$eventsx", "$eventsx"],
        "events": ["$events", "$events", "$events-5", "$events-5"],
    }
    assert list(by_table(mixed.slice(0, 0))) == []


def test_every_folder_above_a_new_lake_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not take a lake along with a folder far above it, after its marks were promised on."""
    synced: list[Path] = []
    monkeypatch.setattr(log_files, "sync", synced.append)
    opened(Storage(str(tmp_path / "a" / "b" / "c" / "d" / "lake" / "messages")))
    for folder in ("a/b/c/d/lake/messages/_delta_log", "a/b/c/d/lake/messages", "a/b/c/d/lake", "a/b", "a", "."):
        assert tmp_path / folder in synced
