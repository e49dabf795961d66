"""Which faults a job is started again after, how often, and what is told of it. No Spark, no server."""

from __future__ import annotations

import logging

import pytest

from penstock.cli.pipeline.display import progress_text
from penstock.model.errors import NotFound, PenstockError, Unavailable
from penstock.spark.jobs import restarts
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.restarts import is_transient, restarting
from penstock.spark.lake.errors import LakeConflict, LakeDamaged

NO_WORKER = """\
[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 in stage 7.0 failed
3 times, most recent failure: org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:206)"""
FROM_A_WORKER = """\
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "readers.py", line 7, in latestOffset
penstock.model.errors.{}: what happened
Caused by: java.io.EOFException"""


class OfSpark(Exception):
    """Stands in for what pyspark raises."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OfSpark(NO_WORKER), True),
        (OfSpark("Python worker exited unexpectedly (crashed)"), True),
        (OfSpark("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"), True),
        (OfSpark(FROM_A_WORKER.format("Unavailable")), True),
        (OfSpark(FROM_A_WORKER.format("NotFound")), False),
        (OfSpark("[DIVIDE_BY_ZERO] Division by zero"), False),
        (Unavailable("the store is away"), True),
        (LakeConflict("another writer was first"), True),
        (LakeDamaged("a file is cut short"), False),
        (NotFound("there is no queue 'a'"), False),
        (ValueError("a mistake of ours"), False),
        (ConnectionRefusedError("Spark's own process has ended"), False),
    ],
)
def test_which_faults_may_pass(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected


class Job:
    """Handles so many messages, then fails with what comes next, and comes to its end when nothing does."""

    def __init__(self, progress: Progress, *failures: tuple[int, Exception]) -> None:
        self._progress = progress
        self._failures = list(failures)
        self.runs = 0

    def __call__(self) -> Summary:
        self.runs += 1
        if self._failures:
            rows, error = self._failures.pop(0)
            self._progress.update(rows=rows)
            raise error
        self._progress.update(rows=5)
        return self._progress.summary(lake="here")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which takes time."""
    made: list[float] = []

    def wait(_self: Progress, seconds: float) -> bool:
        made.append(seconds)
        return False

    monkeypatch.setattr(Progress, "wait", wait)
    return made


def test_a_job_goes_on_after_a_hiccup(
    pauses: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress("archive", what="orders")
    job = Job(progress, (100, OfSpark(NO_WORKER)), (20, OfSpark(NO_WORKER)), (0, OfSpark(NO_WORKER)))
    notes: list[str] = []
    restart = progress.restart

    def noted(note: str) -> None:
        notes.append(note)
        restart(note)

    monkeypatch.setattr(progress, "restart", noted)
    with caplog.at_level(logging.WARNING):
        summary = restarting(job, progress)
    assert (job.runs, pauses) == (4, [1.0, 1.0, 2.0])  # what got on starts the count again
    assert (summary.rows, summary.details) == (125, {"lake": "here", "restarts": 3})
    assert progress.snapshot().restarts == 3
    assert "starts again in 2 s (2 of 8) after: " in notes[-1]
    assert "Python worker failed to connect back" in caplog.records[-1].getMessage()
    assert progress_text(progress.snapshot()).startswith("archive orders: 125 messages")


def test_a_fault_that_stays_ends_the_job_with_its_words(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("archive")
    job = Job(progress, *[(0, OfSpark(NO_WORKER))] * 20)
    with caplog.at_level(logging.WARNING), pytest.raises(OfSpark, match="failed to connect back"), progress:
        restarting(job, progress)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert job.runs == 9
    assert "failed 9 times in a row, and is not started again" in caplog.text
    ended = progress.snapshot()
    assert ended.state == "failed"
    assert ended.error.endswith("(after 8 restarts)")


def test_a_run_that_went_well_for_long_starts_the_count_again(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "STEADY_S", 0.0)  # an idle archive that is hit once a day goes on for ever
    progress = Progress("archive")
    assert restarting(Job(progress, *[(0, OfSpark(NO_WORKER))] * 20), progress).rows == 5
    assert pauses == [1.0] * 20


def test_what_cannot_pass_ends_the_job_at_once(pauses: list[float]) -> None:
    progress = Progress("archive")
    job = Job(progress, (0, PenstockError("a gap")))
    with pytest.raises(PenstockError, match="a gap"):
        restarting(job, progress)
    assert (job.runs, pauses) == (1, [])


def test_restarts_can_be_turned_off(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("archive")
    job = Job(progress, (0, Unavailable("away")))
    with pytest.raises(Unavailable):
        restarting(job, progress, 0)
    assert (job.runs, pauses, caplog.records) == (1, [], [])


def test_a_stop_during_the_pause_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "PAUSE_S", 600.0)
    monkeypatch.setattr(restarts, "PAUSE_S_MAX", 600.0)
    progress = Progress("archive")
    monkeypatch.setattr(progress, "restart", lambda _note: progress.stop())
    with pytest.raises(Unavailable):
        restarting(Job(progress, (0, Unavailable("away"))), progress)
