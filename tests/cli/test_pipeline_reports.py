"""`penstock pipeline stats` and `triage` without Spark: flags to options, plans and questions, what people see."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from penstock.cli.pipeline import running
from penstock.cli.pipeline.stats import show
from penstock.cli.pipeline.triage import show_groups, show_redriven
from penstock.client.sync import Client
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.status import read_statuses
from penstock.spark.jobs.triage.plans import Plan, Plans, plans_id, save_plans
from tests.cli.commands import Cli

MINUTE_MS = 60_000
NOON_MS = 1_767_268_800_000


def asked(cli: Cli, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[running.Job, Any]:
    """The job and the options with which it would run."""
    pytest.importorskip("pyspark")
    seen: list[tuple[running.Job, Any]] = []

    def run(job: running.Job, _place: Any, _run: Any, options: Any, _client: Any) -> int:
        seen.append((job, options))
        return 0

    monkeypatch.setattr(running, "run_in_session", run)
    cli("pipeline", *arguments)
    [found] = seen
    return found


def test_flags_of_stats_become_options(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    job, options = asked(
        cli,
        monkeypatch,
        "stats",
        "orders",
        "--group",
        "g",
        "--start",
        "2026-01-01T00:00:00Z",
        "--end",
        "2026-01-02T00:00:00Z",
        "--by",
        "hour",
        "--no-update",
        "--reasons",
        "3",
        "--lookback-hours",
        "7",
        "--lake",
        "/a",
        "--storage-option",
        "a=b",
    )
    assert not job.needs_server
    assert {name: getattr(options, name) for name in options.__struct_fields__ if name != "unit_messages"} == {
        "lake": "/a",
        "storage_options": {"a": "b"},
        "queues": '["orders"]',
        "group": "g",
        "start": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "end": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "by": "hour",
        "update": False,
        "reasons": 3,
        "lookback_hours": 7,
    }
    _, options = asked(cli, monkeypatch, "stats")
    assert (options.queues, options.update, options.by, options.start) == ("*", True, None, None)


def test_a_redrive_shows_the_plan_and_asks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    job, options = asked(cli, monkeypatch, "triage", "orders", "--group", "g", "--examples", "1")
    assert (options.queues, options.group, options.examples, options.redrive, options.url) == (
        '["orders"]',
        "g",
        1,
        [],
        cli.server.url,
    )
    assert job.show is show_groups
    assert "give that too" in cli.fails("pipeline", "triage", "--rate", "5", code=2)
    assert "run the triage without --redrive first" in cli.fails("pipeline", "triage", "--redrive", "1", "--yes")
    plan = Plan(
        number=1,
        queue="orders",
        queue_id=7,
        group="g",
        reason="attempts",
        error="no \x1b[31mroute",
        dead=1_200,
        first_ms=1,
        last_ms=2,
    )
    with Client(cli.server.url, namespace=cli.namespace) as client:
        save_plans(client, plans_id('["orders"]', "g"), Plans(0, [plan]))
    told = cli.fails("pipeline", "triage", "orders", "--group", "g", "--redrive", "1")
    assert "1: 1,200 dead letters of queue orders, group g (attempts: no \\e[31mroute)" in told
    assert "pass --yes" in told
    assert "there is no redrive plan 2; the last triage made 1" in cli.fails(
        "pipeline", "triage", "orders", "--group", "g", "--redrive", "2", "--yes"
    )
    job, options = asked(
        cli, monkeypatch, "triage", "orders", "--group", "g", "--redrive", "1", "--rate", "2.5", "--yes"
    )
    assert (options.redrive, options.rate, job.show) == ([1], 2.5, show_redriven)


def row(group: str | None, at: int = 0, **numbers: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("published", "bytes", "delivered", "acked", "retried", "dead"), 0)
    named = {"queue": "orders", "group": group, "first_ms": NOON_MS, "last_ms": NOON_MS + 2 * MINUTE_MS}
    return {**named, **counts, "waited_ms": None, "worked_ms": None, "at_ms": NOON_MS + at * MINUTE_MS, **numbers}


def stats_summary(totals: list[dict[str, Any]]) -> Summary:
    series = [row(None, published=8), row(None, at=2, published=4), row("g", at=1, dead=1)]
    reasons = [
        {
            "queue": "orders",
            "group": "g",
            "reason": "attempts",
            "error": "no \x1b route",
            "dead": 7,
            "first_ms": NOON_MS,
            "last_ms": NOON_MS,
        }
    ]
    details = {"by": "minute", "totals": totals, "series": series, "reasons": reasons, "commits": 1, "messages": 12}
    return Summary("stats", 12, 1.0, {**details, "events": 3, "missed_events": 5})


def test_stats_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"count": 9, "p50": 20, "p95": 1_500, "p99": 61_000, "max": 7_200_000}
    show(stats_summary([row(None, published=12, bytes=3_000), row("g", dead=1, waited_ms=times)]))
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["orders", "-", "12", "0", "0", "0", "0", "3,000"] in lines
    assert ["orders", "g", "waited", "in", "the", "queue", "9", "20", "ms", "1", "s", "1", "min", "2", "h"] in lines
    assert "orders  -      published     8  █ ▄" in printed.out
    assert "orders  g      dead          1   █" in printed.out
    assert "no \\e route" in printed.out
    assert "Summed up 12 messages and 3 events." in printed.err
    assert "5 events expired" in printed.err
    show(Summary("stats", 0, 1.0, {"by": "minute", "totals": [], "series": [], "reasons": []}))
    assert capsys.readouterr().out == "Nothing happened in this range.\n"
    known = {"covers_from_ms": NOON_MS, "covers_to_ms": NOON_MS + 60_000}
    show(Summary("stats", 0, 1.0, {"by": "minute", "totals": [], "series": [], "reasons": [], **known}))
    assert "Nothing happened in this range; the lake tells of 20" in capsys.readouterr().out


def test_stats_where_only_ascii_can_be_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.pipeline.stats._can_print", lambda _text: False)
    show(stats_summary([row(None, published=12)]))
    assert "orders  -      published     8  # -" in capsys.readouterr().out


def test_triage_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    example = {"lane": 1, "offset": 7, "error": "no \x1b 7", "attempts": 3, "partition": "p", "payload": "{\x1b"}
    plan = {
        "number": 1,
        "queue": "orders",
        "group": "g",
        "reason": "attempts",
        "error": "no <number>",
        "dead": 12,
        "attempts": 3,
        "first_ms": 1,
        "last_ms": 2,
        "examples": [example],
    }
    show_groups(Summary("triage", 12, 1.0, {"dead": 12, "groups": 2, "plans": [plan]}))
    printed = capsys.readouterr()
    assert "no <number>" in printed.out
    assert "1:7" in printed.out
    assert "no \\e 7" in printed.out
    assert "{\\e" in printed.out
    assert "There are 2 groups; these are the largest." in printed.err
    show_groups(Summary("triage", 0, 1.0, {"dead": 0, "groups": 0, "plans": []}))
    assert capsys.readouterr().out == "There are no dead letters.\n"
    done = {**plan, "redriven": 5, "finished": False}
    show_redriven(Summary("triage", 5, 1.0, {"redriven": 5, "plans": [done]}))
    assert "1: 5 dead letters of queue orders redriven for group g, of 12 that were listed; stopped" in (
        capsys.readouterr().out
    )


def test_the_row_of_a_job_keeps_the_beginning_of_long_tables(cli: Cli) -> None:
    with Client(cli.server.url, namespace=cli.namespace) as client:
        with Progress("stats", "long", client=client) as progress:
            progress.finish(progress.summary(by="minute", series=[{"n": n, "text": "x" * 1_000} for n in range(5_000)]))
        [status] = [one for one in read_statuses(client, "stats") if one.id == "long"]
        assert (status.state, status.details["by"], len(status.details["series"])) == ("done", "minute", 20)
