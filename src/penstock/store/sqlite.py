"""The SQLite engine: the store contract on one file, for one machine.

One thread writes, a few read, one moves committed pages from the write-ahead log into the file; each thread has
its own connection, so a read never waits for a commit and a commit seldom for the disk's housekeeping. Why the
settings are what they are, with measurements: `docs/decisions/0002-sqlite-settings.md`. The statements live in
`sqlite_schema.py`; nothing here knows what a lease or a due time means. Next stop: back to the node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Condition
from typing import Any, Final, TypeVar

from penstock.errors import Closed, Fenced, InvalidArgument, PenstockError, StoreCorrupt, Unavailable
from penstock.store import sqlite_schema as sql
from penstock.store.contract import (
    BatchHead,
    BatchRow,
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneChange,
    LaneImage,
    LeaseRow,
    OutboxRow,
    WaitingRow,
    slot_of,
)
from penstock.store.memory import check_commit

PAGE_BYTES: Final = 8192
"""Larger pages make big batches cheaper and one-message commits dearer; fixed when the file is made."""
BUSY_MS: Final = 5000
"""How long a commit waits for another process's commit before it is `Unavailable`."""
READERS: Final = 2
CHECKPOINT_BYTES: Final = 16 << 20
"""Log written since the last checkpoint began that starts another one, beside the commits."""
LOG_BYTES_MOST: Final = 64 << 20
"""Log size at which commits wait until it could be started afresh: bounds the file beside the database."""
RESTART_BUSY_MS: Final = 250
"""How long they wait for readers in other processes; then the log grows on until its next try."""
_COMMIT_PAGES: Final = 8
"""Pages that a commit touches besides its bodies, for estimating how far the log has grown."""

Result = TypeVar("Result")
Connection = sqlite3.Connection
Row = tuple[Any, ...]

_log = logging.getLogger(__name__)


class SqliteStore:
    """An open SQLite file. Made by `SqliteStore.open`."""

    def __init__(self, file: _File, readers: int) -> None:
        self._file = file
        self._writer = _Threads("penstock-sqlite-write", 1, file)
        self._readers = _Threads("penstock-sqlite-read", readers, file)
        self._gate = _Gate()
        self._checkpoints = _Checkpoints(self._writer, file, self._gate)
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        readers: int = READERS,
        busy_ms: int = BUSY_MS,
        migrations: Sequence[sql.Migration] = sql.MIGRATIONS,
    ) -> SqliteStore:
        """Open the file, or make it and its folder; bring its schema up to date.

        A second process may open the same file: it takes slots with `acquire`, and the first is `Fenced` from
        then on. More `readers` let more slow reads run at once; each costs a thread and its cache.
        """
        file = _File(path, busy_ms)
        store = cls(file, readers)
        try:
            await store._writer.run(lambda connection: file.prepare(connection, migrations))
        except BaseException:
            await store.close()
            raise
        return store

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        def raise_epochs(connection: Connection) -> dict[int, int]:
            self._file.check_in_place()
            # Read to the end: a statement with RETURNING is not done before that.
            return {slot: connection.execute(sql.RAISE_EPOCH, (slot, owner)).fetchall()[0][0] for slot in set(slots)}

        return await self._write(raise_epochs, 0)

    async def apply(self, commit: Commit) -> None:
        def write(connection: Connection) -> None:
            self._file.check_in_place()
            _check_epochs(connection, commit.epochs)
            _write_commit(connection, commit)

        check_commit(commit)
        await self._write(write, sum(row.size for change in commit.lanes for row in change.batches))

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        return await self._read(lambda connection: _load(connection, lanes, max(dedup_most, 0)))

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        return await self._read(lambda connection: _read_batches(connection, lane, start, end, bytes_most))

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        return await self._read(lambda connection: _read_heads(connection, lane, start, batches_most, bytes_most))

    async def find_time(self, lane: int, time_ms: int) -> int | None:
        return await self._read(lambda connection: _find_time(connection, lane, time_ms))

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        def find(connection: Connection) -> list[DedupRow]:
            rows = (connection.execute(sql.DEDUP, (lane, key)).fetchone() for key in dict.fromkeys(keys))
            return [DedupRow(*row) for row in rows if row]

        return await self._read(find)

    async def catalog(self) -> list[CatalogRow]:
        return await self._read(lambda connection: [CatalogRow(*row) for row in connection.execute(sql.CATALOG)])

    async def outbox(self, after: int, most: int) -> list[OutboxRow]:
        def find(connection: Connection) -> list[OutboxRow]:
            return [OutboxRow(*row) for row in connection.execute(sql.OUTBOX, (after, max(most, 0)))]

        return await self._read(find)

    async def lanes_in_use(self) -> list[int]:
        def find(connection: Connection) -> list[int]:
            rows = chain(connection.execute(sql.LEASED_LANES), connection.execute(sql.WAITING_LANES))
            return sorted({lane for (lane,) in rows})

        return await self._read(find)

    async def close(self) -> None:
        """Finish what is under way, empty the log into the file and end every thread. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        # On the writer's own thread, behind its last commit: the event loop does not wait for the disk.
        await asyncio.wrap_future(self._writer.start(self._finish))
        self._writer.end()

    def _finish(self) -> None:
        self._readers.end()
        self._checkpoints.end()

    async def _write(self, work: Callable[[Connection], Result], body_bytes: int) -> Result:
        def commit(connection: Connection) -> Result:
            result = _in_transaction(connection, "BEGIN IMMEDIATE", work)
            self._checkpoints.written(body_bytes + _COMMIT_PAGES * PAGE_BYTES)
            return result

        self._check_open()
        return await self._writer.run(commit)

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        def answer(connection: Connection) -> Result:
            # One transaction: all of an answer comes from the same commit.
            with self._gate.reading():
                return _in_transaction(connection, "BEGIN", work)

        self._check_open()
        return await self._readers.run(answer)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._file.path} is closed")


# The file and its connections ----------------------------------------------------------------------------


class _File:
    """Where the rows are: how to connect to it, and what its errors mean."""

    def __init__(self, path: str | Path, busy_ms: int) -> None:
        self.path = Path(path).absolute()
        self._busy_ms = busy_ms
        self._identity: tuple[int, int] | None = None

    @property
    def prepared(self) -> bool:
        return self._identity is not None

    def connect(self) -> Connection:
        # Once the file is prepared it must be there: a lost file is an error, never a new and empty one.
        if not self.prepared:
            self._make_folder()
        mode = "rw" if self.prepared else "rwc"
        uri = f"{self.path.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
            for setting in _SETTINGS:
                connection.execute(setting)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def prepare(self, connection: Connection, migrations: Sequence[sql.Migration]) -> None:
        """Make sure that the file is ours, writable and of the newest schema."""
        # Before anything is written: someone else's database is left as it is.
        sql.check_version(connection, migrations)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = NONE")
        self._turn_log_on(connection)
        sql.migrate(connection, migrations)
        # A file that can only be read is found out now, not at the first commit.
        connection.execute(sql.TRY_TO_WRITE)
        self._identity = self._found()

    def _turn_log_on(self, connection: Connection) -> None:
        """SQLite gives up at once where another process is turning it on: the wait is ours to do."""
        deadline = time.monotonic() + self._busy_ms / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def _make_folder(self) -> None:
        if self.path.is_dir():
            raise InvalidArgument(f"{self.path} is a folder; a store is a file")
        missing = [folder for folder in self.path.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)

    def check_in_place(self) -> None:
        """SQLite would go on writing to a file that was moved or deleted, and every commit would be lost."""
        if self._found() != self._identity:
            raise Unavailable(f"{self.path} is not the file that was opened: it was moved, deleted or replaced")

    def copy_log(self, connection: Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def restart_log(self, connection: Connection) -> None:
        self._checkpoint_alone(connection, "PRAGMA wal_checkpoint(RESTART)")

    def empty_log(self, connection: Connection) -> None:
        self._checkpoint_alone(connection, "PRAGMA wal_checkpoint(TRUNCATE)")

    def _checkpoint_alone(self, connection: Connection, statement: str) -> None:
        connection.execute(f"PRAGMA busy_timeout = {RESTART_BUSY_MS}")
        try:
            busy, pages, copied = connection.execute(statement).fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
        if busy:
            _log.warning("%s: another process reads; %d of %d log pages copied", self.path, copied, pages)

    def translated(self, error: BaseException) -> BaseException:
        """The error that the contract names for what SQLite, the file system or Python's binding said."""
        if isinstance(error, StoreCorrupt):
            return StoreCorrupt(f"{self.path}: {error}")
        if isinstance(error, (OverflowError, UnicodeEncodeError, *_CALLERS_MISTAKES)):
            return InvalidArgument(f"{self.path}: a value that SQLite cannot keep: {error}")
        if isinstance(error, sqlite3.Error):
            name = getattr(error, "sqlite_errorname", "")
            kind = StoreCorrupt if _primary_code(error) in _CORRUPT_CODES else Unavailable
            return kind(f"{self.path}: {error} ({name})" if name else f"{self.path}: {error}")
        if isinstance(error, OSError):
            return Unavailable(f"{self.path}: {error.strerror or error}")
        return error

    def _found(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return (0, 0)
        return (status.st_dev, status.st_ino)


_SETTINGS: Final = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS: ask the drive too; elsewhere nothing
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA wal_autocheckpoint = 0",  # `_Checkpoints` does it, off the commit's path
    f"PRAGMA journal_size_limit = {LOG_BYTES_MOST}",
    "PRAGMA cache_size = -8192",
    # Some builds overwrite what is deleted, which writes every trimmed body a second time.
    "PRAGMA secure_delete = OFF",
    "PRAGMA temp_store = MEMORY",
)

_CALLERS_MISTAKES: Final = (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

# `ERROR` is what a missing table or column gives, and no code what undecodable text gives.
_CORRUPT_CODES: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, None))

# Errors that say nothing against the connection: once rolled back it is as good as new.
_HARMLESS_CODES: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT)
)


def _primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _sync_folder(folder: Path) -> None:
    """Make a new folder's name durable: SQLite does this for its files, not for where they are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_transaction(connection: Connection, begin: str, work: Callable[[Connection], Result]) -> Result:
    connection.execute(begin)
    result = work(connection)
    connection.execute("COMMIT")
    return result


# Threads -------------------------------------------------------------------------------------------------


class _Threads:
    """Threads of one kind, each with a connection that is made anew after an error that leaves it in doubt."""

    def __init__(self, name: str, count: int, file: _File) -> None:
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
            known = self._file.translated(error)
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
        if isinstance(error, sqlite3.Error) and _primary_code(error) not in _HARMLESS_CODES:
            connection.close()
        else:
            self._idle.append(connection)


class _Gate:
    """Any number of reads at once, or none while the log starts afresh.

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


class _Checkpoints:
    """Moves the log's pages into the file before it grows long.

    Most of it happens on a thread of its own, while commits go on. But a log that always grows while it is
    copied can never start afresh, so once in a while the writer and the readers wait for the little that is left.
    """

    def __init__(self, writer: _Threads, file: _File, gate: _Gate) -> None:
        self._writer = writer
        self._file = file
        self._gate = gate
        self._threads = _Threads("penstock-sqlite-checkpoint", 1, file)
        self._since_checkpoint = 0
        self._since_restart = 0
        self._running: Future[None] | None = None

    def written(self, count: int) -> None:
        """Called by the writer's thread after each commit, with about as many bytes as the log grew by."""
        self._since_checkpoint += count
        self._since_restart += count
        if self._since_restart > LOG_BYTES_MOST:
            self._since_restart = self._since_checkpoint = 0
            # Behind this commit, not in it: its answer does not wait.
            self._writer.start(self._restart)
        elif self._since_checkpoint > CHECKPOINT_BYTES and (self._running is None or self._running.done()):
            self._since_checkpoint = 0
            self._running = self._threads.start(lambda: self._run(self._threads, self._file.copy_log))

    def end(self) -> None:
        """Stop, with all of the log in the file and the log empty. Called by the writer's thread."""
        self._threads.end()
        # A file that could not be prepared may be someone else's, or not be there.
        if self._file.prepared:
            self._run(self._writer, self._file.empty_log)
        self._writer.close_connections()

    def _restart(self) -> None:
        if self._running:
            self._running.result()
        with self._gate.shut():
            self._run(self._writer, self._file.restart_log)

    def _run(self, threads: _Threads, work: Callable[[Connection], None]) -> None:
        """A checkpoint that fails costs nothing but space: the commits are safe in the log, and it is tried again."""
        try:
            threads.connected(work)
        except PenstockError as error:
            _log.warning("checkpoint: %s", error)


# Writing -------------------------------------------------------------------------------------------------


def _check_epochs(connection: Connection, epochs: dict[int, int]) -> None:
    for slot, epoch in epochs.items():
        held, owner = connection.execute(sql.SLOT, (slot,)).fetchone() or (None, "nobody")
        if held != epoch:
            raise Fenced(f"slot {slot} is at epoch {held} of {owner}, not at epoch {epoch}")


def _write_commit(connection: Connection, commit: Commit) -> None:
    """Every row of the commit. One statement a kind of row, whatever the number of lanes."""
    gone = [(lane,) for lane in commit.lanes_deleted]
    for statement in sql.LANE_DELETES:
        _run_many(connection, statement, gone)
    _delete_rows(connection, commit.lanes)
    _put_rows(connection, commit.lanes)
    _run_many(connection, sql.TRIM, [(lane.lane, lane.trim_to) for lane in commit.lanes if lane.trim_to is not None])
    _run_many(connection, sql.DELETE_CATALOG, commit.catalog_deleted)
    _run_many(connection, sql.PUT_CATALOG, [_catalog_values(row) for row in commit.catalog])
    _run_many(connection, sql.DELETE_OUTBOX, [(number,) for number in commit.outbox_deleted])
    _run_many(connection, sql.PUT_OUTBOX, [(row.id, row.lane, row.offset, row.document) for row in commit.outbox])


def _delete_rows(connection: Connection, lanes: list[LaneChange]) -> None:
    groups = [(lane.lane, group) for lane in lanes for group in lane.groups_deleted]
    for statement in sql.GROUP_DELETES:
        _run_many(connection, statement, groups)
    _run_many(connection, sql.DELETE_LEASE, [(lane.lane, *key) for lane in lanes for key in lane.leases_deleted])
    _run_many(connection, sql.DELETE_WAITING, [(lane.lane, *key) for lane in lanes for key in lane.waiting_deleted])
    _run_many(connection, sql.DELETE_DEAD, [(lane.lane, *key) for lane in lanes for key in lane.dead_deleted])
    expired = [(lane.lane, lane.dedup_expired_ms) for lane in lanes if lane.dedup_expired_ms is not None]
    _run_many(connection, sql.DELETE_DEDUP, expired)


def _put_rows(connection: Connection, lanes: list[LaneChange]) -> None:
    cursors = [(lane.lane, slot_of(lane.lane), lane.first, lane.end, lane.bytes_end) for lane in lanes]
    _run_many(connection, sql.PUT_LANE, cursors)
    _run_many(connection, sql.PUT_GROUP, [_group_values(lane.lane, row) for lane in lanes for row in lane.groups])
    _run_many(connection, sql.PUT_LEASE, [_lease_values(lane.lane, row) for lane in lanes for row in lane.leases])
    _run_many(connection, sql.PUT_WAITING, [_waiting_values(lane.lane, row) for lane in lanes for row in lane.waiting])
    _run_many(connection, sql.PUT_DEAD, [_dead_values(lane.lane, row) for lane in lanes for row in lane.dead])
    _run_many(connection, sql.PUT_DEDUP, [_dedup_values(lane.lane, row) for lane in lanes for row in lane.dedup])
    _run_many(connection, sql.PUT_BATCH, [_batch_values(lane.lane, row) for lane in lanes for row in lane.batches])


def _run_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        connection.executemany(statement, rows)


def _batch_values(lane: int, row: BatchRow) -> Row:
    return (lane, row.base, row.count, row.published_ms, row.bytes_end, row.size, row.meta, row.body)


def _group_values(lane: int, row: GroupRow) -> Row:
    return (lane, row.group, row.next, row.committed)


def _lease_values(lane: int, row: LeaseRow) -> Row:
    return (lane, row.group, row.lease, row.deadline_ms, row.consumer, row.entries)


def _waiting_values(lane: int, row: WaitingRow) -> Row:
    return (lane, row.group, row.chunk, row.entries)


def _dead_values(lane: int, row: DeadRow) -> Row:
    times = (row.attempts, row.reason, row.error, row.consumer, row.dead_ms)
    return (lane, row.group, row.start, row.end, *times)


def _dedup_values(lane: int, row: DedupRow) -> Row:
    return (lane, row.key, row.offset, row.expires_ms)


def _catalog_values(row: CatalogRow) -> Row:
    return (row.kind, row.id, row.parent, row.namespace, row.name, row.document)


# Reading -------------------------------------------------------------------------------------------------


def _load(connection: Connection, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
    images = {lane: LaneImage(lane) for lane in lanes}
    wanted = (json.dumps(list(images)),)
    for lane, first, end, bytes_end, published_ms in connection.execute(sql.LANES, wanted):
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for lane, *values in connection.execute(sql.GROUPS, wanted):
        images[lane].groups.append(GroupRow(*values))
    for lane, *values in connection.execute(sql.LEASES, wanted):
        images[lane].leases.append(LeaseRow(*values))
    for lane, *values in connection.execute(sql.WAITING, wanted):
        images[lane].waiting.append(WaitingRow(*values))
    for lane, *values in connection.execute(sql.DEAD, wanted):
        images[lane].dead.append(DeadRow(*values))
    for (lane,) in connection.execute(sql.DEDUP_LANES, wanted).fetchall():
        _load_dedup(connection, images[lane], dedup_most)
    return [images[lane] for lane in lanes]


def _load_dedup(connection: Connection, image: LaneImage, most: int) -> None:
    # One more than asked for, to know whether there are more.
    rows = connection.execute(sql.DEDUP_NEWEST, (image.lane, most + 1)).fetchall()
    image.dedup_complete = len(rows) <= most
    image.dedup = [DedupRow(*row) for row in reversed(rows[:most])]


def _read_batches(connection: Connection, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
    """Sizes first: no body is read only to find that it does not fit."""
    if start >= end:
        return []
    bases: list[int] = []
    total = 0
    for base, size in connection.execute(sql.SIZES, (lane, _base_at(connection, lane, start), start, end)):
        total += size
        if bases and total > bytes_most:
            break
        bases.append(base)
    if not bases:
        return []
    rows = connection.execute(sql.BATCHES, (lane, bases[0], bases[-1]))
    return [BatchRow(*row) for row in rows]


def _read_heads(connection: Connection, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
    found: list[BatchHead] = []
    total = 0
    bounds = (lane, _base_at(connection, lane, start), start, max(batches_most, 1))
    for head in _as_heads(connection.execute(sql.HEADS, bounds)):
        total += len(head.meta)
        if found and total > bytes_most:
            break
        found.append(head)
    return found


def _as_heads(rows: Iterable[Row]) -> Iterable[BatchHead]:
    return (BatchHead(*row) for row in rows)


def _base_at(connection: Connection, lane: int, offset: int) -> int:
    """Where the batch that may hold an offset begins; the offset itself where no batch begins at or before it."""
    row = connection.execute(sql.BATCH_AT, (lane, offset)).fetchone()
    return int(row[0]) if row else offset


def _find_time(connection: Connection, lane: int, time_ms: int) -> int | None:
    """Publish times never fall as offsets rise: halve the offsets, with one look at the batch in the middle each."""
    first = connection.execute(sql.FIRST_BATCH, (lane,)).fetchone()
    last = connection.execute(sql.BATCH_AT, (lane, _OFFSET_MOST)).fetchone()
    if first is None or last[1] < time_ms:
        return None
    low, high = first[0], last[0]
    while low < high:
        middle = (low + high) // 2
        base, published_ms = connection.execute(sql.BATCH_AT, (lane, middle)).fetchone()
        if published_ms < time_ms:
            low = middle + 1
        else:
            high = base
    return int(high)


_OFFSET_MOST: Final = (1 << 63) - 1
