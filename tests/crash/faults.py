"""Ways to break a disk under an open broker: a small file system, a limit on file sizes, a log that fails."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from penstock.api.ticket import Ticket
from penstock.store.sqlite import index
from penstock.store.sqlite.index import IndexedLog
from penstock.store.sqlite.log.log import Entry
from penstock.store.sqlite.log.records import Draft
from penstock.store.sqlite.log.segments import Segment
from penstock.store.sqlite.log.sync import Done, KernelSyncs

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
        self._next: Moment | None = None
        """How the commit that has begun is to fail."""
        self._check, self._fold, self._tell = IndexedLog._check, IndexedLog._fold, IndexedLog._tell
        self._sync, self._start_sync = Segment.sync, Segment.start_sync
        monkeypatch.setattr(index, "KERNEL_AFTER", 0)
        monkeypatch.setattr(IndexedLog, "_check", lambda log, draft: self._checked(log, draft))
        monkeypatch.setattr(IndexedLog, "_fold", lambda log, entry: self._folded(log, entry))
        monkeypatch.setattr(IndexedLog, "_tell", lambda *arguments: self._told(*arguments))
        monkeypatch.setattr(Segment, "sync", lambda segment: self._synced(segment))
        monkeypatch.setattr(Segment, "start_sync", lambda *arguments: self._sync_started(*arguments))

    def fail(self, moment: Moment, count: int = 1) -> None:
        self.moment, self.left = moment, count

    def _checked(self, log: IndexedLog, draft: Draft) -> None:
        self._next = None
        if self.left:
            self.left -= 1
            if self.moment == "before":
                raise io_error()
            self._next = self.moment
        self._check(log, draft)

    def _synced(self, segment: Segment) -> None:
        if self._next == "within":
            raise io_error()
        self._sync(segment)

    def _sync_started(self, segment: Segment, syncs: KernelSyncs, done: Done) -> bool:
        if self._next == "within":
            asyncio.get_running_loop().call_soon(done, io_error())
            return True
        return self._start_sync(segment, syncs, done)

    def _folded(self, log: IndexedLog, entry: Entry) -> None:
        self._fold(log, entry)
        if self._next == "after":
            raise io_error()

    def _told(self, log: IndexedLog, entry: Entry, ticket: Ticket[None]) -> None:
        if self._next == "after":
            self._next = None
            ticket.map(_fail)
        self._tell(log, entry, ticket)


def _fail(_: object) -> None:
    raise io_error()


def io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
