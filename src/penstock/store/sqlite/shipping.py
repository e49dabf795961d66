"""The log of an SQLite store copied as it grows, record by record, so that any moment can be restored.

A backup holds the store as it was once; behind it, `FOLDER/log/LINE/` goes on: a file for each segment, with the bytes
that it has in the store, appended after they are durable there, and `shipped.json`, which says up to when. A store that
was restored writes another log under the same numbers, so it has a line of its own. The store keeps segments that are
not copied yet, as long as this process lives (`Segments.wanted`); where one is gone all the same, `Gap` says that only
a new backup helps. It may not know what commits mean. Next stop: `restore.py`, which reads it.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from time import time_ns
from typing import Final

import msgspec

from penstock.model.errors import InvalidArgument, StoreCorrupt
from penstock.store.folders import make_folder, sync_folder
from penstock.store.sqlite.backup import LOG, Tables, backups, read_tables, sync_file, tables_of
from penstock.store.sqlite.file import make_private
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Segment, Segments
from penstock.store.sqlite.log.turn import Turn
from penstock.store.sqlite.snapshot import connect, translated

SHIPPED: Final = "shipped.json"
_PART_BYTES: Final = 1 << 20


class Gap(Exception):
    """The store has given back a part of its log that is not copied."""


class Shipped(msgspec.Struct, frozen=True):
    """How far the copy of a log goes."""

    until_ms: int
    """All that was answered up to this time is in it."""
    record: int
    """The number of the first record that is not."""
    incarnation: int
    ids: int
    """The highest numbers that were given out by then."""


def read_shipped(folder: Path, line: int) -> Shipped | None:
    """What is known of a line; None where nothing of it was copied."""
    place = folder / LOG / str(line) / SHIPPED
    try:
        return msgspec.json.decode(place.read_bytes(), type=Shipped)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreCorrupt(f"{place} cannot be read: {error}") from None


class Shipping:
    """Copies one store's log, behind a backup of the store in the same folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        """`Gap` where the folder has nothing that the log goes on from."""
        self._source = source
        self._live = Segments(Path(f"{source}-log"))
        with translated(source):
            tables = self._tables()
            self._store_id = tables.store_id
            self._copies = Segments(folder / LOG / str(tables.line))
            self.number = self._first(folder, tables.line)
            """Of the segment that is being copied; those before it are."""
            make_folder(self._copies.folder)
            sync_folder(self._copies.folder)  # a copy may have been made by a process that was killed right then
            self._position, self._record = self._resumed()
            self._end = self._position

    def ship(self) -> int:
        """Copy what is durable by now; how many bytes that is."""
        until_ms, copied = time_ns() // 1_000_000, 0
        with translated(self._source):
            while self._live.numbers():
                with closing(self._opened(self._live, self.number)) as live:
                    following = self._walk(live)
                    copied += self._copy(live)
                if following is None:
                    break
                if following != self._record:
                    raise StoreCorrupt(f"record {self._record} is not whole in {live.path}; 'penstock store verify'")
                self.number, self._position = self.number + 1, SEGMENT_HEAD_BYTES
            tables = self._tables()
            self._put(Shipped(until_ms, self._record, tables.incarnation, tables.ids))
        return copied

    def _tables(self) -> Tables:
        with closing(connect(self._source)) as connection:
            return read_tables(connection)

    # Where to begin ---------------------------------------------------------------------------------------

    def _first(self, folder: Path, line: int) -> int:
        """The last that was copied of this line, or the one that its newest backup needs."""
        made = backups(folder)
        if made and made[-1].store_id != self._store_id.hex():
            raise InvalidArgument(f"{folder} has backups of another store; name another folder")
        known = [tables.position.segment for tables in (tables_of(folder, one) for one in made) if tables.line == line]
        if known:
            there, copied = self._live.numbers(), self._copies.numbers()[-1:]
            if there and copied and copied[0] > there[-1]:
                raise InvalidArgument(f"{folder} has a later log than {self._source} itself; name another folder")
            for number in (*copied, known[-1] or 1):
                if not there or set(there).issuperset(range(number, there[-1] + 1)):
                    return number
        raise Gap(f"{folder} has nothing that the log of {self._source} goes on from")

    def _resumed(self) -> tuple[int, int]:
        """Where the copy of the segment ends: place and next record. What is behind its last record is cut off."""
        path = self._copies.path(self.number)
        there = self._opened(self._live, self.number) if self._live.numbers() else None
        if there is None:
            return SEGMENT_HEAD_BYTES, 1
        with closing(there) as live:
            copy = self._copies.open(self.number, self._store_id, only_read=True) if path.exists() else None
            if copy is None:
                path.unlink(missing_ok=True)
                return SEGMENT_HEAD_BYTES, live.first_record
            with closing(copy):
                position, record = SEGMENT_HEAD_BYTES, copy.first_record
                for found in copy.records(position, record):
                    position, record = found.end, found.head.number + 1
                for start in range(0, position, _PART_BYTES):
                    end = min(start + _PART_BYTES, position)
                    if copy.read(start, end) != live.read(start, end):
                        raise InvalidArgument(f"{path} is no copy of what {self._source} has; name another folder")
            os.truncate(path, position)
            return position, record

    # What is there ----------------------------------------------------------------------------------------

    def _walk(self, live: Segment) -> int | None:
        """Move to the end of what is durable in a segment; the first record of the next one, if there is one."""
        ends = [(self._position, self._record)]
        self._follow(live, ends)
        following = self._first_record(self.number + 1)
        if following is None:
            turn = Turn(self._live.folder)
            # While nothing is written: what is there then was synced, or is void.
            with closing(turn), turn.locked():
                following = self._first_record(self.number + 1)
                if following is None and self._live.numbers()[-1] > self.number + 1:
                    raise Gap(f"segment {self.number + 1} of {self._live.folder} is gone")
                if len(ends) > 1 and live.record_at(ends[-2][0], bodies=False) is None:
                    ends.pop()
                self._follow(live, ends)
        while following is not None and ends[-1][1] > following and len(ends) > 1:
            ends.pop()
        self._end, self._record = ends[-1]
        return following

    @staticmethod
    def _follow(live: Segment, ends: list[tuple[int, int]]) -> None:
        ends.extend((found.end, found.head.number + 1) for found in live.records(*ends[-1]))

    def _first_record(self, number: int) -> int | None:
        try:
            segment = self._live.open(number, self._store_id, only_read=True)
        except FileNotFoundError:
            return None
        if segment is None:  # it is being made
            return None
        with closing(segment):
            return segment.first_record

    def _opened(self, segments: Segments, number: int) -> Segment:
        try:
            segment = segments.open(number, self._store_id, only_read=True)
        except FileNotFoundError:
            raise Gap(f"segment {number} of {segments.folder} is gone") from None
        if segment is None:
            raise StoreCorrupt(f"the head of {segments.path(number)} is damaged")
        return segment

    # Copying ----------------------------------------------------------------------------------------------

    def _copy(self, live: Segment) -> int:
        """Append what was walked over, durably. A new copy gets its name when it is on the disk, never half a head."""
        path = self._copies.path(self.number)
        is_new = not path.exists()
        start = 0 if is_new else self._position
        if self._end <= self._position and not is_new:
            return 0
        written = path.with_suffix(".partial") if is_new else path
        make_private(written)
        with written.open("r+b") as file:
            file.truncate(start)
            file.seek(start)
            for position in range(start, self._end, _PART_BYTES):
                file.write(live.read(position, min(position + _PART_BYTES, self._end)))
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            written.rename(path)
            sync_folder(self._copies.folder)
        self._position = self._end
        return self._end - start

    def _put(self, shipped: Shipped) -> None:
        place = self._copies.folder / SHIPPED
        partial = place.with_suffix(".partial")
        make_private(partial)
        partial.write_bytes(msgspec.json.encode(shipped))
        sync_file(partial)
        partial.rename(place)
        sync_folder(self._copies.folder)
