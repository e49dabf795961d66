"""The tables of an SQLite store as they are at one moment, read and never written, with the segments they point into.

A node may go on meanwhile: the tables are those of one commit, and no segment is deleted while the snapshot is open. It
takes no turn and brings nothing up to date. Next stop: `verify.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from penstock.model.errors import InvalidArgument, NotFound, PenstockError, StoreCorrupt
from penstock.model.rows import BatchHead, BatchRow, CatalogRow, DedupRow, LaneImage, OutboxRow, TraceRow
from penstock.store.sqlite import reads
from penstock.store.sqlite.file import MIGRATIONS, Connection, File, check_version
from penstock.store.sqlite.log.bodies import read_bodies
from penstock.store.sqlite.log.log import LogPosition
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.statements import SQL

BUSY_MS: Final = 5000
_NOTHING_PENDING: Final = reads.Pending([], 0)


class Snapshot:
    """Reads of the contract, on one moment's tables. Made by `taken`."""

    def __init__(self, path: Path, connection: Connection, segments: Segments) -> None:
        self.path = path
        self.connection = connection
        self.segments = segments
        store_id, turn, *mark = connection.execute(SQL.log).fetchone()
        self.store_id: bytes = store_id
        self.turn: int = turn
        self.indexed = LogPosition(*mark)
        """Up to where the tables know the log."""

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        with translated(self.path):
            return reads.load(self.connection, lanes, dedup_most)

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        with translated(self.path):
            found = reads.find_batches(self.connection, _NOTHING_PENDING, lane, start, end, bytes_most)
            # Segments are held: one that is not there was deleted by somebody else.
            return read_bodies(self.segments, found, {one.place.segment for one in found})[0]

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        with translated(self.path):
            return reads.read_heads(self.connection, _NOTHING_PENDING, lane, start, batches_most, bytes_most)

    async def catalog(self) -> list[CatalogRow]:
        with translated(self.path):
            return [CatalogRow(*row) for row in self.connection.execute(SQL.catalog)]

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        with translated(self.path):
            rows = [OutboxRow(*row) for row in self.connection.execute(SQL.outbox, (after, most))]
            return [row for row in rows if slots is None or row.slot in slots]

    async def list_lanes(self, after: int, most: int) -> list[int]:
        with translated(self.path):
            return reads.list_lanes(self.connection, after, most)

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        with translated(self.path):
            return reads.list_dedup(self.connection, lane, after, most, from_offset)

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        with translated(self.path):
            return reads.list_traces(self.connection, after_ms, most)


@contextmanager
def taken(path: Path) -> Iterator[Snapshot]:
    """A snapshot of the store at this path, as long as the context lasts."""
    segments = Segments(Path(f"{path}-log"))
    check_there(path)
    with translated(path), segments.held(), closing(connect(path)) as connection:
        version = check_version(connection, MIGRATIONS)
        if version < len(MIGRATIONS):
            raise InvalidArgument(
                f"{path} has schema version {version}, this Penstock {len(MIGRATIONS)}: start a server on it once, "
                "which brings it up to date"
            )
        connection.execute("BEGIN")
        yield Snapshot(path, connection, segments)


def check_there(path: Path) -> None:
    """Raise unless a store is there: reading must not make one."""
    if not path.is_file():
        raise NotFound(f"there is no store {path}")
    if not Path(f"{path}-log").is_dir():
        raise StoreCorrupt(f"the log {path}-log is missing; a file and its log belong together: restore both")


def connect(path: Path) -> Connection:
    """A connection that only reads."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what SQLite and the file system say as the errors that the contract names."""
    try:
        yield
    except PenstockError:
        raise
    except (sqlite3.Error, OSError, UnicodeDecodeError, TypeError) as error:
        if isinstance(error, UnicodeDecodeError | TypeError):
            raise StoreCorrupt(f"{path}: a row cannot be understood: {error}") from error
        raise File(path, BUSY_MS).translated(error) from error
