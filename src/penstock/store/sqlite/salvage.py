"""What can be read of a damaged SQLite store: its tables as far as their pages are whole, and what its log says.

The damaged store is not touched: rows go into a new file, whose batches point into the old log. Every record of the log
that can still be read is applied to them again, from the first of the newest unbroken row of segments on. That is safe
where the tables are newer: for each row the last that the log says of it holds. So a page that is lost costs only rows
that have not changed since that first record. It may not know what rows mean. Next stop: `maintenance/repair.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.model.errors import NotFound, StoreCorrupt
from penstock.store.damage import Damage
from penstock.store.sql.queries import fill, load_queries, quoted
from penstock.store.sql.tables import OF_LANES, OF_NO_LANE
from penstock.store.sqlite.file import MIGRATIONS, Connection, in_transaction, make_private, migrate
from penstock.store.sqlite.log.log import Entry, LogPosition
from penstock.store.sqlite.log.scan import Scanned, scan
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Segment, Segments, store_of
from penstock.store.sqlite.overlay import Overlay
from penstock.store.sqlite.snapshot import connect
from penstock.store.sqlite.statements import SQL
from penstock.store.sqlite.writes import write_overlay

TEMPLATES: Final = load_queries(__package__)
ROWS_AT_ONCE: Final = 8192
_TABLES: Final = ("lanes", "batches", "counters", *(table.name for table in (*OF_LANES, *OF_NO_LANE)))


class Salvaged(NamedTuple):
    """The new file, and what could not be read."""

    path: Path
    segments: Segments
    store_id: bytes
    damage: list[Damage]
    records: int
    """Records of the log that were applied again."""


def salvage(source: Path, work: Path) -> Salvaged:
    """Read what can be read into a new file in the folder `work`."""
    segments = Segments(Path(f"{source}-log"))
    if not source.exists() and not segments.folder.is_dir():
        raise NotFound(f"there is no store {source}")
    path = work / "salvaged.db"
    make_private(path)
    damage: list[Damage] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS)
        store_id = _take_tables(source, connection, damage) or _id_in_log(segments)
        if store_id is None:
            raise StoreCorrupt(f"nothing of {source} can be read, neither its file nor its log; restore a backup")
        connection.execute(SQL.put_store_id, (store_id,))
        replay = _Replay(connection, segments, store_id, damage)
        replay.run()
        connection.execute(SQL.drop_trimmed)
    return Salvaged(path, segments, store_id, damage, replay.records)


# The tables ----------------------------------------------------------------------------------------------


def _take_tables(source: Path, target: Connection, damage: list[Damage]) -> bytes | None:
    """Copy the rows that can be read; the id of the store, if it can be."""
    try:
        with closing(connect(source)) as old:
            for table in _TABLES:
                _take_table(old, target, table, damage, str(source))
            return bytes(old.execute(SQL.log).fetchone()[0])
    except (sqlite3.Error, ValueError, TypeError) as error:
        damage.append(Damage("file", f"the tables cannot be read, or not to their end: {error}", file=str(source)))
        return None


def _take_table(old: Connection, target: Connection, table: str, damage: list[Damage], file: str) -> None:
    try:
        names = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
    except sqlite3.Error as error:
        damage.append(Damage("file", f"the table {table}: {error}", file=file))
        return
    kept = [row[1] for row in target.execute(f"PRAGMA table_info({table})") if row[1] in names]
    columns = ", ".join(map(quoted, kept))
    put = fill(TEMPLATES.put_row, table=table, columns=columns, places=", ".join("?" * len(kept)))
    key = _KEYS.get(table, "rowid")
    # From both ends: what lies behind a damaged page is reached from the other one.
    for direction in ("", " DESC"):
        order = ", ".join(f"{column}{direction}" for column in key.split(", "))
        select = fill(TEMPLATES.salvage_rows, columns=columns, table=table, order=order)
        failed = _copy_rows(old, target, select, put)
        if failed is None:
            return
        if not direction:
            damage.append(Damage("file", f"rows of the table {table} cannot be read: {failed}", file=file))


_KEYS: Final = {
    "counters": "name",
    "catalog": "id, kind",
    "traces": "namespace, trace_id, at_ms, id",
    "groups": "lane, group_id",
    "leases": "lane, group_id, lease_id",
    "waiting": "lane, group_id, chunk",
    "dead": "lane, group_id, start",
    "dedup": "lane, key",
}
"""The keys of the tables that have no rowid."""


def _copy_rows(old: Connection, target: Connection, select: str, put: str) -> Exception | None:
    """Copy rows up to the first that cannot be read; why, if there is one."""
    rows: list[Sequence[Any]] = []
    failed: Exception | None = None
    try:
        for row in old.execute(select):
            rows.append(row)
            if len(rows) >= ROWS_AT_ONCE:
                _put(target, put, rows)
                rows = []
    except (sqlite3.Error, UnicodeDecodeError) as error:
        failed = error
    _put(target, put, rows)
    return failed


def _put(target: Connection, statement: str, rows: list[Sequence[Any]]) -> None:
    def put(connection: Connection) -> None:
        for row in rows:
            try:
                connection.execute(statement, row)
            except sqlite3.IntegrityError:
                continue  # a value that its column cannot hold: the row was damaged

    in_transaction(target, "BEGIN", put)


# The log -------------------------------------------------------------------------------------------------


def _id_in_log(segments: Segments) -> bytes | None:
    """The store's id by the heads of its segments."""
    for number in segments.numbers():
        with segments.path(number).open("rb") as file:
            found = store_of(file.read(SEGMENT_HEAD_BYTES))
        if found is not None:
            return found
    return None


class _Replay:
    """Applies records of the log to the tables, in order."""

    def __init__(self, connection: Connection, segments: Segments, store_id: bytes, damage: list[Damage]) -> None:
        self._connection = connection
        self._segments = segments
        self._store_id = store_id
        self._damage = damage
        self._overlay = Overlay()
        self.records = 0

    def run(self) -> None:
        for segment, following in self._opened(self._unbroken()):
            with closing(segment):
                for scanned in self._scanned(segment, following):
                    self._fold(scanned, segment)
        self._write()

    def _unbroken(self) -> list[int]:
        """The numbers of the newest segments, back to the first that is missing."""
        numbers = self._segments.numbers()
        start = len(numbers)
        while start and (start == len(numbers) or numbers[start - 1] + 1 == numbers[start]):
            start -= 1
        return numbers[start:]

    def _opened(self, numbers: list[int]) -> Iterator[tuple[Segment, int | None]]:
        """Each segment that can be read, and the first record of the next one."""
        waiting: Segment | None = None
        for number in numbers:
            segment = self._open(number)
            if segment is None:
                continue
            if waiting is not None:
                yield waiting, segment.first_record
            waiting = segment
        if waiting is not None:
            yield waiting, None

    def _open(self, number: int) -> Segment | None:
        path = self._segments.path(number)
        try:
            segment = self._segments.open(number, self._store_id, only_read=True)
        except (StoreCorrupt, OSError) as error:
            self._damage.append(Damage("log", str(error), file=str(path)))
            return None
        if segment is None and path.stat().st_size:
            self._damage.append(Damage("log", "the head of the log file is damaged", file=str(path)))
        if segment is not None:
            segment.reads_past_faults = True
        return segment

    def _scanned(self, segment: Segment, following: int | None) -> Iterator[Scanned]:
        record = segment.first_record
        for scanned in scan(segment, following):
            record = scanned.record + 1
            if scanned.commit is None:
                problem = f"record {scanned.record} at byte {scanned.position} cannot be read"
                self._damage.append(Damage("log", problem, file=str(segment.path)))
            else:
                yield scanned
        if following is not None and record < following:
            problem = f"records {record} to {following - 1} are damaged or missing"
            self._damage.append(Damage("log", problem, file=str(segment.path)))

    def _fold(self, scanned: Scanned, segment: Segment) -> None:
        assert scanned.found is not None
        assert scanned.commit is not None
        end = LogPosition(segment.number, scanned.end, scanned.record + 1, scanned.position)
        self._overlay.fold(Entry(scanned.commit, segment.number, scanned.found.bodies_at, len(scanned.found.rows), end))
        self.records += 1
        if self._overlay.rows >= ROWS_AT_ONCE:
            self._write()

    def _write(self) -> None:
        overlay, self._overlay = self._overlay, Overlay()
        if overlay:
            in_transaction(self._connection, "BEGIN", lambda connection: write_overlay(connection, overlay))
