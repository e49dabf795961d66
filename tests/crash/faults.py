"""Ways to break a disk under an open broker: a small file system, a limit on file sizes, a connection that fails."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import pytest

from penstock.store import sqlite

Moment = Literal["before", "within", "after"]
Result = TypeVar("Result")


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
        self._real = sqlite._in_transaction
        monkeypatch.setattr(sqlite, "_in_transaction", self._transaction)

    def fail(self, moment: Moment, count: int = 1) -> None:
        self.moment, self.left = moment, count

    def _transaction(
        self, connection: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], Result]
    ) -> Result:
        if begin != "BEGIN IMMEDIATE" or self.left == 0:
            return self._real(connection, begin, work)
        self.left -= 1
        if self.moment == "before":
            raise io_error()
        if self.moment == "after":
            self._real(connection, begin, work)
            raise io_error()

        def half(connection: sqlite3.Connection) -> Result:
            work(connection)
            raise io_error()

        return self._real(connection, begin, half)


def io_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_IOERR"
    return error
