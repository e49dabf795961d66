"""The job `route`: history to a queue by filter, binding or exchange; once, whatever stops it; from lake and log."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.api.results import Received
from penstock.core.filters import parse
from penstock.model import Message
from penstock.model.errors import InvalidArgument, InvalidFilter, NotFound
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.archive.job import ArchiveOptions
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.route import job as route
from penstock.spark.jobs.route.job import RouteOptions
from tests.spark.rig import Server

_targets = itertools.count(1)
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def target(server: Server) -> str:
    name = f"routed-{next(_targets)}"
    server.client.declare_queue(name)
    return name


def options_of(server: Server, folder: Path, queue: str, target: str, **more: Any) -> RouteOptions:
    return RouteOptions(url=server.url, lake=str(folder / "lake"), queues=queue, to_queue=target, **more)


def run(spark: SparkSession, options: RouteOptions) -> Summary:
    with Progress("route") as progress:
        summary = route.run(spark, options, progress)
        progress.finish(summary)
    return summary


def log(server: Server, queue: str) -> list[Received]:
    return list(server.client.browse(queue, max=1_000).messages)


def payloads(server: Server, queue: str) -> list[bytes]:
    return [one.payload for one in log(server, queue)]


def publish(server: Server, queue: str, first: int, count: int) -> list[Message]:
    """Messages of all sorts, whose payload is their number."""
    sorts: list[dict[str, Any] | None] = [
        None,
        {"region": "eu", "amount": 5},
        {"region": "eu", "amount": 50.5},
        {"region": "us", "amount": 2**60},
        {"region": None},
        {"region": b"eu"},
        {"amount": "50"},
        {"urgent": True, "at": NOON, "list": [1, {"a": b"x"}]},
    ]
    keys = [None, "order.eu.paid", "order.us.paid", "order", "mail.eu"]
    made = [
        Message(
            str(number).encode(),
            headers=sorts[number % len(sorts)],
            key=keys[number % len(keys)],
            partition=f"p{number % 3}",
            priority=number % 4,
            content_type="text/plain" if number % 2 else None,
            correlation_id=f"c{number}",
            trace_id=f"t{number}",
        )
        for number in range(first, first + count)
    ]
    server.client.publish_many(queue, made)
    return made


def test_a_filter_over_the_log_once_however_often_it_runs(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    condition = "region = 'eu' AND amount > 10 OR urgent OR $priority = 3"
    options = options_of(server, tmp_path, queue, target, where=condition)
    wanted = [one for one in publish(server, queue, 0, 40) if parse(condition).matches(one)]
    summary = run(spark, options)
    assert summary.rows == len(wanted)
    details = summary.details
    assert (details["looked_at"], details["matched"], details["routed"], details["routed_before"]) == (
        40,
        len(wanted),
        len(wanted),
        0,
    )
    assert details["finished"] is True
    # Everything of the messages is as it was, the types of their headers included.
    assert [one.message for one in log(server, target)] == wanted

    again = run(spark, options).details
    assert (again["matched"], again["routed"], again["routed_before"]) == (len(wanted), 0, len(wanted))
    more = [one for one in publish(server, queue, 40, 20) if parse(condition).matches(one)]
    assert run(spark, options).details["routed"] == len(more)
    assert [one.message for one in log(server, target)] == wanted + more


def test_a_binding_over_lake_and_log_with_nothing_twice(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    publish(server, queue, 0, 20)
    lake = ArchiveOptions(url=server.url, lake=str(tmp_path / "lake"), queues=queue, events=False)
    with Progress("archive") as progress:
        progress.finish(archive.run(spark, lake, progress))
    publish(server, queue, 20, 20)
    eu = [str(number).encode() for number in range(40) if number % 5 == 1]
    options = options_of(server, tmp_path, queue, target, kind="topic", pattern="order.eu.#")
    assert run(spark, options).details["looked_at"] == 40
    assert payloads(server, target) == eu
    with Progress("archive") as progress:  # what was read from the log is in the lake now
        progress.finish(archive.run(spark, lake, progress))
    assert run(spark, options).details["routed"] == 0
    assert payloads(server, target) == eu


def test_only_the_lake_if_asked(spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path) -> None:
    publish(server, queue, 0, 4)
    lake = ArchiveOptions(url=server.url, lake=str(tmp_path / "lake"), queues=queue, events=False)
    with Progress("archive") as progress:
        progress.finish(archive.run(spark, lake, progress))
    publish(server, queue, 4, 4)
    run(spark, options_of(server, tmp_path, queue, target, kind="fanout", live=False))
    assert payloads(server, target) == [b"0", b"1", b"2", b"3"]


def test_the_bindings_of_an_exchange_give_what_they_give_live(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    """A history that nobody routed, to one queue; the same messages through the exchange, to its twin."""
    client, twin, first, second = server.client, f"{target}-live", f"{target}-first", f"{target}-second"
    client.declare_queue(twin)
    client.declare_exchange(first, kind="topic")
    client.declare_exchange(second, kind="headers")
    client.bind(first, second, "order.#", target_kind="exchange")
    for bound in (target, twin):
        client.bind(second, bound, headers={"region": "eu", "urgent": True}, match="any")
        client.bind(first, bound, "mail.*")
    made = publish(server, queue, 0, 40)
    run(spark, options_of(server, tmp_path, queue, target, exchange=first))
    routed = [one.message for one in log(server, target)]
    for message in made:
        client.publish_to(first, message)
    assert 0 < len(routed) < 40
    assert [one.message for one in log(server, twin)] == routed


def test_a_dry_run_counts_and_publishes_nothing(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    publish(server, queue, 0, 16)
    summary = run(spark, options_of(server, tmp_path, queue, target, where="region = 'eu'", dry_run=True))
    today = dt.datetime.now(dt.UTC).date().isoformat()
    assert summary.details["would_route"] == summary.rows == 4
    assert summary.details["days"] == [{"queue": queue, "date": today, "count": 4}]
    assert payloads(server, target) == []


def test_a_stop_comes_between_two_units_and_the_next_run_does_the_rest(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    publish(server, queue, 0, 20)
    options = options_of(server, tmp_path, queue, target, kind="fanout", unit_rows=8)

    class StopsAfterOne(Progress):
        def update(self, **changes: Any) -> None:
            super().update(**changes)
            if changes.get("done"):
                self.stop()

    with StopsAfterOne("route") as progress:
        summary = route.run(spark, options, progress)
        progress.finish(summary)
    assert (summary.details["routed"], summary.details["finished"]) == (8, False)
    assert payloads(server, target) == [str(number).encode() for number in range(8)]
    rest = run(spark, options).details
    assert (rest["routed"], rest["routed_before"], rest["finished"]) == (12, 8, True)
    assert payloads(server, target) == [str(number).encode() for number in range(20)]


def test_what_expired_is_left_out_and_time_goes_on(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    client = server.client
    far_ms = time.time_ns() // 1_000_000 + 3_600_000
    client.publish_many(
        queue,
        [
            Message(b"gone", ttl_ms=1),
            Message(b"lives", ttl_ms=3_600_000, dedup_id="same"),
            Message(b"delayed", delay_ms=3_600_000),
            Message(b"later", not_before_ms=far_ms),
            Message(b"was delayed", delay_ms=1),
        ],
    )
    published_ms = client.browse(queue, max=1).messages[0].published_ms
    while time.time_ns() // 1_000_000 <= published_ms + 2:
        time.sleep(0.001)
    details = run(spark, options_of(server, tmp_path, queue, target, where="TRUE")).details
    assert (details["matched"], details["expired"], details["routed"]) == (5, 1, 4)
    by_payload = {one.payload: one.message for one in log(server, target)}
    assert set(by_payload) == {b"lives", b"delayed", b"later", b"was delayed"}
    left = by_payload[b"lives"].ttl_ms
    assert left is not None
    assert 0 < left < 3_600_000
    assert by_payload[b"lives"].dedup_id is None
    assert by_payload[b"later"].not_before_ms == far_ms
    assert by_payload[b"delayed"].not_before_ms == published_ms + 3_600_000
    assert not by_payload[b"was delayed"].not_before_ms
    run(spark, options_of(server, tmp_path, queue, target, where="TRUE", name="again", keep_dedup_ids=True))
    assert [one.message.dedup_id for one in log(server, target) if one.payload == b"lives"] == [None, "same"]


def test_only_a_part_of_history(spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path) -> None:
    publish(server, queue, 0, 3)
    middle_ms = client_time(server, queue)
    publish(server, queue, 3, 3)
    middle = dt.datetime.fromtimestamp(middle_ms / 1000, dt.UTC)
    run(spark, options_of(server, tmp_path, queue, target, kind="fanout", end=middle, name="old"))
    assert payloads(server, target) == [b"0", b"1", b"2"]
    run(spark, options_of(server, tmp_path, queue, target, kind="fanout", start=middle, name="new"))
    assert payloads(server, target) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def client_time(server: Server, queue: str) -> int:
    """A millisecond after the last message of a queue, which is over."""
    after = max(one.published_ms for one in log(server, queue)) + 1
    while time.time_ns() // 1_000_000 <= after:
        time.sleep(0.001)
    return after


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, InvalidArgument, "one of where, exchange and kind"),
        ({"where": "a", "kind": "topic"}, InvalidArgument, "where and kind"),
        ({"where": "a", "pattern": "b"}, InvalidArgument, "give kind too"),
        ({"where": "region ="}, InvalidFilter, "expected a value"),
        ({"kind": "topic", "pattern": "a*"}, InvalidArgument, "whole words"),
        ({"kind": "headers", "match": "some"}, InvalidArgument, "all or any"),
        ({"exchange": "nowhere"}, NotFound, "no exchange 'nowhere'"),
        ({"where": "TRUE", "events": True}, InvalidArgument, "not routed"),
        ({"where": "TRUE", "start": dt.datetime(2024, 1, 1)}, InvalidArgument, "no time zone"),  # noqa: DTZ001
        ({"where": "TRUE", "unit_rows": 0}, InvalidArgument, "unit_rows is 0"),
    ],
)
def test_what_is_wrong_is_told(
    spark: SparkSession,
    server: Server,
    queue: str,
    target: str,
    tmp_path: Path,
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        run(spark, options_of(server, tmp_path, queue, target, **options))


def test_a_target_that_is_missing_or_a_source(spark: SparkSession, server: Server, queue: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no queue 'nowhere'"):
        run(spark, options_of(server, tmp_path, queue, "nowhere", where="TRUE"))
    with pytest.raises(InvalidArgument, match="come from and where they go"):
        run(spark, options_of(server, tmp_path, queue, queue, where="TRUE"))


def test_a_pattern_of_queues_does_not_feed_the_target_to_itself(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    target = f"{queue}-routed"
    server.client.declare_queue(target)
    publish(server, queue, 0, 3)
    server.client.publish(target, Message(b"own"))
    run(spark, options_of(server, tmp_path, f"{queue}*", target, where="TRUE"))
    assert payloads(server, target) == [b"own", b"0", b"1", b"2"]


def test_a_filter_that_lets_nothing_through(
    spark: SparkSession, server: Server, queue: str, target: str, tmp_path: Path
) -> None:
    publish(server, queue, 0, 10)
    summary = run(spark, options_of(server, tmp_path / "lake", queue, target, where="$priority > 200"))
    assert (summary.details["matched"], summary.details["routed"]) == (0, 0)
    assert log(server, target) == []
