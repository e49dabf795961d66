"""Ways to break a disk under an open broker: a small file system, a limit on file sizes, a log that fails."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from penstock.store.indexed_log import IndexedLog
from penstock.store.log_records import Draft
from penstock.store.log_segments import Segment

Moment = Literal["before", "within", "after"]


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of its own, of so many bytes; only root may make one."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"cannot mount a small disk: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Writes past this size fail, as on a disk that has no more room. Python ignores the signal that comes along."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_root() -> bool:
    return os.geteuid() == 0


class FailingCommits:
    """Makes the next commits fail with an I/O error: before anything is written, half-way, or when it is durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment: Moment | None = None
        self.left = 0
        self._real = IndexedLog._append
        self._sync = Segment.sync
        monkeypatch.setattr(IndexedLog, "_append", lambda log, draft: self._append(log, draft))
        monkeypatch.setattr(Segment, "sync", lambda segment: self._synced(segment))
        self._in_sync = False

    def fail(self, moment: Moment, count: int = 1) -> None:
        self.moment, self.left = moment, count

    def _append(self, log: IndexedLog, draft: Draft) -> None:
        if self.left == 0:
            self._real(log, draft)
            return
        self.left -= 1
        if self.moment == "before":
            raise io_error()
        self._in_sync = self.moment == "within"
        self._real(log, draft)
        raise io_error()

    def _synced(self, segment: Segment) -> None:
        if self._in_sync:
            self._in_sync = False
            raise io_error()
        self._sync(segment)


def io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
