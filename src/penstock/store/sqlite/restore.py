"""A store made from a backup: as the backup was, or as the store was at a moment, by the log that goes on behind it.

The tables of a backup know the log up to a position. Every record behind it that was committed by the moment wanted is
put beside them, and the log is cut there; the rest is what happens at every start: the tables are brought up to date.
Records come from later backups and from `FOLDER/log` (`shipping.py`). It may not know what rows mean. Next stop:
`maintenance/backup.py`, which says what an operator is told.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import time_ns
from typing import Final, NamedTuple

from penstock.model.errors import AlreadyExists, NotFound, PenstockError, StoreCorrupt
from penstock.store.folders import make_folder, sync_folder
from penstock.store.sqlite.backup import (
    LOG,
    Manifest,
    Tables,
    Told,
    backups,
    chosen,
    copy_file,
    sync_file,
    tables_of,
)
from penstock.store.sqlite.log.records import parse_rows
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Segment, Segments
from penstock.store.sqlite.shipping import Shipped, read_shipped
from penstock.store.sqlite.snapshot import translated
from penstock.store.sqlite.statements import SQL

INCARNATIONS_SKIPPED: Final = 1_000
"""Of a restored store: what processes after the backup gave out (leases, for example) is not given out again."""
IDS_SKIPPED: Final = 1 << 20
NEWEST: Final = 1 << 63
"""In place of a moment: everything that there is."""


class Source(NamedTuple):
    """A copy of a segment, or of its beginning."""

    number: int
    path: Path
    sha256: str | None
    """Of the whole file, where it was noted; otherwise its records' checksums must do."""


class Step(NamedTuple):
    """A commit of the log."""

    number: int
    end: int
    time_ms: int


class Plan(NamedTuple):
    """What becomes a store, and which moment of the old one it will be."""

    manifest: Manifest
    sources: list[Source]
    cut_at: int
    """Where the last of the sources ends."""
    restored_ms: int
    """When the last commit that is in it was made."""
    commits: int
    """Commits that the tables of the backup do not know yet."""
    next_ms: int | None
    """When the first commit that is left out was made; None where none is."""
    left_out: int
    """Commits after the moment, as far as they are known."""
    last_ms: int
    """When the last of them was made; otherwise as `restored_ms`."""
    incarnation: int
    ids: int
    """The highest numbers that are known to have been given out."""


# Planning ------------------------------------------------------------------------------------------------


def plan(folder: Path, name: str | None = None, at_ms: int | None = None) -> Plan:
    """What to restore: a backup by its name, or the store as it was at a moment, or the newest that there is."""
    if name is not None and at_ms is None:
        manifest = chosen(folder, name)
        return _Planning(folder, manifest, [manifest], None).run(NEWEST)
    wanted = NEWEST if at_ms is None else at_ms
    base = _base(folder, name, wanted)
    line = tables_of(folder, base).line
    later = [one for one in backups(folder) if one.made_ms >= base.made_ms and tables_of(folder, one).line == line]
    return _Planning(folder, base, later, read_shipped(folder, line)).run(wanted)


def _base(folder: Path, name: str | None, at_ms: int) -> Manifest:
    """The newest backup whose tables know nothing that was committed after the moment."""
    time_ms = 0
    newest = chosen(folder, name)
    for one in reversed(backups(folder) if name is None else [newest]):
        time_ms = time_of(folder, one)
        if name is None:
            # A store that was restored has commits of the one before it: it is not what was there then.
            time_ms = max(time_ms, tables_of(folder, one).line // 1000)
        if time_ms <= at_ms:
            return one
    raise NotFound(f"the oldest backup in {folder} that can be used knows the store of {text_of(time_ms)} and later")


def time_of(folder: Path, manifest: Manifest) -> int:
    """When the last commit was made that the tables of a backup know."""
    tables = tables_of(folder, manifest)
    place = tables.position
    if not place.last_position:
        return 0
    for segment in manifest.segments:
        if segment.number == place.segment:
            source = Source(place.segment, folder / segment.file.path, None)
            with closing(_opened(source, tables.store_id)) as opened:
                found = opened.record_at(place.last_position, bodies=False)
                if found is not None:
                    return parse_rows(found.rows).time_ms or manifest.made_ms
    raise StoreCorrupt(f"the backup {manifest.name} lacks the log that its tables know; use another")


def until_ms(folder: Path, manifest: Manifest) -> int:
    """The last moment that the log behind a backup goes to, without a look into it."""
    tables = tables_of(folder, manifest)
    shipped = read_shipped(folder, tables.line)
    copied = Segments(folder / LOG / str(tables.line)).numbers()
    there = {*copied, *(one.number for made in backups(folder) for one in made.segments)}
    if shipped is None or not there.issuperset(range(tables.position.segment or 1, max(copied, default=0) + 1)):
        return manifest.made_ms
    return max(shipped.until_ms, manifest.made_ms)


class _Planning:
    """One way through the copies of a log."""

    def __init__(self, folder: Path, base: Manifest, later: list[Manifest], shipped: Shipped | None) -> None:
        self._folder = folder
        self._base = base
        self._tables = tables = tables_of(folder, base)
        self._shipped = shipped
        self._known = [tables_of(folder, one) for one in later]
        self._copies: dict[int, list[Source]] = {}
        for one in later:
            for copied in one.segments:
                source = Source(copied.number, folder / copied.file.path, copied.file.sha256)
                self._copies.setdefault(copied.number, []).append(source)
        if shipped is not None:
            for path in (folder / LOG / str(tables.line)).glob("*.log"):
                self._copies.setdefault(int(path.stem), []).append(Source(int(path.stem), path, None))
        self._until_ms = max([one.made_ms for one in later] + ([shipped.until_ms] if shipped else []))
        self._used: list[Source] = []
        self._record = tables.position.record
        """The next one that is looked for."""

    def run(self, at_ms: int) -> Plan:
        start_ms = time_of(self._folder, self._base)
        last = Step(self._tables.position.segment, self._tables.position.position, start_ms)
        commits = left_out = 0
        next_ms: int | None = None
        last_ms = start_ms
        broken: PenstockError | None = None
        try:
            for step in self._steps(start_ms):
                if next_ms is None and step.time_ms > at_ms:
                    next_ms = step.time_ms
                if next_ms is None:
                    last, commits = step, commits + 1
                else:
                    left_out += 1
                last_ms = step.time_ms
        except PenstockError as error:
            broken = error
        if broken is None and self._shipped is not None and self._record < self._shipped.record:
            broken = StoreCorrupt(f"record {self._record} of the log is damaged or missing")
        if next_ms is None and broken is not None:
            raise StoreCorrupt(f"{broken}; what {self._folder} has goes up to {text_of(last.time_ms)}")
        if next_ms is None and self._until_ms < at_ms < NEWEST:
            raise NotFound(
                f"{self._folder} knows the store up to {text_of(self._until_ms)}; name an earlier time, or none "
                "for the newest"
            )
        known: list[Tables | Shipped] = [*self._known, *([self._shipped] if self._shipped else [])]
        return Plan(
            self._base,
            self._sources(last.number),
            last.end,
            last.time_ms,
            commits,
            next_ms,
            left_out,
            last_ms,
            max(one.incarnation for one in known),
            max(one.ids for one in known),
        )

    def _sources(self, last: int) -> list[Source]:
        """What the tables point into, and what they do not know yet."""
        first = self._tables.position.segment
        older = [
            Source(one.number, self._folder / one.file.path, one.file.sha256)
            for one in self._base.segments
            if one.number < first
        ]
        return [*older, *(one for one in self._used if one.number <= last)]

    def _steps(self, time_ms: int) -> Iterator[Step]:
        """Every commit that the tables do not know, in order; raises where the log breaks off before its last copy."""
        number, position, *_ = self._tables.position
        if not number:
            number, position = min(self._copies, default=0), SEGMENT_HEAD_BYTES
        while number in self._copies:
            following = self._first_record(number + 1)
            with closing(self._use(number)) as segment:
                for found in segment.records(position, self._record):
                    if following is not None and found.head.number >= following:
                        break
                    time_ms = parse_rows(found.rows).time_ms or time_ms
                    self._record = found.head.number + 1
                    yield Step(number, found.end, time_ms)
            if following is not None and self._record != following:
                raise StoreCorrupt(f"record {self._record} of the log is damaged or missing in {segment.path}")
            number, position = number + 1, SEGMENT_HEAD_BYTES
        if any(one > number for one in self._copies):
            raise StoreCorrupt(f"segment {number} of the log is missing")

    def _use(self, number: int) -> Segment:
        """The copy of a segment that goes furthest."""
        copies = self._copies[number]
        if len(copies) > 1:
            copies = sorted(copies, key=self._last_record, reverse=True)
        segment = _opened(copies[0], self._tables.store_id)
        self._used.append(copies[0])
        return segment

    def _last_record(self, source: Source) -> int:
        try:
            with closing(_opened(source, self._tables.store_id)) as segment:
                found = [one.head.number for one in segment.records(SEGMENT_HEAD_BYTES, segment.first_record)]
        except StoreCorrupt:
            return -1
        return found[-1] if found else 0

    def _first_record(self, number: int) -> int | None:
        for source in self._copies.get(number, ()):
            with suppress(StoreCorrupt), closing(_opened(source, self._tables.store_id)) as segment:
                return segment.first_record
        return None


def _opened(source: Source, store_id: bytes) -> Segment:
    try:
        segment = Segments.open_at(source.path, source.number, store_id, only_read=True)
    except FileNotFoundError:
        segment = None
    if segment is None:
        raise StoreCorrupt(f"{source.path} is missing, or its head is damaged")
    return segment


def text_of(time_ms: int) -> str:
    """A moment as people write it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


# Restoring -----------------------------------------------------------------------------------------------


def restore(planned: Plan, folder: Path, target: Path, told: Told = lambda *_: None) -> None:
    """Make a store where there is none. Every file's checksum is compared while it is copied."""
    log = Segments(Path(f"{target}-log"))
    if target.exists() or log.folder.exists():
        raise AlreadyExists(f"{target} or its log exists; name a new file")
    with translated(target):
        make_folder(log.folder)
        for done, source in enumerate(planned.sources):
            told("segments of the log", done, len(planned.sources))
            _copy_checked(source.path, source.sha256, log.path(source.number))
        if planned.sources:
            _cut(log.path(planned.sources[-1].number), planned)
        partial = target.with_name(f"{target.name}.restoring")
        partial.unlink(missing_ok=True)
        file = planned.manifest.file
        _copy_checked(folder / file.path, file.sha256, partial)
        _put_numbers(partial, planned)
        sync_folder(log.folder)
        partial.rename(target)
        sync_folder(target.parent)


def _copy_checked(source: Path, sha256: str | None, target: Path) -> None:
    if not source.exists():
        raise StoreCorrupt(f"{source} is missing: the backup is not whole")
    copied = copy_file(source, target)
    if sha256 is not None and copied != sha256:
        raise StoreCorrupt(f"{source} is damaged: its checksum is not the one that the backup was made with")


def _cut(path: Path, planned: Plan) -> None:
    """End the log with the last commit, and set aside the room that its last segment had."""
    store_id = bytes.fromhex(planned.manifest.store_id)
    with closing(_opened(Source(planned.sources[-1].number, path, None), store_id)) as segment:
        room = segment.room()
    os.truncate(path, planned.cut_at)
    os.truncate(path, max(room, planned.cut_at))
    sync_file(path)


def _put_numbers(file: Path, planned: Plan) -> None:
    """Numbers and ids given out after the backup may be in clients' hands: the restored store gives others."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(SQL.skip_after_restore, ("incarnation", planned.incarnation, INCARNATIONS_SKIPPED))
        connection.execute(SQL.skip_after_restore, ("ids", planned.ids, IDS_SKIPPED))
        connection.execute(SQL.put_line, (time_ns() // 1000,))
    sync_file(file)
