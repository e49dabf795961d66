"""Reading bodies from the log's segments: on a thread that may block, or at once from the page cache.

What a lagging group reads is nearly always in the page cache. Copying it from there costs less than a switch to a
thread and back. It may not know SQL, threads or when a row was written. Next stop: `store/sqlite/engine.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.batch import is_intact, is_meta_intact
from penstock.model.rows import BatchRow, CheckedBatch
from penstock.store.checking import check_batches
from penstock.store.sqlite.log.segments import REFUSED, Segments
from penstock.store.sqlite.overlay import BatchPointer

AT_ONCE_BYTES: Final = 4 << 20
"""The most that is copied at once: it takes the event loop a millisecond."""

MISSING: Final = "cannot be read: its file is missing"


class SegmentGone(Exception):
    """A segment was deleted between finding a batch in it and reading it: the batch moved, or is gone."""

    def __init__(self, segment: int, path: Path) -> None:
        super().__init__(f"{path} is missing")
        self.segment = segment


class Located(NamedTuple):
    """A batch that was found, with its body where its row holds that."""

    place: BatchPointer
    inline: bytes | None

    @property
    def body_bytes(self) -> int:
        return self.place.size - len(self.place.meta)


Problems = dict[int, str]
"""Why a body could not be read, by the first offset of its batch. Such a body counts as damaged."""


def read_bodies(
    segments: Segments, found: Sequence[Located], missing: Collection[int] = ()
) -> tuple[list[BatchRow], Problems]:
    """The batches, and what could not be read of them; waits for the disk.

    `missing`: segments that are no surprise if they are gone, though batches are in them.
    """
    problems: Problems = {}
    with _Files(segments) as files:
        return [_batch(one, files.body(one, missing, problems)) for one in found], problems


def check_bodies(
    segments: Segments, found: Sequence[Located], missing: Collection[int] = ()
) -> tuple[list[CheckedBatch], Problems]:
    """Whether these are whole on the disk: what the system has in memory of them is let go before and after."""
    checked: list[CheckedBatch] = []
    problems: Problems = {}
    with _Files(segments) as files:
        for one in found:
            files.forget(one, missing)
            checked += check_batches([_batch(one, files.body(one, missing, problems))])
            files.forget(one, missing)
    return checked, problems


class Scratch:
    """Reads without a wait; one event loop's. What is read goes through the same memory every time."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def read_bodies(self, segments: Segments, found: Sequence[Located]) -> list[BatchRow] | None:
        """None where not all of it can be had at once."""
        if sys.platform != "linux" or sum(one.body_bytes for one in found) > AT_ONCE_BYTES:
            return None
        rows = []
        try:
            with _Files(segments) as files:
                for one in found:
                    body = self._read(files, one) if one.inline is None else one.inline
                    if len(body) != one.body_bytes:
                        return None
                    rows.append(_batch(one, body))
        except OSError:  # not in memory, or not to be had in this way
            return None
        return rows

    def _read(self, files: _Files, one: Located) -> bytes:
        size = one.body_bytes
        if len(self._memory) < size:
            self._memory = bytearray(size)
        view = memoryview(self._memory)[:size]
        count = os.preadv(files.of(one.place.segment), [view], one.place.position, os.RWF_NOWAIT)
        return bytes(view[:count])


class _Files:
    """Segments, each of which is opened once."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._files: dict[int, int] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)

    def of(self, segment: int) -> int:
        file = self._files.get(segment)
        if file is None:
            path = self._segments.path(segment)
            try:
                file = self._files[segment] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise SegmentGone(segment, path) from None
        return file

    def forget(self, one: Located, missing: Collection[int]) -> None:
        place = one.place
        if one.inline is None and place.segment not in missing and sys.platform == "linux":
            os.posix_fadvise(self.of(place.segment), place.position, one.body_bytes, os.POSIX_FADV_DONTNEED)

    def body(self, one: Located, missing: Collection[int], problems: Problems) -> bytes:
        """Shorter where the file ends before it, and empty where it cannot be read: it fails its checksum then."""
        place = one.place
        if one.inline is not None:
            return one.inline
        try:
            return os.pread(self.of(place.segment), one.body_bytes, place.position)
        except SegmentGone:
            if place.segment not in missing:
                raise
            problems[place.base] = MISSING
            return b""
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            problems[place.base] = f"cannot be read: {error.strerror}"
            return b""


def _batch(one: Located, body: bytes) -> BatchRow:
    row = one.place
    # Here rather than where bodies are opened: what is checked next to being read is still in the processor's cache.
    is_whole = is_intact(body) and is_meta_intact(row.meta, row.messages)
    return BatchRow(row.base, row.messages, row.published_ms, row.bytes_end, row.meta, body, is_whole)
