"""The log: where a commit becomes durable. Appending to it, finding its end again, and what is done when that fails.

A record that was written but not made durable is in doubt: the disk may have it or not. It is never written over and
never trusted; the next record goes into a new segment, whose head says that the one in doubt is void. So it is with
what is found behind the last record after a crash: it is told, kept (`cuts.py`) and cut off. This module may not know
SQLite, rows or event loops. Next stop: `turn.py`, which says which store may append; `store/sqlite/index.py`, which
uses the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import msgspec

from penstock.model.errors import StoreCorrupt, Unavailable
from penstock.store.folders import sync_folder
from penstock.store.sqlite.log import segments
from penstock.store.sqlite.log.cuts import Cuts, find_cut
from penstock.store.sqlite.log.records import Draft, LoggedCommit, parse_rows
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Found, Segment, Segments

SYNC_SHARE: Final = 0.1
"""Weight of the newest sync in the running mean of sync times."""

_log = logging.getLogger("penstock.store.log")


class LogPosition(NamedTuple):
    """A position in the log, between two records."""

    segment: int
    position: int
    record: int
    """The number of the record that comes next."""
    last_position: int
    """Where the record before it begins; 0 where it is in another segment or there is none."""


START: Final = LogPosition(0, 0, 1, 0)
"""Before anything was ever written."""


class Entry(NamedTuple):
    """A record's commit, and where its bodies are."""

    commit: LoggedCommit
    segment: int
    bodies_at: int
    rows_bytes: int
    end: LogPosition


class Log:
    """The log of one store. One thread at a time; `resume` before anything else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = Segments(folder)
        self.cuts = Cuts(folder)
        self.sync_seconds = 0.0
        """A running mean of how long a sync takes."""
        self._written_at = 0.0
        self._store_id = b""
        self._tail: Segment | None = None
        self.end = START
        self._in_doubt = False

    @property
    def is_plain(self) -> bool:
        """Whether the next record needs no more than a write and a sync, as far as its size allows."""
        return self._tail is not None and not self._in_doubt

    def check_in_place(self) -> None:
        """Raise where the segment was deleted or moved: what is written to it would be lost."""
        if self._tail is not None and not self._tail.is_in_place():
            raise Unavailable(f"{self._tail.path} is not the file that was opened: it was moved, deleted or replaced")

    def fits(self, size: int) -> bool:
        return self._tail is not None and self.end.position + size <= self._tail.bytes

    # Appending --------------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> Entry:
        """Make a record durable. When it raises, the record is void."""
        if self._in_doubt or not self.fits(draft.size):
            self._begin_segment(draft.size)
        file = self.write(draft)
        try:
            file.sync()
        except BaseException:
            self.not_synced()
            raise
        return self.synced(draft)

    def write(self, draft: Draft) -> Segment:
        """The first half of `append`, for a record that fits: write it. The segment is to be synced next."""
        tail, at = self._tail, self.end
        assert tail is not None
        try:
            tail.write(at.position, at.record, draft)
        except BaseException:
            self._not_written(tail, at)
            raise
        self._written_at = perf_counter()
        return tail

    def synced(self, draft: Draft) -> Entry:
        """The second half: the record that was written last is on the disk."""
        self.sync_seconds += (perf_counter() - self._written_at - self.sync_seconds) * SYNC_SHARE
        tail, at = self._tail, self.end
        assert tail is not None
        self.end = LogPosition(tail.number, at.position + draft.size, at.record + 1, at.position)
        return Entry(draft.commit, tail.number, self.end.position - draft.bodies_bytes, len(draft.rows), self.end)

    def not_synced(self) -> None:
        """The record that was written last is void. After a failed sync its state on disk is unknown, and a second sync
        says nothing of the first.
        """
        tail, at = self._tail, self.end
        assert tail is not None
        self._in_doubt = True
        with suppress(OSError):
            tail.void(at.position)
        # At once, where the disk allows it: until then a crash could bring the record back.
        with suppress(OSError):
            self._begin_segment(0)

    def _not_written(self, tail: Segment, at: LogPosition) -> None:
        """Half a record is none, but for one whose rest is what was there before: make sure."""
        try:
            tail.void(at.position)
        except OSError:
            self._in_doubt = True

    def _begin_segment(self, needed: int) -> None:
        tail, end = self._tail, self.end
        wanted = segments.SEGMENT_BYTES_FIRST
        if tail is not None:
            wanted = min(2 * tail.bytes, segments.SEGMENT_BYTES_MOST)
        made = self.segments.make(self._store_id, end.segment + 1, end.record, wanted, needed)
        if tail is not None:
            if not self._in_doubt:
                with suppress(OSError):
                    tail.cut(end.position)
            tail.close()
        self._tail, self._in_doubt = made, False
        self.end = LogPosition(made.number, SEGMENT_HEAD_BYTES, end.record, 0)

    # Finding the end again --------------------------------------------------------------------------------

    def resume(self, store_id: bytes, start: LogPosition) -> Iterator[Entry]:
        """Every commit from a position on, in order; once all are consumed, the log is ready to append."""
        self.close()
        self._store_id, self.end, self._in_doubt = store_id, start, False
        self.folder.mkdir(mode=0o700, exist_ok=True)
        numbers = [number for number in self.segments.numbers() if number >= max(start.segment, 1)]
        if not numbers and start == START:
            sync_folder(self.folder.parent)
            return
        if numbers != list(range(max(start.segment, 1), max(start.segment, 1) + len(numbers))) or not numbers:
            raise StoreCorrupt(
                f"the log {self.folder} lacks segment {max(start.segment, 1)} or one behind it; "
                f"a file and its log belong together: restore both"
            )
        yield from self._replay(numbers)

    def _replay(self, numbers: list[int]) -> Iterator[Entry]:
        first = self.end.record
        segment = self._opened(numbers[0])
        if segment is None:
            if numbers[1:] or self.end != START:
                raise StoreCorrupt(f"the head of the log file {self.segments.path(numbers[0])} is damaged")
            return
        if self.end.segment:
            self._check_position(segment)
        else:
            self._enter(segment)
        for number in [*numbers[1:], None]:
            following = None
            if number is not None:
                following = self._opened(number)
                if following is None and number != numbers[-1]:
                    raise StoreCorrupt(f"the head of the log file {self.segments.path(number)} is damaged")
            yield from self._replay_one(segment, following)
            if following is None:
                break
            segment.close()
            segment = following
            self._enter(segment)
        # What was read may not have reached the disk: the process that wrote it was killed before it knew.
        if self.end.record > first:
            segment.sync()
        sync_folder(self.folder)
        self._tail = segment
        self._cut_off(segment)

    def _cut_off(self, tail: Segment) -> None:
        """Keep what is behind the last record and is not room, and leave its place for good."""
        self.cuts.look()
        cut = find_cut(tail, self.end.position)
        if cut is None:
            return
        try:
            self.cuts.keep(tail, cut)
            self._begin_segment(0)
        except OSError as error:
            self._in_doubt = True  # what could not be kept stays where it is; the next record begins a segment
            _log.error("%s: what is behind byte %d cannot be cut off yet: %s", tail.path, cut.position, error)

    def _replay_one(self, segment: Segment, following: Segment | None) -> Iterator[Entry]:
        for found in self._readable(segment):
            if following is not None and found.head.number >= following.first_record:
                break
            self.end = LogPosition(segment.number, found.end, found.head.number + 1, found.position)
            yield Entry(_understood(found, segment), segment.number, found.bodies_at, len(found.rows), self.end)
        if following is not None:
            whole = self.end.record == following.first_record
        else:
            whole = not segment.has_record_behind(self.end.position, self.end.record)
        if not whole:
            raise StoreCorrupt(
                f"the log file {segment.path} is damaged at byte {self.end.position}: "
                f"record {self.end.record} is not whole and others follow it; restore a backup"
            )

    def _readable(self, segment: Segment) -> Iterator[Found]:
        """The whole records from the end on that is known; `StoreCorrupt` where the disk does not give one back."""
        try:
            yield from segment.records(self.end.position, self.end.record)
        except OSError as error:
            if error.errno not in segments.REFUSED:
                raise
            raise StoreCorrupt(
                f"the log file {segment.path} cannot be read behind byte {self.end.position}, where record "
                f"{self.end.record} should be: {error.strerror}; look at the disk, then restore a backup, or save what "
                f"can be read with `penstock store repair`"
            ) from error

    def _opened(self, number: int) -> Segment | None:
        """The segment; None for one that was still being made, which can hold nothing."""
        segment = self.segments.open(number, self._store_id)
        if segment is None:
            file = os.open(self.segments.path(number), os.O_RDWR | os.O_CLOEXEC)
            headless = Segment(self.segments.path(number), self._store_id, number, 0, file)
            try:
                if headless.has_record_behind(0, 0):
                    raise StoreCorrupt(f"the head of the log file {headless.path} is damaged")
            finally:
                headless.close()
        return segment

    def _enter(self, segment: Segment) -> None:
        self.end = LogPosition(segment.number, SEGMENT_HEAD_BYTES, self.end.record, 0)

    def _check_position(self, segment: Segment) -> None:
        """Raise unless the record before the position is there: the log would be older than its index."""
        end = self.end
        if end.last_position:
            # Its bodies are looked at by whoever reads them: one that is damaged says nothing of the log's age.
            found = segment.record_at(end.last_position, bodies=False)
            if found is None or found.end != end.position or found.head.number != end.record - 1:
                raise StoreCorrupt(
                    f"the log file {segment.path} does not hold record {end.record - 1}, which was there: "
                    f"it is damaged, or older than the file it belongs to; restore both"
                )
        elif segment.first_record > end.record:
            raise StoreCorrupt(f"the log file {segment.path} begins behind record {end.record}; restore a backup")

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def _understood(found: Found, segment: Segment) -> LoggedCommit:
    try:
        return parse_rows(found.rows)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(
            f"record {found.head.number} of {segment.path} cannot be understood ({error}); "
            f"open it with the Penstock that wrote it"
        ) from error
