"""A walk over all records of a segment that goes on behind damage: for verification and repair.

A record whose rows are whole and whose bodies are not still says which messages it holds. Behind bytes that are no
record the walk goes on at the next one. It may not know SQLite or what rows mean, and changes nothing. Next stop:
`store/sqlite/verify.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.store.sqlite.log.records import LoggedBatch, LoggedCommit, parse_rows
from penstock.store.sqlite.log.segments import SEGMENT_HEAD_BYTES, Found, Segment


class Scanned(NamedTuple):
    """A record, or a stretch of bytes where one or more should be."""

    position: int
    end: int
    record: int
    """The number of the record, or of the first that is missing."""
    found: Found | None
    """None where nothing of it can be read."""
    commit: LoggedCommit | None
    is_whole: bool


class Placed(NamedTuple):
    """A batch of a record, and where its body is."""

    lane: int
    batch: LoggedBatch
    position: int


def scan(
    segment: Segment, stop: int | None, position: int = SEGMENT_HEAD_BYTES, record: int | None = None
) -> Iterator[Scanned]:
    """Every record from a place on, up to the number `stop` or to the end.

    What is missing behind the last is the caller's to see. Without a place, from the first record on.
    """
    record = segment.first_record if record is None else record
    while stop is None or record < stop:
        found = _record(segment, position, record)
        if found is None:
            behind = segment.record_behind(position, record)
            if behind is None or (stop is not None and behind.head.number >= stop):
                return
            # Records are written one after the other: a server may have written this one since it was looked for.
            found = _record(segment, position, record)
            if found is None:
                yield Scanned(position, behind.position, record, None, None, is_whole=False)
                found = behind
        yield _scanned(segment, found)
        position, record = found.end, found.head.number + 1


def _record(segment: Segment, position: int, record: int) -> Found | None:
    """The record of a number at a place; its bodies are not looked at."""
    found = segment.record_at(position, bodies=False)
    return found if found is not None and found.head.number == record else None


def _scanned(segment: Segment, found: Found) -> Scanned:
    is_whole = segment.record_at(found.position) is not None
    try:
        commit = parse_rows(found.rows)
    except msgspec.MsgspecError:
        commit, is_whole = None, False
    return Scanned(found.position, found.end, found.head.number, found, commit, is_whole)


def placed(scanned: Scanned) -> Iterator[Placed]:
    """The batches of a record, in order."""
    if scanned.found is None or scanned.commit is None:
        return
    position = scanned.found.bodies_at
    for change in scanned.commit.lanes:
        for batch in change.batches:
            yield Placed(change.lane, batch, position)
            position += batch.body_bytes
