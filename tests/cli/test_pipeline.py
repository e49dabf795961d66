"""`penstock pipeline`: flags to options, the rows of `status`, errors without Spark; and real jobs in a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.pipeline import running
from penstock.cli.pipeline.running import queues_text, spark_error_text
from penstock.client.sync import Client
from penstock.spark.jobs.frame import Progress
from penstock.spark.jobs.status import JobStatus, write_status
from tests.cli.commands import Cli
from tests.cli.servers import until

SPARK_SECONDS = 240
"""A job's own process starts a JVM, which takes its time on a busy machine."""


@pytest.fixture
def client(cli: Cli) -> Any:
    with Client(cli.server.url, namespace=cli.namespace) as client:
        yield client


# Help and flags --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["archive", "verify", "compact", "replay", "route", "stats", "triage", "status"])
def test_help_shows_examples_and_imports_no_spark(cli: Cli, job: str) -> None:
    text = cli("pipeline", job, "--help")
    assert f"  penstock pipeline {job}" in text
    assert job in cli("pipeline", "--help")


def test_the_command_line_imports_no_spark() -> None:
    code = "import sys, penstock.cli.main; print([n for n in ('pyspark', 'pyarrow', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_spark_the_way_to_it_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    told = cli.fails("pipeline", "archive")
    assert "pyspark is not installed" in told
    assert "pip install 'penstock[spark]'" in told


def test_without_a_server_nothing_is_started(cli: Cli) -> None:
    assert "there is no server at http://127.0.0.1:9" in cli.fails("pipeline", "archive", "--url", "http://127.0.0.1:9")
    assert "there is no server" in cli.fails("pipeline", "status", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("archive", "--interval", "5s"), "give that too"),
        (("archive", "--interval", "5"), "no span"),
        (("archive", "--no-tidy"), "run penstock pipeline compact"),
        (("archive", "--conf", "memory"), "must be KEY=VALUE"),
        (("archive", "--conf", "a=1", "--conf", "a=2"), "a is given twice"),
        (("verify", "--every", "5s"), "give that too"),
        (("compact", "--no-vacuum", "--vacuum-hours", "1"), "contradict"),
        (("replay",), "Missing argument 'NAME'"),
        (("replay", "a", "--start", "soon"), "no time"),
        (("route", "a", "--kind", "magic"), "magic"),
        (("route", "a", "--header", "b"), "NAME=VALUE"),
        (("archve",), "Did you mean 'archive'?"),
    ],
)
def test_what_is_wrong_with_flags_is_told(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    assert says in cli.fails("pipeline", *arguments, code=2)


def asked(cli: Cli, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, dict[str, Any]]:
    """The id and the options with which a job would run."""
    pytest.importorskip("pyspark")
    seen: list[tuple[str, Any]] = []

    def run(job: running.Job, _place: Any, _run: Any, options: Any, _client: Any) -> int:
        seen.append((job.id, options))
        return 0

    monkeypatch.setattr(running, "run_in_session", run)
    cli("pipeline", *arguments)
    ((id, options),) = seen
    return id, {name: getattr(options, name) for name in options.__struct_fields__}


def test_flags_become_a_jobs_options(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id, options = asked(
        cli,
        monkeypatch,
        "archive",
        "orders",
        "--watch",
        "--interval",
        "2s",
        "--no-events",
        "--hold",
        "--lake",
        "/a",
        "--storage-option",
        "key=value",
        "--rows-per-batch",
        "7",
        "--cursor",
        "c",
        "--allow-gaps",
        "--checkpoint",
        "p",
        "--keep-days",
        "30",
        "--no-tidy",
        "--token",
        "secret",
    )
    assert options == {
        "url": cli.server.url,
        "lake": "/a",
        "queues": '["orders"]',
        "events": False,
        "token": "secret",
        "namespace": cli.namespace,
        "storage_options": {"key": "value"},
        "watch": True,
        "interval_seconds": 2.0,
        "rows_per_batch": 7,
        "cursor": "c",
        "hold": True,
        "allow_gaps": True,
        "checkpoint": "p",
        "keep_days": 30,
        "tidy": False,
    }
    assert asked(cli, monkeypatch, "archive", "orders", "--lake", "/a")[0] == id
    assert asked(cli, monkeypatch, "archive", "orders", "--lake", "/b")[0] != id
    _, options = asked(cli, monkeypatch, "archive", "a", "b.*")
    assert (options["queues"], options["watch"], options["lake"], options["hold"]) == ("a,b.*", False, "./lake", None)

    _, options = asked(cli, monkeypatch, "verify", "--payload")
    assert (options["queues"], options["payload"]) == ("*", True)
    _, options = asked(cli, monkeypatch, "compact", "--expire-days", "3", "--expire-queue", "a", "--no-vacuum")
    assert (options["expire_days"], options["expire_queues"], options["vacuum"]) == (3, ["a"], False)
    _, options = asked(cli, monkeypatch, "compact")
    assert (options["vacuum"], options["vacuum_hours"]) == (True, None)

    id, options = asked(
        cli,
        monkeypatch,
        "replay",
        "again",
        "--from",
        "orders",
        "--to-queue",
        "q",
        "--start",
        "2024-01-01T00:00:00Z",
        "--partition",
        "p",
        "--header",
        "a=b",
        "--where",
        "c = 1",
        "--no-live",
        "--rate",
        "5",
        "--dry-run",
    )
    assert id == "again"
    assert options["start"].isoformat() == "2024-01-01T00:00:00+00:00"
    assert (options["name"], options["queues"], options["to_queue"], options["partitions"], options["headers"]) == (
        "again",
        '["orders"]',
        "q",
        ["p"],
        {"a": "b"},
    )
    assert (options["where"], options["live"], options["rate"], options["dry_run"], options["end"]) == (
        "c = 1",
        False,
        5.0,
        True,
        None,
    )

    _, options = asked(
        cli,
        monkeypatch,
        "route",
        "large",
        "--from",
        "orders",
        "--kind",
        "headers",
        "--header",
        "n:=1",
        "--match",
        "any",
    )
    assert (options["to_queue"], options["kind"], options["headers"], options["match"]) == (
        "large",
        "headers",
        {"n": 1},
        "any",
    )


def test_queues_as_the_source_takes_them() -> None:
    assert queues_text(()) == "*"
    assert queues_text(("a,b", "c")) == '["a,b", "c"]'
    assert queues_text(("a", "b.*")) == "a,b.*"


def test_of_an_error_of_spark_the_part_that_matters() -> None:
    class Raised(Exception):
        __module__ = "pyspark.errors"

    pages = "[PYTHON_ERROR] it failed\n  File x\npenstock.errors.NotFound: there is no queue 'a'\n  at java.lang"
    assert spark_error_text(Raised(pages)) == "there is no queue 'a'"
    assert spark_error_text(Raised("[BAD] a\nb\n\nc\nd")) == "[BAD] a\nb\nc"
    assert spark_error_text(ValueError("a")) is None


# Status ----------------------------------------------------------------------------------------------------


def test_status_of_jobs(cli: Cli, client: Client) -> None:
    assert cli("pipeline", "status") == "No job has run yet.\n"
    now = time.time_ns() // 1_000_000
    with Progress("archive", "a1", what="orders → ./lake", client=client) as progress:
        progress.update(rows=1_234, lag=50)
        assert cli.json("pipeline", "status")[0]["state"] == "running"
        progress.finish(progress.summary(files=2))
    with pytest.raises(ValueError, match="broken"), Progress("verify", "v1", client=client):
        raise ValueError("broken\x1b[31m")
    old = JobStatus(job="route", id="r1", state="running", started_ms=0, updated_ms=now - 120_000)
    write_status(client, old)
    client.put_mark("pipeline/other/1", {"not": "ours"})

    found = {one["job"]: one for one in cli.json("pipeline", "status")}
    assert (found["archive"]["state"], found["archive"]["rows"], found["archive"]["details"]) == (
        "done",
        1_234,
        {"files": 2},
    )
    assert (found["verify"]["state"], found["verify"]["error"]) == ("failed", "broken\x1b[31m")
    assert set(found) == {"archive", "verify", "route"}
    table = cli("pipeline", "status")
    assert [line.split()[0] for line in table.splitlines()] == ["job", "route", "verify", "archive"]
    assert "silent" in table
    assert "broken\\e[31m" in table
    assert [one["job"] for one in cli.json("pipeline", "status", "verify")] == ["verify"]

    assert "2 rows forgotten" in cli.invoke("pipeline", "status", "--forget", "0ms").stderr
    assert [one["job"] for one in cli.json("pipeline", "status")] == ["route"]


def test_a_run_takes_the_row_of_the_run_before(cli: Cli, client: Client) -> None:
    for rows in (1, 2):
        with Progress("archive", "a1", client=client) as progress:
            progress.update(rows=rows)
            progress.finish(progress.summary())
    assert [one["rows"] for one in cli.json("pipeline", "status")] == [2]


# Real jobs -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(2 * SPARK_SECONDS)
def test_ctrl_c_ends_a_watching_job_in_good_order(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    cli("queue", "create", "orders")
    cli("publish", "orders", "first")
    arguments = [
        "pipeline",
        "archive",
        "--watch",
        "--interval",
        "100ms",
        "--no-events",
        "--lake",
        str(tmp_path),
        "--json",
    ]
    with cli.child(*arguments) as process:

        def archived() -> bool:
            assert process.poll() is None
            return any(one["rows"] >= 1 for one in cli.json("pipeline", "status"))

        deadline = time.monotonic() + SPARK_SECONDS
        while not archived():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SPARK_SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(output)["rows"] == 1
    until(lambda: cli.json("pipeline", "status")[0]["state"] == "stopped", "its row says that it was stopped")
