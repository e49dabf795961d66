"""What must be true of one lane: its batches are whole and dense, and its groups' rows fit together.

The rules are those that the core asserts of itself (`WorkGroup.check`), told as findings instead. No store, no I/O.
Next stop: `verify.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from penstock.batch import is_intact, read_columns
from penstock.core.group import waiting as core_waiting
from penstock.core.group.entries import Entry, decode_entries, is_sorted
from penstock.model.errors import PenstockError
from penstock.model.rows import DEDUP_KEY_BYTES_MAX, BatchRow, DedupRow, LaneImage
from penstock.node.catalog import Queue
from penstock.store.damage import Damage


def check_batch(lane: int, row: BatchRow) -> Iterator[Damage]:
    """The checksums of a batch, and whether its metadata can be taken apart."""
    place = (lane, row.base, row.end)
    if row.count < 1:
        yield Damage("rows", f"a batch of {row.count} messages", *place)
        return
    if not row.is_intact and not is_intact(row.body):
        yield Damage("checksum", "the payloads fail their checksum", *place)
    try:
        read_columns(row.meta, row.count, frozenset())
    except PenstockError as error:
        yield Damage("checksum", f"the metadata: {error}", *place)


class Density:
    """Whether the batches of a queue's lane follow each other without a gap, up to the lane's end."""

    def __init__(self, image: LaneImage) -> None:
        self._image = image
        self._last: BatchRow | None = None

    def check(self, row: BatchRow) -> Iterator[Damage]:
        """Of the next batch."""
        last, lane = self._last, self._image.lane
        self._last = row
        if last is None:
            if row.base > self._image.first:
                yield Damage("offsets", "messages are missing at the beginning", lane, self._image.first, row.base)
            return
        if row.base > last.end:
            yield Damage("offsets", "messages are missing", lane, last.end, row.base)
        elif row.base < last.end:
            yield Damage("offsets", "two batches hold the same offsets", lane, row.base, last.end)
        elif row.bytes_end != last.bytes_end + row.size:
            yield Damage(
                "rows",
                f"bytes up to here are {row.bytes_end}, not {last.bytes_end + row.size}",
                lane,
                row.base,
                row.end,
            )
        if row.published_ms < last.published_ms:
            yield Damage("rows", "published before the batch in front of it", lane, row.base, row.end)

    def end(self) -> Iterator[Damage]:
        """Behind the last batch."""
        image = self._image
        end = self._last.end if self._last is not None else image.first
        if end < image.end:
            yield Damage("offsets", "messages are missing at the end", image.lane, end, image.end)


class _Held(NamedTuple):
    """Offsets in one state."""

    start: int
    end: int
    state: str


def check_image(image: LaneImage, queue: Queue | None) -> Iterator[Damage]:
    """The rows of a lane's groups. Without a queue, which a staged transaction's lane has not, there may be none."""
    if not 0 <= image.first <= image.end:
        yield Damage("rows", f"the lane begins at {image.first} and ends at {image.end}", image.lane)
    known = set() if queue is None else {group.id for group in queue.groups.values()}
    cursors = {row.group: row for row in image.groups}
    groups = {*cursors, *(row.group for row in image.leases), *(row.group for row in image.waiting)}
    for group in sorted(groups | {row.group for row in image.dead}):
        if group not in known:
            yield Damage("rows", f"rows of group {group}, which is not declared", image.lane)
            continue
        if group not in cursors:
            yield Damage("rows", f"rows of group {group}, which has no cursor", image.lane)
            continue
        yield from _check_group(image, group)


def _check_group(image: LaneImage, group: int) -> Iterator[Damage]:
    cursor = next(row for row in image.groups if row.group == group)
    for name, value in (("next", cursor.next), ("committed", cursor.committed)):
        if not 0 <= value <= image.end:
            yield Damage("rows", f"group {group}: {name} is {value}, the lane ends at {image.end}", image.lane)
    held: list[_Held] = []
    for lease in image.leases:
        if lease.group == group:
            entries = yield from _entries(image.lane, f"lease {lease.lease} of group {group}", lease.entries)
            if any(entry.attempts < 1 for entry in entries):
                yield Damage("rows", f"lease {lease.lease} of group {group} has unspent attempts", image.lane)
            held += [_Held(entry.start, entry.end, "leased") for entry in entries]
    for waiting in image.waiting:
        if waiting.group == group:
            entries = yield from _entries(image.lane, f"waiting row {waiting.chunk} of group {group}", waiting.entries)
            if any(entry.start // core_waiting.CHUNK_OFFSETS != waiting.chunk for entry in entries):
                yield Damage("rows", f"waiting row {waiting.chunk} of group {group} holds others' offsets", image.lane)
            held += [_Held(entry.start, entry.end, "waiting") for entry in entries]
    held += [_Held(row.start, row.end, "dead") for row in image.dead if row.group == group]
    yield from _check_held(image, group, sorted(held), max(cursor.next, image.first))


def _entries(lane: int, what: str, data: bytes) -> Generator[Damage, None, list[Entry]]:
    """The entries of a row, if they can be read and are in order; else none, and that is told."""
    try:
        entries = decode_entries(data)
    except PenstockError as error:
        yield Damage("rows", f"{what}: {error}", lane)
        return []
    if not entries or not is_sorted(entries):
        yield Damage("rows", f"{what}: its offsets are empty, overlap or do not rise", lane)
        return []
    return entries


def _check_held(image: LaneImage, group: int, held: list[_Held], following: int) -> Iterator[Damage]:
    end = 0
    for one in held:
        place = (image.lane, one.start, one.end)
        if one.start >= one.end:
            yield Damage("rows", f"group {group}: nothing is {one.state} there", *place)
        if one.start < end:
            yield Damage("rows", f"group {group}: offsets are {one.state} and in another state too", *place)
        if one.end > following:
            yield Damage("rows", f"group {group}: offsets are {one.state} that were never handed out", *place)
        if one.start < image.first:
            yield Damage("rows", f"group {group}: offsets are {one.state} that are trimmed", *place)
        end = max(end, one.end)


def check_dedup(image: LaneImage, row: DedupRow) -> Iterator[Damage]:
    if not 0 <= row.offset < image.end:
        yield Damage("rows", f"an id of offset {row.offset}; the lane ends at {image.end}", image.lane)
    if len(row.key) > DEDUP_KEY_BYTES_MAX:
        yield Damage("rows", f"an id of {len(row.key)} bytes; the limit is {DEDUP_KEY_BYTES_MAX}", image.lane)
