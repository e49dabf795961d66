"""The row of a job in `penstock pipeline status`: a mark `pipeline/<job>/<id>` on the server that the job works with.

A run of the same job with the same id takes the same row, so a nightly job is one row and not hundreds.

May not know: Spark, terminals, or what any job does.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from penstock.client.sync import Client

PREFIX: Final = "pipeline/"
SILENT_MS: Final = 60_000
"""A running job writes its row every few seconds: one that was silent for so long is gone without a word."""

State = Literal["running", "done", "stopped", "failed"]


class JobStatus(msgspec.Struct, kw_only=True):
    """Where a job is, as it said last."""

    job: str
    id: str
    state: State
    started_ms: int
    updated_ms: int
    ended_ms: int | None = None
    what: str = ""
    """What it works on, for people."""
    rows: int = 0
    """Handled by this run."""
    rate: float = 0.0
    """Rows a second, lately; of a job that ended, over all of it."""
    done: int | None = None
    total: int | None = None
    lag: int | None = None
    """Rows that are there and not handled yet."""
    eta_seconds: float | None = None
    note: str = ""
    error: str = ""
    restarts: int = 0
    """How often this run began anew after a fault of Spark's or an absent server."""
    details: dict[str, Any] = {}
    """Of a job that ended: what its summary says."""
    host: str = msgspec.field(default_factory=socket.gethostname)
    process: int = msgspec.field(default_factory=os.getpid)

    def is_silent(self, now_ms: int) -> bool:
        """Whether it says that it runs but was not heard of for too long."""
        return self.state == "running" and now_ms - self.updated_ms > SILENT_MS


def mark_name(job: str, id: str) -> str:
    return f"{PREFIX}{job}/{id}"


def write_status(client: Client, status: JobStatus) -> None:
    """Whatever was there before: a row is news, and nothing is decided by it."""
    client.put_mark(mark_name(status.job, status.id), msgspec.to_builtins(status))


def read_statuses(client: Client, job: str = "") -> list[JobStatus]:
    """All rows, or those of one job: running ones first, then the latest."""
    found = [one for one in map(_status_of, client.marks(PREFIX + (f"{job}/" if job else ""))) if one is not None]
    return sorted(found, key=lambda one: (one.state != "running", -one.updated_ms))


def forget_statuses(client: Client, statuses: Iterable[JobStatus]) -> int:
    count = 0
    for status in statuses:
        client.delete_mark(mark_name(status.job, status.id))
        count += 1
    return count


def _status_of(mark: Any) -> JobStatus | None:
    """None for a mark that is no row of ours: any writer of marks may use this name."""
    try:
        return msgspec.convert(mark.value, JobStatus)
    except msgspec.ValidationError:
        return None
