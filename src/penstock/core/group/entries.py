"""Entries: ranges of offsets with their delivery state. Leases and waiting are made of them.

An entry is immutable; splitting or moving one makes new ones. Their bytes are stored in lease and waiting rows: fields
may be added at the end, never moved. Knows nothing of groups or time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from penstock.model.errors import StoreCorrupt


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets [start, end) that share one delivery state.

    `attempts` counts the hand-outs so far; in a lease it includes the current one. `due_ms` is 0 when ready,
    `expires_ms` 0 when the messages never expire. `partition` and `priority` are set only in groups whose order
    depends on them.
    """

    start: int
    end: int
    attempts: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    priority: int = 0
    partition: str = ""

    @property
    def count(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Entry:
        """The same state for some of its offsets."""
        return Entry(start, end, self.attempts, self.due_ms, self.expires_ms, self.priority, self.partition)

    def moved(self, attempts: int, due_ms: int) -> Entry:
        """The same offsets with other attempts and another due time."""
        return Entry(self.start, self.end, attempts, due_ms, self.expires_ms, self.priority, self.partition)

    def continues(self, other: Entry) -> bool:
        """Whether this entry is adjacent to `other` and equal in all but its offsets."""
        return (
            other.end == self.start
            and other.attempts == self.attempts
            and other.due_ms == self.due_ms
            and other.expires_ms == self.expires_ms
            and other.priority == self.priority
            and other.partition == self.partition
        )


_start: Final = attrgetter("start")
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Entry])


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """The bytes that a lease or waiting row stores."""
    return _encoder.encode(entries if isinstance(entries, list) else list(entries))


def decode_entries(data: bytes) -> list[Entry]:
    """Entries from a row's bytes."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StoreCorrupt(f"a lease or waiting row cannot be read: {error}") from None


def merged(entries: list[Entry]) -> list[Entry]:
    """Sort the entries by offset and join adjacent equal ones."""
    if len(entries) < 2:
        return entries
    entries.sort(key=_start)
    result = [entries[0]]
    for entry in entries[1:]:
        last = result[-1]
        if entry.continues(last):
            result[-1] = last.part(last.start, entry.end)
        else:
            result.append(entry)
    return result


def is_sorted(entries: Iterable[Entry]) -> bool:
    """Whether the entries rise, none of them empty and no two overlapping."""
    end = 0
    for entry in entries:
        if not end <= entry.start < entry.end:
            return False
        end = entry.end
    return True


def covers(entries: list[Entry], start: int, end: int) -> bool:
    """Whether every offset of [start, end) is in the sorted entries."""
    index = bisect_right(entries, start, key=_start) - 1
    while start < end:
        if not 0 <= index < len(entries) or not entries[index].start <= start < entries[index].end:
            return False
        start = entries[index].end
        index += 1
    return True


def carve(entries: list[Entry], start: int, end: int) -> list[Entry]:
    """Remove [start, end), which must be covered, from the sorted entries; returns the pieces removed."""
    low = bisect_right(entries, start, key=_start) - 1
    high = low
    taken: list[Entry] = []
    kept: list[Entry] = []
    while high < len(entries) and entries[high].start < end:
        entry = entries[high]
        cut_start, cut_end = max(start, entry.start), min(end, entry.end)
        taken.append(entry if (cut_start, cut_end) == (entry.start, entry.end) else entry.part(cut_start, cut_end))
        if entry.start < cut_start:
            kept.append(entry.part(entry.start, cut_start))
        if cut_end < entry.end:
            kept.append(entry.part(cut_end, entry.end))
        high += 1
    entries[low:high] = kept
    return taken


def insert(entries: list[Entry], entry: Entry) -> None:
    """Insert an entry into sorted entries."""
    if not entries or entries[-1].start < entry.start:
        entries.append(entry)
    else:
        entries.insert(bisect_right(entries, entry.start, key=_start), entry)


def count_of(entries: list[Entry]) -> int:
    """How many offsets the entries hold."""
    if len(entries) == 1:
        return entries[0].end - entries[0].start
    return sum([entry.end - entry.start for entry in entries])


def union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges, leave out empty ones and join those that overlap or touch."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def ranges_of(entries: Iterable[Entry]) -> list[tuple[int, int]]:
    """The offsets of sorted entries as (start, end) pairs, adjacent ones joined."""
    ranges: list[tuple[int, int]] = []
    for entry in entries:
        if ranges and ranges[-1][1] == entry.start:
            ranges[-1] = (ranges[-1][0], entry.end)
        else:
            ranges.append((entry.start, entry.end))
    return ranges


def runs_of(entries: Sequence[Entry]) -> list[tuple[int, int, int]]:
    """(start, end, attempts) of sorted entries, adjacent ones of the same attempt joined."""
    if len(entries) == 1:
        return [(entries[0].start, entries[0].end, entries[0].attempts)]
    runs: list[tuple[int, int, int]] = []
    start = end = attempts = -1
    for entry in entries:
        if entry.start == end and entry.attempts == attempts:
            end = entry.end
            continue
        if end >= 0:
            runs.append((start, end, attempts))
        start, end, attempts = entry.start, entry.end, entry.attempts
    if end >= 0:
        runs.append((start, end, attempts))
    return runs
