"""Progress of jobs: counts, rates and times to go, what is told when, stops and failures. No Spark, no server."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from penstock.cli.pipeline.display import LineDisplay, progress_text
from penstock.spark.jobs import frame
from penstock.spark.jobs.frame import Progress, Summary, follow
from penstock.spark.jobs.status import SILENT_MS, JobStatus, mark_name


class Seen:
    """A display that remembers."""

    def __init__(self) -> None:
        self.shown: list[JobStatus] = []
        self.is_closed = False

    def show(self, status: JobStatus) -> None:
        assert not self.is_closed
        self.shown.append(status)

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """Stands in for the module `time` where a test says what time it is."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1_000_000_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(frame, "time", made)
    return made


# Counts --------------------------------------------------------------------------------------------------


def test_an_update_replaces_what_it_names_and_nothing_else() -> None:
    progress = Progress("archive")
    progress.update(rows=5, done=1, total=4, lag=7, note="reading")
    progress.update(rows=9)
    status = progress.snapshot()
    assert (status.rows, status.done, status.total, status.lag, status.note) == (9, 1, 4, 7, "reading")
    progress.add(3)
    progress.update(lag=0, note="")
    status = progress.snapshot()
    assert (status.rows, status.lag, status.note) == (12, 0, "")


def test_the_rate_is_of_late_and_the_time_to_go_comes_from_it(clock: Clock) -> None:
    progress = Progress("archive")
    for _ in range(10):
        clock.now += 1
        progress.add(100)
    progress.update(lag=1_000)
    status = progress.snapshot()
    assert status.rate == pytest.approx(100)
    assert status.eta_seconds == pytest.approx(10)
    for _ in range(100):  # ten times as fast from here on
        clock.now += 1
        progress.add(1_000)
    assert progress.snapshot().rate == pytest.approx(1_000, rel=0.05)
    clock.now += 200  # and nothing since
    assert progress.snapshot().rate < 200


def test_the_time_to_go_counts_from_where_this_run_began(clock: Clock) -> None:
    progress = Progress("replay")
    progress.update(done=900, total=1_000)  # done by an earlier run
    assert progress.snapshot().eta_seconds is None
    clock.now += 10
    progress.update(done=950)
    assert progress.snapshot().eta_seconds == pytest.approx(10)
    clock.now += 10
    progress.update(done=1_000)
    assert progress.snapshot().eta_seconds == 0


def test_without_a_rate_nobody_knows_how_long(clock: Clock) -> None:
    progress = Progress("archive")
    progress.update(lag=5)
    clock.now += 5
    assert progress.snapshot().eta_seconds is None


def test_a_summary_has_what_was_counted(clock: Clock) -> None:
    progress = Progress("verify")
    clock.now += 2.5
    progress.update(rows=7)
    assert progress.summary(ok=True) == Summary("verify", 7, 2.5, {"ok": True})


# Life ----------------------------------------------------------------------------------------------------


def test_a_job_that_finishes_is_done() -> None:
    seen = Seen()
    with Progress("archive", "a1", what="orders", display=seen) as progress:
        progress.update(rows=3, lag=2)
        progress.finish(progress.summary(files=1))
    assert seen.shown[0].state == "running"
    last = seen.shown[-1]
    assert (last.state, last.rows, last.lag, last.details, last.what) == ("done", 3, None, {"files": 1}, "orders")
    assert last.ended_ms is not None
    assert seen.is_closed


def test_progress_is_shown_while_the_job_is_busy_elsewhere() -> None:
    seen = Seen()
    with Progress("archive", display=seen) as progress:
        progress.update(rows=42)
        deadline = time.monotonic() + 30
        while not any(status.rows == 42 for status in seen.shown):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        progress.finish(progress.summary())


@pytest.mark.parametrize(
    ("raised", "state", "error"),
    [
        (ValueError("no such queue\n\nand pages of a plan"), "failed", "no such queue"),
        (ValueError(), "failed", "ValueError"),
        (KeyboardInterrupt(), "stopped", ""),
        (SystemExit(1), "stopped", ""),
    ],
)
def test_a_job_that_raises_is_told_as_what_it_is(raised: BaseException, state: str, error: str) -> None:
    seen = Seen()
    with pytest.raises(type(raised)), Progress("archive", display=seen):
        raise raised
    assert (seen.shown[-1].state, seen.shown[-1].error) == (state, error)
    assert seen.is_closed


def test_a_job_that_forgets_its_summary_has_failed() -> None:
    seen = Seen()
    with Progress("archive", display=seen):
        pass
    assert seen.shown[-1].state == "failed"


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with Progress("archive", display=Seen()) as progress:
        assert set(threading.enumerate()) > before
        progress.finish(progress.summary())
    assert set(threading.enumerate()) == before


# Stops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    progress = Progress("archive")
    handler = signal.getsignal(number)
    with progress.interruptible():
        os.kill(os.getpid(), number)
        assert progress.stopping
        assert "stopping" in progress.snapshot().note
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is handler


def test_a_job_that_was_stopped_says_so() -> None:
    seen = Seen()
    with Progress("archive", display=seen) as progress:
        progress.stop()
        assert progress.wait(3_600)
        progress.finish(progress.summary())
    assert seen.shown[-1].state == "stopped"


class Query:
    """A streaming query in which micro-batches come and go."""

    def __init__(self, active: list[bool], ends_after: int = 1_000) -> None:
        self._active = active
        self._looks_left = ends_after
        self.stopped_while_active: bool | None = None

    @property
    def isActive(self) -> bool:
        return self.stopped_while_active is None and self._looks_left > 0

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self._active.pop(0) if len(self._active) > 1 else self._active[0]}

    def awaitTermination(self, timeout: int) -> bool | None:
        self._looks_left -= 1
        return not self.isActive

    def stop(self) -> None:
        self.stopped_while_active = self._active[0]


def test_a_query_is_stopped_between_two_micro_batches() -> None:
    progress = Progress("archive")
    progress.stop()
    query = Query([True, True, True, False])
    follow(query, progress, lambda: None)
    assert query.stopped_while_active is False


def test_a_micro_batch_that_never_ends_is_interrupted(clock: Clock) -> None:
    progress = Progress("archive")
    progress.stop()
    query = Query([True])

    def look() -> None:
        clock.now += 20

    follow(query, progress, look)
    assert query.stopped_while_active is True


def test_a_query_that_ends_by_itself_is_looked_at_to_the_end() -> None:
    looks = []
    follow(Query([True], ends_after=3), Progress("archive"), lambda: looks.append(1))
    assert len(looks) == 3  # two on the way, one at the end


# What is told --------------------------------------------------------------------------------------------


def status(**changes: Any) -> JobStatus:
    return JobStatus(**{"job": "archive", "id": "a1", "state": "running", "started_ms": 0, "updated_ms": 0, **changes})


def test_a_line_of_progress() -> None:
    full = status(what="orders", rows=1_200_000, rate=2_400.4, done=1, total=4, lag=50, eta_seconds=90, note="reading")
    assert progress_text(full) == "archive orders: 1,200,000 messages, 2,400/s, 25%, 50 behind, 1 min to go (reading)"
    assert progress_text(status(rows=1)) == "archive: 1 message"
    assert progress_text(status(note="\x1b[31m")) == "archive: 0 messages (\\e[31m)"


def test_lines_come_now_and_then_and_only_when_something_changed(capsys: pytest.CaptureFixture[str]) -> None:
    display = LineDisplay(seconds=0)
    for rows in (1, 1, 2):
        display.show(status(rows=rows))
    assert capsys.readouterr().err == "archive: 1 message\narchive: 2 messages\n"
    display = LineDisplay(seconds=3_600)
    display.show(status(rows=5))
    assert capsys.readouterr().err == ""


def test_a_job_that_is_not_heard_of_is_silent() -> None:
    assert not status(updated_ms=0).is_silent(SILENT_MS)
    assert status(updated_ms=0).is_silent(SILENT_MS + 1)
    assert not status(updated_ms=0, state="done").is_silent(10 * SILENT_MS)
    assert mark_name("archive", "a1") == "pipeline/archive/a1"
