"""The SQLite engine's file: making, connecting, preparing and checkpointing it, and what its errors mean.

Everything here runs on whichever thread calls it and may wait for the disk. It may not know asyncio, threads, commits
or rows. A file's version is its `user_version`; a new file runs the same migrations as an old one, so there is one way
to each schema, and `docs/schema/sqlite.sql` shows what they add up to. Why the settings are what they are, with
measurements: `docs/decisions/0002-sqlite-settings.md`. Next stop: `threads.py`, which owns the connections.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from penstock.model.errors import InvalidArgument, PenstockError, StoreCorrupt, Unavailable
from penstock.store.folders import make_folder
from penstock.store.sql.queries import Migration, load_migrations
from penstock.store.sqlite.statements import SQL

APPLICATION_ID: Final = 0x504E5354
"""`PNST` in the file's header: tells a Penstock file from someone else's SQLite database."""
MIGRATIONS: Final = load_migrations(__package__)
PAGE_BYTES: Final = 8192
"""Larger pages make big batches cheaper and one-message commits dearer; fixed when the file is made."""
WAL_BYTES_MOST: Final = 64 << 20
"""WAL size at which writers wait until it could be restarted: bounds the file beside the database."""
RESTART_BUSY_MS: Final = 250
"""How long they wait for readers in other processes; then the WAL grows until the next try."""
WAY_OUT: Final = "restore a backup, or save what can be read with `penstock store repair`"

Connection = sqlite3.Connection
Result = TypeVar("Result")

_log = logging.getLogger("penstock.store.sqlite")


def make_private(path: Path) -> None:
    """Make a file, if there is none, that its owner alone may read: SQLite's own files beside it are like it."""
    # One that is there is not opened: closing it would end SQLite's locks. What cannot be made, SQLite tells of.
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class File:
    """Where the rows are: how to connect to it, and what its errors mean."""

    def __init__(self, path: str | Path, busy_ms: int) -> None:
        self.path = Path(path).absolute()
        self._name = str(self.path)  # looked at with every commit
        self._busy_ms = busy_ms
        self._identity: tuple[int, int] | None = None

    @property
    def prepared(self) -> bool:
        return self._identity is not None

    def connect(self) -> Connection:
        # Once the file is prepared it must be there: a lost file is an error, never a new and empty one.
        if not self.prepared:
            if self.path.is_dir():
                raise InvalidArgument(f"{self.path} is a folder; a store is a file")
            make_folder(self.path.parent)
            make_private(self.path)
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

    def prepare(self, connection: Connection, migrations: Sequence[Migration]) -> None:
        """Make sure that the file is ours, writable and of the newest schema."""
        # Before anything is written: someone else's database is left as it is.
        check_version(connection, migrations)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = NONE")
        self._enable_wal(connection)
        migrate(connection, migrations)
        # A file that can only be read is found out now, not at the first commit.
        connection.execute(SQL.try_to_write)
        self._identity = self._found()

    def _enable_wal(self, connection: Connection) -> None:
        """SQLite gives up at once while another process switches to WAL mode: wait here."""
        deadline = time.monotonic() + self._busy_ms / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def check_in_place(self) -> None:
        """SQLite would go on writing to a file that was moved or deleted, and every commit would be lost."""
        if self._found() != self._identity:
            raise Unavailable(f"{self.path} is not the file that was opened: it was moved, deleted or replaced")

    def copy_wal(self, connection: Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def restart_wal(self, connection: Connection) -> None:
        self._checkpoint_alone(connection, "PRAGMA wal_checkpoint(RESTART)")

    def truncate_wal(self, connection: Connection) -> None:
        self._checkpoint_alone(connection, "PRAGMA wal_checkpoint(TRUNCATE)")

    def _checkpoint_alone(self, connection: Connection, statement: str) -> None:
        connection.execute(f"PRAGMA busy_timeout = {RESTART_BUSY_MS}")
        try:
            busy, pages, copied = connection.execute(statement).fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
        if busy:
            _log.warning("%s: another process reads; %d of %d log pages copied", self.path, copied, pages)

    def translated(self, error: Exception) -> Exception:
        """The error that the contract names for what SQLite, the file system or Python's binding said."""
        if isinstance(error, StoreCorrupt) and str(self.path) not in str(error):
            return StoreCorrupt(f"{self.path}: {error}")
        if isinstance(error, (OverflowError, UnicodeEncodeError, *_CALLERS_MISTAKES)):
            return InvalidArgument(f"{self.path}: a value that SQLite cannot keep: {error}")
        if isinstance(error, sqlite3.Error):
            name = getattr(error, "sqlite_errorname", "")
            text = f"{self.path}: {error} ({name})" if name else f"{self.path}: {error}"
            is_corrupt = primary_code(error) in _CORRUPT_CODES or _code(error) in _UNREADABLE_CODES
            return StoreCorrupt(f"{text}; {WAY_OUT}") if is_corrupt else Unavailable(text)
        if isinstance(error, OSError):
            return Unavailable(f"{self.path}: {error.strerror or error}")
        return error

    def misread(self, error: Exception) -> Exception:
        """The same for what was raised while rows were read: a damaged page gives values that no row can have."""
        known = self.translated(error)
        if isinstance(known, PenstockError):
            return known
        if isinstance(error, (TypeError, ValueError, LookupError, AttributeError)):
            return StoreCorrupt(f"{self.path}: a row cannot be understood ({error!r}); {WAY_OUT}")
        return known

    def _found(self) -> tuple[int, int]:
        try:
            status = os.stat(self._name)  # noqa: PTH116
        except FileNotFoundError:
            return (0, 0)
        return (status.st_dev, status.st_ino)


_SETTINGS: Final = (
    # What is lost of the index is in the log still; `durably` is for what is not.
    "PRAGMA synchronous = NORMAL",
    "PRAGMA fullfsync = ON",  # macOS: ask the drive too; elsewhere nothing
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA wal_autocheckpoint = 0",  # `Checkpoints` does it, off the commit's path
    f"PRAGMA journal_size_limit = {WAL_BYTES_MOST}",
    "PRAGMA cache_size = -8192",
    # Some builds overwrite what is deleted, which writes every trimmed body a second time.
    "PRAGMA secure_delete = OFF",
    "PRAGMA temp_store = MEMORY",
)

_CALLERS_MISTAKES: Final = (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

# `ERROR` is what a missing table or column gives, and no code what undecodable text gives.
_CORRUPT_CODES: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, None))

# The disk does not give a page back: for whoever needs it that is as good as a damaged one. What cannot be written is
# `Unavailable`.
_UNREADABLE_CODES: Final = frozenset(
    (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_CORRUPTFS, sqlite3.SQLITE_IOERR_DATA)
)


def migrate(connection: Connection, migrations: Sequence[Migration]) -> None:
    """Bring the file to the newest schema, one transaction a version; refuse what Penstock cannot have written."""
    while check_version(connection, migrations) < len(migrations):
        connection.execute("BEGIN IMMEDIATE")
        # Asked again under the write lock: another process may have opened the same new file.
        version = check_version(connection, migrations)
        if version < len(migrations):
            for statement in migrations[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")


def check_version(connection: Connection, migrations: Sequence[Migration]) -> int:
    """The file's version; an error where it is not Penstock's or is newer than this Penstock."""
    version, application, tables = connection.execute(SQL.file_version).fetchone()
    if application != APPLICATION_ID and (version or tables):
        raise StoreCorrupt("it is an SQLite database that Penstock did not make; name another file")
    if version > len(migrations):
        raise StoreCorrupt(
            f"it has schema version {version} and this Penstock knows versions up to {len(migrations)}; "
            f"open it with the newer Penstock that wrote it"
        )
    return int(version)


def in_transaction(connection: Connection, begin: str, work: Callable[[Connection], Result]) -> Result:
    """Run the work in one transaction."""
    connection.execute(begin)
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    return result


def durably(connection: Connection, work: Callable[[Connection], Result]) -> Result:
    """Run the work in one transaction and sync it, with all that was written before."""
    connection.execute("PRAGMA synchronous = FULL")
    try:
        return in_transaction(connection, "BEGIN IMMEDIATE", work)
    finally:
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA synchronous = NORMAL")


def primary_code(error: sqlite3.Error) -> int | None:
    code = _code(error)
    return None if code is None else code & 0xFF


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)
