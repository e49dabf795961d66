"""`replay`: lake and log → queue or exchange, exactly once, in order, with where each message came from."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Message
from penstock.api.results import Received
from penstock.model.errors import InvalidArgument, NotFound, PenstockError
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.replay import job
from penstock.spark.jobs.replay.job import ReplayOptions
from tests.spark.lakes import options, publish, run_archive
from tests.spark.rig import Server


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def run_replay(spark: SparkSession, server: Server, lake: Path, queue: str, **more: Any) -> Summary:
    chosen = ReplayOptions(url=server.url, lake=str(lake), queues=queue, **{"name": f"of {queue}", **more})
    with Progress("replay", "test") as progress:
        summary = job.run(spark, chosen, progress)
        progress.finish(summary)
    return summary


def received(server: Server, queue: str) -> list[Received]:
    """All messages of a queue with one lane, in order."""
    found: list[Received] = []
    [lane] = server.client.lanes(queue).lanes
    at = lane.first
    while at < lane.end:
        scan = server.client.scan(queue, 0, at, lane.end)
        found += scan.messages()
        at = scan.next_offset
    return found


def test_lake_and_log_are_published_once_and_in_order(
    spark: SparkSession, server: Server, queue: str, lake: Path
) -> None:
    client = server.client
    target = f"{queue}-target"
    client.declare_queue(target)
    rich = Message(
        b"first",
        "p1",
        "key",
        {"region": "eu", "amount": 12, "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)},
        priority=2,
        dedup_id="d1",
        content_type="a/b",
        correlation_id="c",
        trace_id="t",
        ttl_ms=86_400_000,
    )
    client.publish(queue, rich)
    publish(client, queue, 1, 300, 50)
    run_archive(spark, options(server, lake, queue))
    publish(client, queue, 300, 400, 50)  # in the log alone
    before = client.lanes(queue)

    dry = run_replay(spark, server, lake, queue, dry_run=True)
    assert dry.details["would_publish"] == sum(day["count"] for day in dry.details["days"]) == 400
    assert received(server, target) == []

    summary = run_replay(spark, server, lake, queue, to_queue=target, unit_rows=150)
    assert (summary.rows, summary.details["units"], summary.details["finished"]) == (400, 3, True)
    found = received(server, target)
    assert [one.message.payload for one in found] == [one.message.payload for one in received(server, queue)]
    headers = [one.message.headers or {} for one in found]
    assert [one["x-original-offset"] for one in headers] == list(range(400))
    first = found[0].message
    original = received(server, queue)[0]
    assert first.headers == {
        "region": "eu",
        "amount": 12,
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "x-original-queue": queue,
        "x-original-queue-id": before.queue_id,
        "x-original-lane": 0,
        "x-original-offset": 0,
        "x-original-published-at": dt.datetime.fromtimestamp(original.published_ms / 1000, dt.UTC),
        "x-original-dedup-id": "d1",
        "x-replay": f"of {queue}",
    }
    kept = ("partition", "key", "priority", "content_type", "correlation_id", "trace_id", "ttl_ms")
    assert {name: getattr(first, name) for name in kept} == {name: getattr(rich, name) for name in kept}
    assert first.dedup_id is None

    # Again: it is done. With other options: it is another.
    again = run_replay(spark, server, lake, queue, to_queue=target, unit_rows=150)
    assert (again.rows, again.details["published"]) == (0, 400)
    with pytest.raises(InvalidArgument, match="was begun with where=None"):
        run_replay(spark, server, lake, queue, to_queue=target, where="region = 'eu'")
    assert len(received(server, target)) == 400


def test_it_goes_on_where_it_was_killed(
    spark: SparkSession, server: Server, queue: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the publishing of a unit and the note of it, the worst place; and the archive goes on meanwhile."""
    client = server.client
    target = f"{queue}-target"
    client.declare_queue(target)
    publish(client, queue, 0, 200, 50)
    run_archive(spark, options(server, lake, queue))
    publish(client, queue, 200, 300, 50)
    real = job._save
    saves: list[int] = []

    def save(chosen: ReplayOptions, state: Any, version: int) -> int:
        saves.append(state.done)
        if saves == [0, 1, 2]:
            raise PenstockError("killed here")
        return real(chosen, state, version)

    monkeypatch.setattr(job, "_save", save)
    with pytest.raises(PenstockError, match="killed here"):
        run_replay(spark, server, lake, queue, to_queue=target, unit_rows=100)
    assert len(received(server, target)) == 200
    run_archive(spark, options(server, lake, queue))  # what was in the log is in the lake now
    publish(client, queue, 300, 310)  # later than the plan
    summary = run_replay(spark, server, lake, queue, to_queue=target, unit_rows=100)
    assert summary.details["finished"] is True
    payloads = [one.message.payload for one in received(server, target)]
    assert payloads == [f"message {number}".encode() for number in range(300)]


def test_only_what_is_asked_for(spark: SparkSession, server: Server, queue: str, lake: Path) -> None:
    client = server.client
    for number in range(40):
        headers = {"region": "eu" if number % 2 else "us", "amount": number}
        client.publish(queue, Message(str(number).encode(), f"p{number % 4}", headers=headers))
    run_archive(spark, options(server, lake, queue))

    def numbers(name: str, **more: Any) -> list[int]:
        client.declare_queue(f"{queue}-{name}")
        run_replay(spark, server, lake, queue, name=f"{queue} {name}", to_queue=f"{queue}-{name}", **more)
        return [int(one.message.payload) for one in received(server, f"{queue}-{name}")]

    assert numbers("partition", partitions=["p1"]) == list(range(1, 40, 4))
    assert numbers("header", headers={"region": "eu", "amount": "7"}) == [7]
    assert numbers("where", where="region = 'us' AND amount >= 30") == [30, 32, 34, 36, 38]
    [pivot] = [one.published_ms for one in received(server, queue) if one.message.payload == b"20"]
    moment = dt.datetime.fromtimestamp(pivot / 1000, dt.UTC)
    early, late = numbers("early", end=moment), numbers("late", start=moment)
    assert sorted(early + late) == list(range(40))
    assert 20 in late
    assert 20 not in early


def test_an_exchange_routes_what_is_replayed_at_a_rate(
    spark: SparkSession, server: Server, queue: str, lake: Path
) -> None:
    client = server.client
    publish(client, queue, 0, 30)
    run_archive(spark, options(server, lake, queue))
    client.declare_exchange(f"{queue}-exchange", kind="topic")
    client.declare_queue(f"{queue}-routed")
    client.bind(f"{queue}-exchange", f"{queue}-routed", pattern="again.*")
    to: dict[str, Any] = {"to_exchange": f"{queue}-exchange", "routing_key": "again.now"}
    with Progress("replay", "test") as progress:
        waits: list[float] = []
        progress.wait = lambda seconds: bool(waits.append(seconds))  # type: ignore[method-assign,func-returns-value]
        chosen = ReplayOptions(url=server.url, lake=str(lake), queues=queue, name=f"{queue} routed", rate=5, **to)
        summary = job.run(spark, chosen, progress)
        progress.finish(summary)
    assert (summary.rows, summary.details["units"], len(waits)) == (30, 3, 3)
    assert all(seconds <= 2.0 for seconds in waits)
    assert len(received(server, f"{queue}-routed")) == 30


def test_what_cannot_be_is_refused(spark: SparkSession, server: Server, queue: str, lake: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "give one of to_queue and to_exchange"),
        ({"to_queue": "a", "to_exchange": "b"}, "give one of to_queue and to_exchange"),
        ({"to_queue": "a", "routing_key": "k"}, "routing_key is for exchanges"),
        ({"to_queue": "a", "rate": 0}, "rate is 0"),
        ({"to_queue": "a", "where": "amount >"}, "amount"),
        ({"to_queue": "a", "start": dt.datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"to_queue": "a", "events": True}, "cannot be replayed"),
    ]
    for wrong, text in cases:
        with pytest.raises(InvalidArgument, match=text):
            run_replay(spark, server, lake, queue, **wrong)
    for missing, what in (({"to_queue": "nowhere"}, "queue"), ({"to_exchange": "nowhere"}, "exchange")):
        with pytest.raises(NotFound, match=f"there is no {what} 'nowhere': create it before messages are replayed"):
            run_replay(spark, server, lake, queue, **missing)
