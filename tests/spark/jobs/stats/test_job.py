"""`stats` against the same numbers counted one by one: in one run or many, late, killed, twice at once."""

from __future__ import annotations

import datetime as dt
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Client, Message
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.jobs.compact import job as compact
from penstock.spark.jobs.compact.job import CompactOptions
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.stats import job
from penstock.spark.jobs.stats.job import StatsOptions
from penstock.spark.lake.errors import LakeError, LakeMissing
from penstock.spark.lake.layout import EVENTS, STATS
from penstock.spark.lake.source import read_lake
from penstock.spark.lake.table import LakeTable
from tests.spark.lakes import lake_table, run_archive
from tests.spark.lakes import options as archive_options
from tests.spark.rig import Server
from tests.spark.stats_rig import HandMadeLake, History, expected

DAY_MS = 86_400_000
START_MS = 20_000 * DAY_MS - 6 * 60_000
"""A few minutes before midnight, so that a history goes over it."""
NUMBERS = ("queue", "group", "published", "bytes", "delivered", "acked", "retried", "dead", "waited_ms", "worked_ms")


def run(spark: SparkSession, lake: Path, **more: Any) -> Summary:
    with Progress("stats", "test") as progress:
        summary = job.run(spark, StatsOptions(lake=str(lake), **more), progress)
        progress.finish(summary)
    return summary


def totals(summary: Summary) -> list[dict[str, Any]]:
    return [{name: row[name] for name in NUMBERS} for row in summary.details["totals"]]


def time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


@pytest.fixture(scope="module")
def history() -> History:
    return History(1, START_MS)


@pytest.fixture
def lake(tmp_path: Path) -> HandMadeLake:
    return HandMadeLake(tmp_path / "lake")


def test_all_numbers_of_a_history_in_one_run(spark: SparkSession, lake: HandMadeLake, history: History) -> None:
    lake.add_messages(history.messages)
    lake.add_events(history.commits)
    summary = run(spark, lake.path, by="minute", reasons=100)
    right = expected(history.messages, history.commits)
    assert totals(summary) == right.totals()
    assert (summary.details["messages"], summary.details["events"]) == (len(history.messages), len(history.commits))

    # Every minute is what a range of that minute alone is.
    minutes = {row["at_ms"] for row in summary.details["series"]}
    assert len(minutes) > 10
    for at_ms in sorted(minutes):
        of_minute = [
            {name: row[name] for name in NUMBERS} for row in summary.details["series"] if row["at_ms"] == at_ms
        ]
        assert of_minute == expected(history.messages, history.commits, at_ms, at_ms + 60_000).totals()

    # Reasons: what differs between two errors is gone.
    normal = {(*key[:3], None if key[3] is None else _normal(key[3])): 0 for key in right.reasons}
    for key, count in right.reasons.items():
        normal[*key[:3], None if key[3] is None else _normal(key[3])] += count
    found = {
        (row["queue"], row["group"], row["reason"], row["error"]): row["dead"] for row in summary.details["reasons"]
    }
    assert found == normal

    # Nothing more to do: the table stays as it is.
    again = run(spark, lake.path, by="minute", reasons=1)
    assert (again.details["commits"], totals(again)) == (0, totals(summary))
    assert again.details["reasons"] == summary.details["reasons"][:1]

    # A part of it: one group, one queue, one range over midnight.
    start, end = 20_000 * DAY_MS - 120_000, 20_000 * DAY_MS + 180_000
    part = run(spark, lake.path, update=False, queues="ord*", group="mail", start=time(start), end=time(end), by="hour")
    wanted = expected(history.messages, history.commits, start, end).totals()
    assert totals(part) == [row for row in wanted if row["queue"] == "orders" and row["group"] in (None, "mail")]
    assert len({row["at_ms"] for row in part.details["series"]}) == 2


def _normal(error: str) -> str:
    return re.sub(r"\d+", "<number>", re.sub(r"'[^']*'", "<text>", error))


def test_many_small_runs_with_events_and_messages_in_any_order(
    spark: SparkSession, lake: HandMadeLake, history: History
) -> None:
    """Events before their messages, messages before their events, minutes that go on in the next run."""
    third, half = len(history.commits) // 3, len(history.messages) // 2
    lanes = sorted(history.messages[:half], key=lambda row: row["at_ms"])
    lake.add_events(history.commits[:third])
    assert run(spark, lake.path).details["messages"] == 0
    lake.add_messages(lanes)
    run(spark, lake.path)
    lake.add_events(history.commits[third : 2 * third])
    lake.add_messages(history.messages[half:])
    assert run(spark, lake.path, unit_messages=90).details["commits"] > 2
    lake.add_events(history.commits[2 * third :])
    summary = run(spark, lake.path)
    assert totals(summary) == expected(history.messages, history.commits).totals()

    # Files that every run left behind are merged; the numbers stay.
    files = len(lake_table(lake.path, STATS).files())
    with Progress("compact", "test") as progress:
        progress.finish(compact.run(spark, CompactOptions(lake=str(lake.path), older_than_days=0), progress))
    assert len(lake_table(lake.path, STATS).files()) == 4 < files
    assert totals(run(spark, lake.path)) == totals(summary)


def test_lanes_that_pass_from_server_to_server(spark: SparkSession, lake: HandMadeLake, history: History) -> None:
    """What began in one server's events goes on in another's: hand-outs find their acks, and none is first twice."""

    def told_in(event: dict[str, Any]) -> int:
        return 11 + int(event["queue_id"] + event["lane"] + event["at_ms"] // 45_000) % 3  # handed over again and again

    half = len(history.commits) // 2
    lake.add_messages(history.messages)
    lake.add_events(history.commits[:half], told_in)
    run(spark, lake.path)
    lake.add_events(history.commits[half:], told_in)
    summary = run(spark, lake.path, reasons=100)
    right = expected(history.messages, history.commits)
    assert totals(summary) == right.totals()
    assert sum(row["dead"] for row in summary.details["reasons"]) == sum(right.reasons.values())

    # Merged files do not tell whose events they hold; an update that looks into them finds nothing new.
    with Progress("compact", "test") as progress:
        progress.finish(compact.run(spark, CompactOptions(lake=str(lake.path), older_than_days=0), progress))
    again = run(spark, lake.path)
    assert (again.details["commits"], totals(again)) == (0, totals(summary))


def test_a_run_that_is_killed_and_repeated_counts_nothing_twice(
    spark: SparkSession, lake: HandMadeLake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.add_messages(history.messages)
    lake.add_events(history.commits[:200])
    real, calls = LakeTable.append, []

    def failing(self: LakeTable, *arguments: Any, **more: Any) -> LakeTable:
        calls.append(self)
        if len(calls) == 2:
            raise LakeError("the power is out")
        done = real(self, *arguments, **more)
        if len(calls) == 3:
            raise LakeError("the power is out, after the commit")
        return done

    monkeypatch.setattr(LakeTable, "append", failing)
    for _ in range(2):
        with pytest.raises(LakeError, match="the power is out"):
            run(spark, lake.path)
    monkeypatch.undo()
    summary = run(spark, lake.path)
    assert len(calls) == 3
    assert summary.details["commits"] == 0
    assert totals(summary) == expected(history.messages, history.commits[:200]).totals()


def test_two_runs_at_once_count_everything_once(spark: SparkSession, lake: HandMadeLake, history: History) -> None:
    lake.add_messages(history.messages)
    lake.add_events(history.commits)

    def at_once() -> Summary:
        spark.createDataFrame([], "none INT")  # a thread's counterpart in the JVM knows no session before
        return run(spark, lake.path, unit_messages=200)

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(at_once) for _ in range(2)]
        found = [one.result() for one in running]
    assert sum(one.details["events"] for one in found) == len(history.commits)
    assert totals(run(spark, lake.path)) == expected(history.messages, history.commits).totals()


def test_messages_and_events_that_meet_while_two_runs_work_are_not_lost(
    spark: SparkSession, lake: HandMadeLake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run works with the new messages while another sums up the events about them, and is first."""
    lake.add_events(history.commits[:100])
    run(spark, lake.path)
    lake.add_messages(history.messages)
    real, calls = LakeTable.append, []

    def overtaken(self: LakeTable, *arguments: Any, **more: Any) -> LakeTable:
        calls.append(self)
        if len(calls) == 1:
            lake.add_events(history.commits[100:])
            with monkeypatch.context() as blind:
                blind.setattr("penstock.spark.jobs.stats.update.message_lanes", lambda *_: {})
                run(spark, lake.path)
        return real(self, *arguments, **more)

    monkeypatch.setattr(LakeTable, "append", overtaken)
    run(spark, lake.path)
    monkeypatch.undo()
    assert totals(run(spark, lake.path)) == expected(history.messages, history.commits).totals()


def test_ranges_of_many_offsets_and_a_commit_without_order(spark: SparkSession, lake: HandMadeLake) -> None:
    """Events of one kind are gathered: in one commit, an ack may stand before the hand-out that it settles."""
    place = {"queue": "bulk", "queue_id": 9, "lane": 0, "group": "g", "attempt": 1}
    at = START_MS
    messages = [
        {"queue": "bulk", "queue_id": 9, "lane": 0, "offset": offset, "payload": b"12", "at_ms": at + offset}
        for offset in range(5_000)
    ]
    commits = [
        [{**place, "kind": "claimed", "start": 0, "end": 3_000, "at_ms": at + 10_000}],
        [
            {**place, "kind": "acked", "start": 500, "end": 2_500, "at_ms": at + 10_400},
            {**place, "kind": "acked", "start": 3_000, "end": 5_000, "at_ms": at + 10_400},
            {**place, "kind": "claimed", "start": 3_000, "end": 5_000, "at_ms": at + 10_300},
            {**place, "kind": "dead", "start": 0, "end": 10, "at_ms": at + 10_400, "detail": "attempts"},
            {**place, "kind": "nacked", "start": 0, "end": 4, "at_ms": at + 10_400, "detail": "a 1"},
            {**place, "kind": "nacked", "start": 4, "end": 9, "at_ms": at + 10_400, "detail": "b 2"},
        ],
        [{**place, "kind": "committed", "start": 0, "end": 70, "at_ms": at + 11_000, "group": "s", "attempt": None}],
    ]
    lake.add_messages(messages)
    lake.add_events(commits)
    summary = run(spark, lake.path, unit_messages=2_000)
    [queue, group, stream] = summary.details["totals"]
    assert (queue["published"], queue["bytes"]) == (5_000, 10_000)
    assert (group["delivered"], group["acked"], group["dead"]) == (5_000, 4_000, 10)
    assert (stream["acked"], stream["waited_ms"]) == (70, None)
    assert group["waited_ms"]["count"] == 5_000
    assert group["waited_ms"]["max"] == 10_000
    assert group["waited_ms"]["p50"] == pytest.approx(7_501, rel=0.03)
    assert (group["worked_ms"]["count"], group["worked_ms"]["max"]) == (4_000, 400)
    assert group["worked_ms"]["p50"] in (100, 400)
    reasons = {(row["reason"], row["error"]): row["dead"] for row in summary.details["reasons"]}
    assert reasons == {("attempts", "a <number>"): 4, ("attempts", "b <number>"): 5, ("attempts", None): 1}


def test_what_a_real_server_told(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """The whole way: messages are worked with, archived, summed up; the numbers are those of the client's own calls."""
    client: Client = server.client
    client.declare_queue("counted", lanes=2, max_attempts=2, backoff_ms=0, keep_done_ms=DAY_MS)
    lake = tmp_path / "lake"
    for number in range(2):
        client.publish_many("counted", [Message(b"12345", f"p{n}") for n in range(100)])
        while claim := client.claim("counted", max=20):
            failing = [one.offset for one in claim.messages if one.offset % 10 == 3]
            for offset in failing:
                client.nack(claim, [offset], error=f"no route to {offset}")
            if rest := [one.offset for one in claim.messages if one.offset not in failing]:
                client.ack(claim, rest)
        run_archive(spark, archive_options(server, lake, "counted", events=True))
        summary = run(spark, lake, queues="counted")
        rows = {row["group"]: row for row in summary.details["totals"]}
        rounds = number + 1
        dead = len(client.dead("counted", max=1_000))
        assert dead > 0
        assert (rows[None]["published"], rows[None]["bytes"]) == (100 * rounds, 500 * rounds)
        work = rows["default"]
        assert (work["acked"], work["dead"], work["retried"]) == (100 * rounds - dead, dead, dead)
        assert work["delivered"] == 100 * rounds + dead
        assert (work["waited_ms"]["count"], work["worked_ms"]["count"]) == (100 * rounds, 100 * rounds - dead)
        [reason] = summary.details["reasons"]
        assert (reason["reason"], reason["error"], reason["dead"]) == ("attempts", "no route to <number>", dead)
    assert read_lake(spark, str(lake), table=STATS).where("queue = 'counted'").count() > 0
    assert read_lake(spark, str(lake), table=EVENTS).count() > 0


def test_what_is_wrong_is_told(spark: SparkSession, lake: HandMadeLake) -> None:
    with pytest.raises(LakeMissing, match="archive something first"):
        run(spark, lake.path)
    with pytest.raises(InvalidArgument, match="unit_messages is 0; it must be 1 or more"):
        run(spark, lake.path, unit_messages=0)
    with pytest.raises(InvalidArgument, match="no time zone"):
        run(spark, lake.path, start=time(0).replace(tzinfo=None))
    place = {
        "queue": "q",
        "queue_id": 9,
        "lane": 0,
        "group": "g",
        "attempt": 1,
        "kind": "claimed",
        "start": 0,
        "end": 1,
    }
    lake.add_events([[{**place, "at_ms": START_MS}], [{**place, "at_ms": START_MS + 30 * DAY_MS}]])
    with pytest.raises(LakeMissing, match=r"nothing was summed up at .*--no-update"):
        run(spark, lake.path, update=False)
    with pytest.raises(NotFound, match="has nothing of queue 'orders': there are q"):
        run(spark, lake.path, queues="orders")
    with pytest.raises(InvalidArgument, match=r"43,201 minutes.*larger step than 'minute'"):
        run(spark, lake.path, by="minute")
    details = run(spark, lake.path).details
    assert details["by"] == "day"
    assert (details["covers_from_ms"], details["covers_to_ms"]) == (START_MS, START_MS + 30 * DAY_MS)
