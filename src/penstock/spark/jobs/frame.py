"""What every job has: progress while it runs, a row in `penstock pipeline status`, a summary at its end, a clean stop.

    with Progress("archive", "nightly", client=client, display=display) as progress, progress.interruptible():
        summary = archive.run(spark, options, progress)
        progress.finish(summary)

A job calls `progress.update(…)` as often as it likes; what is shown and written is throttled here. Between two pieces
of work it looks at `progress.stopping` and returns early when that is true: the first Ctrl+C sets it, the second ends
the process at once. Jobs are idempotent, so either is safe; the first is only tidier.

May not know: Spark's classes, what a job does, or how progress looks on a terminal (`Display` is the caller's).
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec

from penstock.client.sync import Client
from penstock.model.errors import PenstockError
from penstock.spark.jobs.status import JobStatus, State, write_status
from penstock.spark.times import now_ms

ROW_SECONDS: Final = 5.0
"""Between two writes of the row, a change of state excepted."""
TICK_SECONDS: Final = 0.25
"""Between two looks at whether something is due."""
RATE_SECONDS: Final = 30.0
"""The window of the rate, in seconds."""
DETAIL_ROWS: Final = 20
"""Of a table of the summary, the row for `pipeline status` keeps the beginning: it must stay small."""
STOP_SECONDS: Final = 60.0
"""How long a micro-batch that is under way may take to end before a stop interrupts it."""

logger = logging.getLogger(__name__)


class Summary(msgspec.Struct):
    """What a job did."""

    job: str
    rows: int
    seconds: float
    details: dict[str, Any] = {}
    """More of it, by name, in the order to show: texts, numbers, booleans, or lists of dicts for tables."""


class Display(Protocol):
    """Where progress is shown. It is called often and decides itself how often it shows something."""

    def show(self, status: JobStatus) -> None:
        """Progress, or a state that changed."""

    def close(self) -> None:
        """Nothing more will come."""


class Progress:
    """A job's progress. `update` may be called from any thread; leaving the context without `finish` is a failure."""

    def __init__(
        self,
        job: str,
        id: str = "default",
        *,
        what: str = "",
        client: Client | None = None,
        display: Display | None = None,
    ) -> None:
        """`client` is where the row is kept; without it, or without a display, nothing is written or shown."""
        now = now_ms()
        self._status = JobStatus(job=job, id=id, what=what, state="running", started_ms=now, updated_ms=now)
        self._client = client
        self._display = display
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._started = time.monotonic()
        self._first_done: tuple[float, int] | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None
        self._row_written = 0.0
        self._row_failed = False
        self._rows_before = 0
        """Of runs before the last restart."""

    # What a job calls -------------------------------------------------------------------------------------

    def update(
        self,
        *,
        rows: int | None = None,
        done: int | None = None,
        total: int | None = None,
        lag: int | None = None,
        note: str | None = None,
    ) -> None:
        """What is given replaces what was said before; what is not given stays.

        `rows` are those handled since the job last began (all, not those since the last call). `done` of `total`
        are whatever the job counts its work in; `lag` are the rows that are there and not handled yet. The time to go
        comes from done and total, else from lag.
        """
        with self._lock:
            status = self._status
            if rows is not None:
                status.rows = self._rows_before + rows
                self._sample(status.rows)
            if done is not None:
                status.done = done
                # A job that goes on where another run stopped begins with much of it done.
                self._first_done = self._first_done or (time.monotonic(), done)
            status.total = status.total if total is None else total
            status.lag = status.lag if lag is None else lag
            status.note = status.note if note is None else note

    def add(self, rows: int) -> None:
        """Count more rows."""
        with self._lock:
            self._status.rows += rows
            self._sample(self._status.rows)

    def restart(self, note: str) -> None:
        """The job begins anew after a fault: what it counts from here on comes on top."""
        with self._lock:
            self._rows_before = self._status.rows
            self._first_done = None
            self._status.restarts += 1
            self._status.note = note

    @property
    def rows(self) -> int:
        return self._status.rows

    @property
    def seconds(self) -> float:
        """Since the job began."""
        return time.monotonic() - self._started

    @property
    def stopping(self) -> bool:
        """Whether to stop now: check it between two pieces of work."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask the job to end at its next look."""
        self._stopping.set()

    def wait(self, seconds: float) -> bool:
        """Pause, but not beyond a stop: True if there was one."""
        return self._stopping.wait(seconds)

    def summary(self, **details: Any) -> Summary:
        """A summary of what was counted here."""
        more = {"restarts": self._status.restarts} if self._status.restarts else {}
        return Summary(self._status.job, self.rows, round(self.seconds, 3), details | more)

    def snapshot(self) -> JobStatus:
        """Where the job is now."""
        with self._lock:
            return self._current()

    # Its life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._samples = deque([(self._started, self._status.rows)])
        self._tell(write=True)
        self._ticker = threading.Thread(target=self._tick, name=f"progress of {self._status.job}", daemon=True)
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._ended.is_set():
            is_stop = isinstance(error, KeyboardInterrupt | SystemExit)
            reason = "" if is_stop else "the job ended without a summary" if error is None else error_text(error)
            self._end("stopped" if is_stop else "failed", reason)

    def finish(self, summary: Summary) -> None:
        """The job is done; or stopped, if it was asked to."""
        with self._lock:
            self._status.rows = summary.rows
            self._status.details = {
                name: value[:DETAIL_ROWS] if isinstance(value, list) else value
                for name, value in summary.details.items()
            }
        self._end("stopped" if self.stopping else "done", "")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """The first Ctrl+C or SIGTERM asks the job to stop, the second raises. Enter it after Spark has started:
        Spark's own handler of Ctrl+C, which cancels what runs, would replace this one."""

        def ask(_number: int, _frame: object) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.update(note="stopping after this piece of work; once more stops at once")
            self.stop()

        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's business
            return
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    # Inside -----------------------------------------------------------------------------------------------

    def _sample(self, rows: int) -> None:
        now = time.monotonic()
        samples = self._samples
        if now - samples[-1][0] >= TICK_SECONDS or len(samples) < 2:
            samples.append((now, rows))
        else:
            samples[-1] = (samples[-1][0], rows)
        while len(samples) > 2 and now - samples[1][0] > RATE_SECONDS:
            samples.popleft()

    def _current(self) -> JobStatus:
        """A copy with what depends on the time; the lock is held."""
        status = msgspec.structs.replace(self._status, updated_ms=now_ms())
        if status.state != "running":
            return status
        since, rows_then = self._samples[0]
        status.rate = max(0.0, (status.rows - rows_then) / max(time.monotonic() - since, 0.001))
        status.eta_seconds = self._to_go(status)
        return status

    def _to_go(self, status: JobStatus) -> float | None:
        if status.done is not None and status.total is not None and self._first_done is not None:
            since, first = self._first_done
            if status.done <= first:
                return None
            seconds = time.monotonic() - (since if first else self._started)
            return max(0.0, seconds * (status.total - status.done) / (status.done - first))
        return status.lag / status.rate if status.lag and status.rate > 0 else None

    def _tick(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self._tell(write=time.monotonic() - self._row_written >= ROW_SECONDS)

    def _tell(self, *, write: bool) -> None:
        status = self.snapshot()
        if self._display is not None:
            self._display.show(status)
        if write and self._client is not None:
            self._row_written = time.monotonic()
            try:
                write_status(self._client, status)
                self._row_failed = False
            except PenstockError as error:  # a row is news: the job itself goes on
                if not self._row_failed:
                    logger.warning("the row for 'penstock pipeline status' could not be written: %s", error)
                self._row_failed = True

    def _end(self, state: State, error: str) -> None:
        with self._lock:
            status = self._status
            status.state, status.error, status.ended_ms, status.note = state, error, now_ms(), ""
            if state == "failed" and status.restarts:
                status.error = f"{error} (after {status.restarts} restarts)"
            status.rate = status.rows / max(self.seconds, 0.001)
            status.lag = status.lag if state != "done" else None
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
        self._tell(write=True)
        if self._display is not None:
            self._display.close()


class StreamingQuery(Protocol):
    """What `follow` needs of Spark's."""

    @property
    def isActive(self) -> bool: ...
    @property
    def status(self) -> dict[str, Any]: ...
    def awaitTermination(self, timeout: int) -> bool | None: ...
    def stop(self) -> None: ...


def follow(query: StreamingQuery, progress: Progress, look: Callable[[], None]) -> None:
    """Wait until a streaming query ends, calling `look` about every second; a stop comes between two micro-batches.

    What the query fails with is raised. A micro-batch that takes very long is interrupted after a while: it is done
    again, whole, when the job runs next.
    """
    stop_from: float | None = None
    while query.isActive:
        if query.awaitTermination(1):
            break
        look()
        if not progress.stopping:
            continue
        stop_from = time.monotonic() if stop_from is None else stop_from
        if not query.status["isTriggerActive"] or time.monotonic() - stop_from > STOP_SECONDS:
            query.stop()
            break
    query.awaitTermination(1)
    look()


def error_text(error: BaseException) -> str:
    """One paragraph: Spark puts a plan and a stack behind its first lines."""
    text = str(error).strip() or type(error).__name__
    return text.split("\n\n", 1)[0][:2_000]
