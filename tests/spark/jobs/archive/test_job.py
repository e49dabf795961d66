"""The archive, with a real session and a real server: every message is in the lake, once, whatever came in between."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Message
from penstock.model.errors import PenstockError
from penstock.spark.events import delivery_events
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.frame import Progress
from penstock.spark.jobs.lakes import server_identity
from penstock.spark.lake import landing, sink
from penstock.spark.lake.errors import LakeError, LakeGap, WrongLake
from penstock.spark.lake.layout import EVENTS, MESSAGES_SCHEMA
from penstock.spark.lake.source import read_lake
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from tests.spark.lakes import broker_ids, lake_ids, lake_table, options, publish, run_archive
from tests.spark.rig import PATIENCE_S, Server, until
from tests.unit.spark.lake import delta_protocol


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def committed(server: Server, queue: str) -> int | None:
    """Where the archive's group is, of a queue with one lane."""
    [group] = [one for one in server.client.stats(queue).groups if one.group == "archive"]
    return group.oldest_offset


def test_messages_and_events_land_whole_and_once(spark: SparkSession, server: Server, lake: Path) -> None:
    client = server.client
    client.declare_queue("archived", lanes=2)
    client.declare_group("archived", "work")
    rich = Message(
        b"\x00\xff",
        "p",
        "key",
        {"n": 5, "text": "t", "flag": True, "none": None},
        priority=3,
        ttl_ms=86_400_000,
        dedup_id="d1",
        content_type="a/b",
        correlation_id="c",
        trace_id="t1",
    )
    client.publish("archived", rich)
    publish(client, "archived", 0, 3_000)
    claim = client.claim("archived", group="work", max=10)
    client.ack(claim)
    first = run_archive(spark, options(server, lake, "archived", events=True))
    assert lake_ids(spark, lake) == broker_ids(client, "archived")
    assert first.details["repeated"] == 0

    row = read_lake(spark, str(lake)).where("dedup_id = 'd1'").collect()[0].asDict(recursive=True)
    expected = {
        "queue": "archived",
        "partition": "p",
        "key": "key",
        "payload": bytearray(b"\x00\xff"),
        "priority": 3,
        "ttl_ms": 86_400_000,
        "content_type": "a/b",
        "correlation_id": "c",
        "trace_id": "t1",
        "headers": {"n": "5", "text": "t", "flag": "true", "none": None},
    }
    assert {name: row[name] for name in expected} == expected
    assert row["typed_headers"]["n"]["integer"] == 5
    assert row["date"] == row["published_at"].date()

    # Events: the same rows as the source's own flat table of them.
    columns = [
        "event_lane",
        "event_offset",
        "event_index",
        "range_index",
        "queue",
        "kind",
        "start_offset",
        "end_offset",
        "messages",
        "at",
        "consumer",
        "attempt",
        "detail",
    ]
    end = lake_table(lake, EVENTS).mark(client.lanes("$events").queue_id, 0)
    source = delivery_events(spark, server.url).where(f"event_offset < {end}").select(columns)
    stored = read_lake(spark, str(lake), table=EVENTS).select(columns)
    assert sorted(map(str, stored.collect())) == sorted(map(str, source.collect()))
    assert stored.where("queue = 'archived' AND kind = 'acked'").count() > 0

    again = run_archive(spark, options(server, lake, "archived"))
    assert (again.rows, again.details["commits"]) == (0, 0)
    assert lake_ids(spark, lake) == broker_ids(client, "archived")
    [group] = [one for one in client.stats("archived").groups if one.group == "archive"]
    assert group.lag == 0


def test_queues_of_any_name_by_pattern(spark: SparkSession, server: Server, lake: Path) -> None:
    names = ["odd ../x", "odd a/b c%20", "odd größe 🚰", "odd a*[b]?"]
    for name in names:
        server.client.declare_queue(name)
        publish(server.client, name, 0, 20)
    run_archive(spark, options(server, lake, "odd *"))
    found = read_lake(spark, str(lake), columns=["queue", "offset"]).collect()
    assert sorted((row.queue, row.offset) for row in found) == sorted((name, n) for name in names for n in range(20))
    assert [row.offset for row in read_lake(spark, str(lake), [names[1]]).collect()] == list(range(20))
    assert {path.name for path in lake.iterdir()} == {"messages"}


def test_a_lake_is_read_with_its_own_columns_and_times(
    spark: SparkSession, server: Server, queue: str, lake: Path
) -> None:
    publish(server.client, queue, 0, 100)
    run_archive(spark, options(server, lake, queue))
    times = [row.published_at for row in read_lake(spark, str(lake), columns=["published_at"]).collect()]
    last = max(times).replace(tzinfo=dt.UTC)
    assert read_lake(spark, str(lake), end=last + dt.timedelta(milliseconds=1)).count() == 100
    assert read_lake(spark, str(lake), start=last + dt.timedelta(milliseconds=1)).count() == 0
    assert read_lake(spark, str(lake), columns=["lane", "queue"]).columns == ["queue", "lane"]
    with pytest.raises(ValueError, match="no time zone"):
        read_lake(spark, str(lake), start=dt.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(Exception, match="the lake has no column 'lanes'"):
        read_lake(spark, str(lake), columns=["lanes"])


# Checkpoints ---------------------------------------------------------------------------------------------


def lose_commit(checkpoint: Path) -> None:
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for path in (checkpoint / "commits" / str(last), checkpoint / "commits" / f".{last}.crc"):
        path.unlink(missing_ok=True)


def lose_entry(checkpoint: Path) -> None:
    lose_commit(checkpoint)
    last = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    for path in (checkpoint / "offsets" / str(last), checkpoint / "offsets" / f".{last}.crc"):
        path.unlink(missing_ok=True)


def lose_all(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


@pytest.mark.parametrize("lose", [lose_commit, lose_entry, lose_all])
def test_a_checkpoint_that_forgot_changes_nothing(
    spark: SparkSession, server: Server, queue: str, lake: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    chosen = options(server, lake, queue, checkpoint=str(checkpoint), rows_per_batch=400)
    publish(server.client, queue, 0, 1_000, 100)
    run_archive(spark, chosen)
    lose(checkpoint)
    publish(server.client, queue, 1_000, 1_300, 100)
    summary = run_archive(spark, chosen)
    assert summary.rows == 300
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)


def test_a_checkpoint_that_is_ahead_of_the_lake_is_a_gap(
    spark: SparkSession, server: Server, queue: str, lake: Path, tmp_path: Path
) -> None:
    """Such as after a lake was restored from a backup: the checkpoint would skip what is missing."""
    chosen = options(server, lake, queue, checkpoint=str(tmp_path / "checkpoint"))
    publish(server.client, queue, 0, 100)
    run_archive(spark, chosen)
    shutil.rmtree(lake)
    publish(server.client, queue, 100, 150)
    with pytest.raises(LakeGap, match=f"offsets 0 to 99 of lane 0 of queue '{queue}'"):
        run_archive(spark, chosen)
    assert lake_ids(spark, lake) == []
    run_archive(spark, options(server, lake, queue))  # without that checkpoint
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)


# Failures ------------------------------------------------------------------------------------------------


def failing_commit(when: str) -> Callable[..., Any]:
    """A commit that fails the first time, before or after the table has it."""
    real = landing.commit
    calls: list[int] = []

    def commit(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return real(*arguments, **named)
        if when == "after":
            real(*arguments, **named)
        raise LakeError("the driver broke here")

    return commit


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_fails_loses_and_doubles_nothing(
    spark: SparkSession, server: Server, queue: str, lake: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    publish(server.client, queue, 0, 500)
    monkeypatch.setattr(landing, "commit", failing_commit(when))
    with pytest.raises(LakeError, match="the driver broke here"):
        run_archive(spark, options(server, lake, queue))
    assert len(lake_ids(spark, lake)) == (500 if when == "after" else 0)
    assert committed(server, queue) == 0  # nobody was told of what is not known to be durable
    run_archive(spark, options(server, lake, queue))
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)
    assert server.client.stats(queue).groups[0].lag == 0


def test_another_archive_in_the_middle_of_a_batch(
    spark: SparkSession, server: Server, queue: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the same messages to the same lake between this one's files and its commit."""
    publish(server.client, queue, 0, 500)
    real = sink.write_files
    others: list[int] = []
    some = spark.read.format("penstock").options(
        url=server.url, queue=queue, columns=",".join(archive.COLUMNS), endingOffsets=f'{{"{queue}": {{"0": 300}}}}'
    )

    def write_files(rows: Any, tables: Any) -> Any:
        reports = real(rows, tables)
        if not others:
            others.append(1)
            stored = {name: table.reopened() for name, table in tables.items()}
            for name, found in real(some.load(), stored).items():
                landing.commit(stored[name], found, lambda *_: 0)
        return reports

    monkeypatch.setattr(sink, "write_files", write_files)
    summary = run_archive(spark, options(server, lake, queue))
    assert (summary.rows, summary.details["repeated"]) == (200, 300)
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)


def test_the_server_restarts_in_the_middle_of_a_batch(
    spark: SparkSession, server: Server, queue: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server.client, queue, 0, 900, 100)
    real = landing.commit
    calls: list[int] = []

    def commit(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            server.restart()
        return real(*arguments, **named)

    monkeypatch.setattr(landing, "commit", commit)
    run_archive(spark, options(server, lake, queue, rows_per_batch=300))
    assert len(calls) == 3
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)
    assert server.client.stats(queue).groups[0].lag == 0


# Other queues, other servers, lost messages --------------------------------------------------------------


def test_a_queue_declared_again_begins_anew_beside_the_old(
    spark: SparkSession, server: Server, queue: str, lake: Path
) -> None:
    publish(server.client, queue, 0, 100)
    run_archive(spark, options(server, lake, queue))
    before = broker_ids(server.client, queue)
    server.client.delete_queue(queue)
    server.client.declare_queue(queue)
    publish(server.client, queue, 0, 30)
    run_archive(spark, options(server, lake, queue))
    assert lake_ids(spark, lake) == sorted(before + broker_ids(server.client, queue))
    assert server.client.stats(queue).groups[0].lag == 0


def test_a_lake_of_another_server_is_refused(spark: SparkSession, server: Server, queue: str, lake: Path) -> None:
    LakeTable.open_for(Storage(str(lake)).under("messages"), MESSAGES_SCHEMA, "another", "default")
    publish(server.client, queue, 0, 10)
    with pytest.raises(WrongLake, match="holds queues of another server"):
        run_archive(spark, options(server, lake, queue))
    assert server_identity(server.client) == server_identity(server.client) != "another"


def test_messages_that_retention_removed_first(spark: SparkSession, server: Server, queue: str, lake: Path) -> None:
    client = server.client
    client.declare_queue(queue, retain_messages=200)
    publish(client, queue, 0, 100)
    run_archive(spark, options(server, lake, queue))
    publish(client, queue, 100, 1_000, 100)
    until(lambda: client.lanes(queue).lanes[0].first > 100, "retention removes messages")
    with pytest.raises(Exception, match="removed by retention"):
        run_archive(spark, options(server, lake, queue))
    first = client.lanes(queue).lanes[0].first
    summary = run_archive(spark, options(server, lake, queue, allow_gaps=True))
    assert [(gap["start"], gap["end"]) for gap in summary.details["gaps"]] == [(100, first)]
    offsets = [offset for _, _, offset in lake_ids(spark, lake)]
    assert offsets == [*range(100), *range(first, 1_000)]


def test_retention_waits_for_an_archive_that_holds(spark: SparkSession, server: Server, queue: str, lake: Path) -> None:
    client = server.client
    client.declare_queue(queue, retain_messages=100)
    publish(client, queue, 0, 100, 100)
    run_archive(spark, options(server, lake, queue, hold=True))
    assert client.groups(queue)["archive"]["holds"] is True
    # Another queue with the same retention shows when it has been at work.
    client.declare_queue(f"{queue}-free", retain_messages=100)
    for name in (queue, f"{queue}-free"):
        publish(client, name, 100, 1_000, 100)
    until(lambda: client.lanes(f"{queue}-free").lanes[0].first > 0, "retention removes messages")
    assert client.lanes(queue).lanes[0].first <= 100
    run_archive(spark, options(server, lake, queue))  # says nothing of a hold: it stays
    assert client.groups(queue)["archive"]["holds"] is True
    until(lambda: client.lanes(queue).lanes[0].first > 100, "retention goes on behind the mark")
    assert len(lake_ids(spark, lake)) == 1_000
    run_archive(spark, options(server, lake, queue, hold=False))
    assert not client.groups(queue)["archive"].get("holds", False)


def test_a_queue_that_comes_later_is_held_before_its_first_batch(
    spark: SparkSession, server: Server, lake: Path
) -> None:
    client = server.client
    client.declare_queue("held one")
    publish(client, "held one", 0, 50)
    chosen = options(server, lake, "held *", watch=True, hold=True, interval_seconds=600)
    with Progress("archive", "test") as progress, ThreadPoolExecutor(1) as thread:
        running = thread.submit(archive.run, spark, chosen, progress)
        try:
            until(lambda: running.done() or progress.rows >= 50, "the first and only batch", 3 * PATIENCE_S)
            client.declare_queue("held two", retain_messages=10)
            until(lambda: running.done() or "archive" in client.groups("held two"), "the group")
            assert client.groups("held two")["archive"]["holds"] is True
            client.declare_queue("free two", retain_messages=10)
            for name in ("held two", "free two"):
                publish(client, name, 0, 200, 10)
            until(lambda: client.lanes("free two").lanes[0].first > 0, "retention removes messages")
            assert client.lanes("held two").lanes[0].first == 0
        finally:
            progress.stop()
        progress.finish(running.result())
    assert {row.queue for row in read_lake(spark, str(lake), columns=["queue"]).distinct().collect()} == {"held one"}


def test_no_such_queue_is_said_so(spark: SparkSession, server: Server, lake: Path) -> None:
    with pytest.raises(PenstockError, match="there is no queue 'nothing'"):
        run_archive(spark, options(server, lake, "nothing"))
    with pytest.raises(PenstockError, match="there is nothing to archive"):
        run_archive(spark, options(server, lake, "nothing-*"))
    assert not lake.exists()


def test_a_watch_goes_on_with_new_messages_and_new_queues(spark: SparkSession, server: Server, lake: Path) -> None:
    client = server.client
    client.declare_queue("watched one")
    publish(client, "watched one", 0, 50)
    chosen = options(server, lake, "watched *", watch=True, interval_seconds=0.2)
    with Progress("archive", "test") as progress, ThreadPoolExecutor(1) as thread:
        running = thread.submit(archive.run, spark, chosen, progress)

        def archived(count: int) -> Callable[[], bool]:
            return lambda: running.done() or progress.rows >= count

        try:
            until(archived(50), "the first messages", 3 * PATIENCE_S)
            publish(client, "watched one", 50, 80)
            client.declare_queue("watched two")
            publish(client, "watched two", 0, 20)
            until(archived(100), "what came later", 3 * PATIENCE_S)
        finally:
            progress.stop()
        summary = running.result()
        progress.finish(summary)
    assert summary.rows == 100
    expected = broker_ids(client, "watched one") + broker_ids(client, "watched two")
    assert lake_ids(spark, lake) == sorted(expected)
    assert [one.lag for name in ("watched one", "watched two") for one in client.stats(name).groups] == [0, 0]


def test_a_watch_keeps_the_lake_small_while_it_is_read(
    spark: SparkSession, server: Server, queue: str, lake: Path
) -> None:
    client = server.client
    publish(client, queue, 0, 240, 20)
    assert run_archive(spark, options(server, lake, queue, rows_per_batch=20)).details["commits"] == 12
    before = read_lake(spark, str(lake), columns=["offset"])
    small = {file.path for file in lake_table(lake).files()}
    chosen = options(server, lake, queue, watch=True, interval_seconds=0.2, keep_days=3)
    with Progress("archive", "test") as progress, ThreadPoolExecutor(1) as thread:
        running = thread.submit(archive.run, spark, chosen, progress)
        try:
            until(
                lambda: running.done() or not small & {file.path for file in lake_table(lake).files()},
                "the small files are merged",
                3 * PATIENCE_S,
            )
            publish(client, queue, 240, 300, 20)
            until(lambda: running.done() or progress.rows >= 60, "what came later", 3 * PATIENCE_S)
        finally:
            progress.stop()
        summary = running.result()
        progress.finish(summary)
    assert summary.details["merged"] >= len(small) >= 8
    assert before.count() == 240  # planned before the merge, and read after it
    assert lake_ids(spark, lake) == broker_ids(client, queue)
    assert delta_protocol.identities(lake / "messages") == broker_ids(client, queue)
    table = lake_table(lake)
    files = [str(lake / "messages" / file.path) for file in table.files()]
    assert spark.read.parquet(*files).count() == 300  # Spark's own reader on the files that the log names
    assert table.keep_days == 3
    assert (lake / "messages" / "_delta_log" / "_last_checkpoint").exists()
