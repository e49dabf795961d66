"""Verification of an SQLite store's files: the file's pages, every record of the log, and the tables against the log.

What rows mean is checked elsewhere, for every engine alike (`penstock/maintenance/verify.py`). Nothing is written, and
a node may go on meanwhile. Next stop: `log/scan.py`, which reads damaged segments too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from penstock.model.errors import StoreCorrupt
from penstock.store.damage import Damage
from penstock.store.sqlite.log.cuts import find_cut
from penstock.store.sqlite.log.scan import Placed, Scanned, placed, scan
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Segment
from penstock.store.sqlite.log.turn import Turn
from penstock.store.sqlite.overlay import BatchPointer
from penstock.store.sqlite.snapshot import Snapshot
from penstock.store.sqlite.statements import SQL

PAGES_MOST: Final = 100
"""How many faults of the file SQLite is asked to name."""

Told = Callable[[int], None]
"""Called with the bytes of the log that were looked at."""


def check_pages(snapshot: Snapshot) -> Iterator[Damage]:
    """What SQLite itself says of its file."""
    file = str(snapshot.path)
    try:
        for (line,) in snapshot.connection.execute(f"PRAGMA integrity_check({PAGES_MOST})"):
            if line != "ok":
                yield Damage("file", line, file=file)
    except sqlite3.Error as error:
        yield Damage("file", str(error), file=file)


def log_bytes(snapshot: Snapshot) -> int:
    segments = snapshot.segments
    return sum(segments.path(number).stat().st_size for number in segments.numbers())


class LogCheck:
    """One walk over the log; counts what it has seen."""

    def __init__(self, snapshot: Snapshot, told: Told) -> None:
        self._snapshot = snapshot
        self._told = told
        self.segments = 0
        self.records = 0
        self.warnings: list[str] = []

    def run(self) -> Iterator[Damage]:
        snapshot = self._snapshot
        numbers = snapshot.segments.numbers()
        yield from self._missing(numbers)
        for number in numbers:
            path = snapshot.segments.path(number)
            size = path.stat().st_size
            following = self._first_record(number + 1) if number + 1 in numbers else None
            # One that was still being made holds nothing: the log ends before it.
            is_last = following is None and number >= numbers[-1] - 1
            try:
                segment = snapshot.segments.open(number, snapshot.store_id, only_read=True)
            except StoreCorrupt as error:
                yield Damage("log", str(error), file=str(path))
                continue
            if segment is None:
                yield from self._headless(number, is_last=number == numbers[-1])
                continue
            segment.reads_past_faults = True
            with closing(segment):
                self.segments += 1
                yield from self._segment(segment, following, is_last=is_last)
            self._told(size)

    def _missing(self, numbers: list[int]) -> Iterator[Damage]:
        """Segments that rows point into, and those that the tables do not know yet."""
        snapshot = self._snapshot
        wanted = {number for number, live in snapshot.connection.execute(SQL.segments) if live}
        if snapshot.indexed.segment:
            wanted.add(snapshot.indexed.segment)
        newest = max(numbers, default=0)
        wanted |= set(range(max(snapshot.indexed.segment, 1), newest))
        for number in sorted(wanted - set(numbers)):
            path = snapshot.segments.path(number)
            yield Damage("log", f"the log file {path.name} is missing", file=str(path))

    def _first_record(self, number: int) -> int | None:
        try:
            segment = self._snapshot.segments.open(number, self._snapshot.store_id, only_read=True)
        except StoreCorrupt:
            return None
        if segment is None:
            return None
        with closing(segment):
            return segment.first_record

    def _headless(self, number: int, *, is_last: bool) -> Iterator[Damage]:
        path = self._snapshot.segments.path(number)
        if is_last and number > self._snapshot.indexed.segment:
            self.warnings.append(f"{path} was still being made when its server ended, and holds nothing")
        else:
            yield Damage("log", "the head of the log file is damaged", file=str(path))

    def _segment(self, segment: Segment, following: int | None, *, is_last: bool) -> Iterator[Damage]:
        file = str(segment.path)
        batches: dict[int, Placed] = {}
        unreadable: list[tuple[int, int]] = []
        end, record = SEGMENT_HEAD_BYTES, segment.first_record
        for scanned in scan(segment, following):
            if is_last and self._is_torn(segment, scanned):
                break
            end, record = scanned.end, scanned.record + 1
            self.records += scanned.found is not None
            if not scanned.is_whole and not (is_last and self._is_whole_now(segment, scanned)):
                yield from self._damaged(scanned, file)
            if scanned.commit is None:
                unreadable.append((scanned.position, scanned.end))
            batches.update((one.position, one) for one in placed(scanned))
        if following is not None and record < following:
            yield Damage("log", f"records {record} to {following - 1} are damaged or missing", file=file)
            unreadable.append((end, segment.bytes))
        elif is_last:
            yield from self._end_of_log(segment, end, record)
        yield from self._index(segment, batches, unreadable)

    def _damaged(self, scanned: Scanned, file: str) -> Iterator[Damage]:
        place = f"at byte {scanned.position}"
        if scanned.found is None or scanned.commit is None:
            yield Damage(
                "log", f"record {scanned.record} {place} cannot be read; the next is at {scanned.end}", file=file
            )
        else:
            yield Damage("log", f"the bodies of record {scanned.record} {place} fail their checksum", file=file)

    @contextmanager
    def _unwritten(self) -> Iterator[None]:
        """While no server writes a record."""
        turn = Turn(self._snapshot.segments.folder)
        with closing(turn), turn.locked():
            yield

    def _is_whole_now(self, segment: Segment, scanned: Scanned) -> bool:
        """Whether a record was only being written when it was looked at."""
        with self._unwritten():
            return scanned.commit is not None and segment.record_at(scanned.position) is not None

    def _is_torn(self, segment: Segment, scanned: Scanned) -> bool:
        """Whether a record was never written whole, though its rows were: a server cuts it off."""
        indexed = self._snapshot.indexed
        if scanned.is_whole or (segment.number, scanned.record) < (indexed.segment, indexed.record):
            return False
        if segment.has_record_behind(scanned.position, scanned.record) or self._is_whole_now(segment, scanned):
            return False
        cut = find_cut(segment, scanned.position)
        return cut is not None and cut.kind == "torn"

    def _end_of_log(self, segment: Segment, position: int, record: int) -> Iterator[Damage]:
        """A record at the end that is not whole was torn by a crash, unless the tables know it."""
        indexed = self._snapshot.indexed
        with self._unwritten():
            for scanned in scan(segment, None, position, record):
                if not scanned.is_whole:
                    break
                position, record = scanned.end, scanned.record + 1
            is_torn = segment.begins_record(position)
        if segment.number == indexed.segment and record < indexed.record:
            yield Damage(
                "log", f"records {record} to {indexed.record - 1} are damaged or missing", file=str(segment.path)
            )
        elif is_torn:
            self.warnings.append(
                f"{segment.path} ends at byte {position} with a record that is not whole: torn by a crash, if it was "
                "never answered; a server cuts it off"
            )

    def _index(
        self, segment: Segment, batches: dict[int, Placed], unreadable: list[tuple[int, int]]
    ) -> Iterator[Damage]:
        """Every row that points into the segment, against what the log holds there."""
        live = 0
        for row in self._rows(segment.number):
            live += row.size - len(row.meta)
            one = batches.get(row.position)
            if one is not None and _points_at(row, one):
                continue
            if one is None and any(start <= row.position < end for start, end in unreadable):
                continue  # told already; whether the body is whole is another check
            problem = f"its row points to byte {row.position} of {segment.path.name}, where another batch or none is"
            yield Damage("index", problem, row.lane, row.base, row.end, str(segment.path))
        noted = dict(self._snapshot.connection.execute(SQL.segments)).get(segment.number, 0)
        if noted != live:
            problem = f"{live} bytes of {segment.path.name} are needed, the table of segments says {noted}"
            yield Damage("index", problem, file=str(segment.path))

    def _rows(self, number: int) -> Iterator[BatchPointer]:
        for row in self._snapshot.connection.execute(SQL.pointers, (number,)):
            yield BatchPointer._make(row)


def _points_at(row: BatchPointer, one: Placed) -> bool:
    batch = one.batch
    values = (one.lane, batch.base, batch.count, batch.published_ms, batch.bytes_end)
    return row[:5] == values and row.meta == batch.meta and row.size == len(batch.meta) + batch.body_bytes
