"""The SQLite engine's threads: each kind with its own connections, and the checkpointer.

Reads never wait for writes, and writes seldom for a checkpoint; restarting the WAL is the exception. It may not know
rows, statements or the store contract: work comes in as functions of a connection. Next stop: `engine.py`, which gives
it that work.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import Final, TypeVar

from penstock.model.errors import PenstockError
from penstock.store.sqlite.file import PAGE_BYTES, WAL_BYTES_MOST, Connection, File, primary_code

CHECKPOINT_BYTES: Final = 16 << 20
"""Bytes of WAL since the last checkpoint began that start another one, in the background."""
_COMMIT_PAGES: Final = 8
"""Pages that a write touches besides its rows, to estimate how far the WAL has grown."""

# Errors that say nothing against the connection: once rolled back it is as good as new.
_HARMLESS_CODES: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT)
)

Result = TypeVar("Result")

_log = logging.getLogger("penstock.store.sqlite")


class Threads:
    """Threads of one kind, each with a connection that is made again after an error that leaves it in doubt."""

    def __init__(self, name: str, count: int, file: File) -> None:
        self._file = file
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        # Connections at rest: no more than threads, each used by one of them at a time.
        self._idle: list[Connection] = []

    async def run(self, work: Callable[[Connection], Result]) -> Result:
        return await asyncio.wrap_future(self.start(lambda: self.connected(work)))

    def start(self, work: Callable[[], Result]) -> Future[Result]:
        return self._executor.submit(work)

    def connected(self, work: Callable[[Connection], Result]) -> Result:
        """Do the work with a connection of this kind, on the calling thread."""
        connection = None
        try:
            connection = self._idle.pop() if self._idle else self._file.connect()
            result = work(connection)
        except BaseException as error:
            if connection:
                self._keep_or_close(connection, error)
            known = self._file.misread(error) if isinstance(error, Exception) else error
            if known is error:
                raise
            raise known from error
        self._idle.append(connection)
        return result

    def end(self) -> None:
        """Wait for the work under way, then end the threads."""
        self._executor.shutdown(wait=True)
        self.close_connections()

    def close_connections(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _keep_or_close(self, connection: Connection, error: BaseException) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            error = second
        if isinstance(error, sqlite3.Error) and primary_code(error) not in _HARMLESS_CODES:
            connection.close()
        else:
            self._idle.append(connection)


class Gate:
    """A shared lock for reads, exclusive while the WAL is restarted.

    SQLite asks for the same by polling, and never gets its turn where reads always overlap.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._reads = 0
        self._shut = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._reads += 1
        try:
            yield
        finally:
            with self._changed:
                self._reads -= 1
                self._changed.notify_all()

    @contextmanager
    def shut(self) -> Iterator[None]:
        with self._changed:
            self._shut = True
            while self._reads:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()


class Checkpoints:
    """Checkpoints the WAL before it grows long.

    Passive checkpoints run on a thread of their own, beside the writes. But a WAL that keeps growing while it is copied
    can never be restarted, so once in a while the writer and the readers wait for the little that is left.
    """

    def __init__(self, writer: Threads, file: File, gate: Gate) -> None:
        self._writer = writer
        self._file = file
        self._gate = gate
        self._threads = Threads("penstock-sqlite-checkpoint", 1, file)
        self._since_checkpoint = 0
        self._since_restart = 0
        self._running: Future[None] | None = None

    def written(self, rows_bytes: int) -> None:
        """Called by the writer's thread after each commit, with about the size of its rows."""
        count = rows_bytes + _COMMIT_PAGES * PAGE_BYTES
        self._since_checkpoint += count
        self._since_restart += count
        if self._since_restart > WAL_BYTES_MOST:
            self._since_restart = self._since_checkpoint = 0
            # Behind this commit, not in it: its answer does not wait.
            self._writer.start(self._restart)
        elif self._since_checkpoint > CHECKPOINT_BYTES and (self._running is None or self._running.done()):
            self._since_checkpoint = 0
            self._running = self._threads.start(lambda: self._run(self._threads, self._file.copy_wal))

    def end(self) -> None:
        """Stop, with the WAL copied into the file and truncated. Called by the writer's thread."""
        self._threads.end()
        # A file that could not be prepared may be someone else's, or not be there.
        if self._file.prepared:
            self._run(self._writer, self._file.truncate_wal)
        self._writer.close_connections()

    def _restart(self) -> None:
        if self._running:
            self._running.result()
        with self._gate.shut():
            self._run(self._writer, self._file.restart_wal)

    def _run(self, threads: Threads, work: Callable[[Connection], None]) -> None:
        """A checkpoint that fails costs only space: the WAL keeps everything, and the next one tries again."""
        try:
            threads.connected(work)
        except PenstockError as error:
            _log.warning("checkpoint: %s", error)
