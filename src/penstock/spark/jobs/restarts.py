"""Starts a job again after a fault that may pass: a Python worker that did not start, a lost executor, no server.

Every job goes on from its marks and does nothing twice, so a restart is always safe; what has to be decided is when it
is useful. An error that says something of the data, the options or the lake ends the job at once. After a transient one
the job is run again, with growing pauses, and ends if it fails again and again without getting on.

May not know: what a job does, Spark's classes, or how progress looks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Final

from penstock.model.errors import PenstockError
from penstock.spark.jobs.frame import Progress, Summary, error_text

RESTARTS: Final = 8
"""In a row: a run that handled a message, or went well for `STEADY_S`, starts the count again."""
STEADY_S: Final = 600.0
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0

OF_SPARK: Final = (
    "Python worker failed to connect back",
    "Python worker exited unexpectedly",
    "Python worker process terminated due to idle timeout",
    "Timed out while waiting for the Python worker to connect back",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "EOFException",
    "ExecutorLostFailure",
    "FetchFailedException",
    "MetadataFetchFailedException",
    "Futures timed out",
    "RpcTimeoutException",
)
"""What Spark says of processes and connections of its own that it lost; the session itself is still there. It has no
code for these: see docs/decisions/0034-texts-of-others.md."""
_OURS: Final = re.compile(r"\bpenstock(?:\.\w+)*\.(\w+): ")

logger = logging.getLogger(__name__)


def restarting(run: Callable[[], Summary], progress: Progress, restarts: int = RESTARTS) -> Summary:
    """What `run` returns, of the first time that it comes to an end."""
    failures = 0
    while True:
        before, began = progress.rows, time.monotonic()
        try:
            return run()
        except Exception as error:
            if progress.stopping or not is_transient(error):
                raise
            got_on = progress.rows > before or time.monotonic() - began >= STEADY_S
            failures = 1 if got_on else failures + 1
            if failures > restarts:
                if restarts:
                    logger.warning("the job failed %d times in a row, and is not started again", failures)
                raise
            pause_s = min(PAUSE_S * 2 ** (failures - 1), PAUSE_S_MAX)
            what = error_text(error)
            logger.warning("the job starts again in %.0f s (%d of %d): %s", pause_s, failures, restarts, what)
            progress.restart(f"starts again in {pause_s:.0f} s ({failures} of {restarts}) after: {what[:200]}")
            if progress.wait(pause_s):
                raise
            progress.update(note="")


def is_transient(error: BaseException) -> bool:
    """Whether the next try may not meet it."""
    if isinstance(error, PenstockError):
        return _may_pass(type(error))
    text = str(error)
    told = _OURS.findall(text)
    if told:  # a worker raised an error of ours: it says more than what Spark makes of it
        return told[-1] in {kind.__name__ for kind in _kinds(PenstockError) if _may_pass(kind)}
    return any(words in text for words in OF_SPARK)


def _may_pass(kind: type[PenstockError]) -> bool:
    """What the catalogue says of errors of a server; a lake that another writer changed is read anew."""
    return kind.row.retryable or kind.code == "lake_conflict"


def _kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _kinds(one)
