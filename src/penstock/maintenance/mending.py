"""How the rows of a damaged lane are made to fit together again: nothing wrong is delivered, nothing is left unsaid.

A message that cannot be read keeps its offset: an empty one takes its place, with the header `x-penstock-damaged` and a
time to live that has passed, so that no group ever hands it out. Where a group had it leased or waiting already, it
is dead for the group, with the reason `damaged`. What is in doubt is delivered again rather than lost: a group whose
cursor is gone begins at the lane's first message. No store, no I/O. Next stop: `repair.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from penstock.batch import decode_meta, encode
from penstock.core.group import waiting as core_waiting
from penstock.core.group.entries import Entry, decode_entries, encode_entries, is_sorted
from penstock.core.lane import ROW_MESSAGES_MAX
from penstock.model import Message
from penstock.model.errors import PenstockError
from penstock.model.rows import BatchHead, BatchRow, DeadRow, GroupRow, LaneImage, LeaseRow, WaitingRow
from penstock.store.damage import Damage

HEADER: Final = "x-penstock-damaged"
REASON: Final = "damaged"
_KEPT: Final = ("partition", "key", "priority", "content_type", "correlation_id", "trace_id")
"""What is kept of a message whose payload is lost, with its headers."""


class Chain:
    """The batches of a new lane: dense, with sizes that add up."""

    def __init__(self, first: int) -> None:
        self.end = first
        self.bytes_end = 0
        self._published_ms = 1
        self.lost: list[tuple[int, int]] = []
        """Offsets whose messages could not be read."""

    def keep(self, row: BatchRow) -> BatchRow:
        """A batch that is whole, as the next one."""
        self.bytes_end += row.size
        self.end = row.end
        self._published_ms = max(self._published_ms, row.published_ms)
        return msgspec.structs.replace(row, bytes_end=self.bytes_end, published_ms=self._published_ms)

    def fill(self, end: int, head: BatchHead | None = None) -> Iterator[BatchRow]:
        """Batches in the place of messages that cannot be read, up to an offset; with their metadata if it is whole."""
        self._lose(end)
        messages = _of_meta(head) if head is not None and head.base == self.end and head.end == end else None
        if head is not None:
            self._published_ms = max(self._published_ms, head.published_ms)
        while self.end < end:
            count = min(end - self.end, ROW_MESSAGES_MAX)
            batch = encode((messages or [_empty()] * count)[:count])
            yield self.keep(BatchRow(self.end, count, self._published_ms, 0, batch.meta, batch.body))
            messages = None if messages is None else messages[count:]

    def _lose(self, end: int) -> None:
        if self.lost and self.lost[-1][1] == self.end:
            self.lost[-1] = (self.lost[-1][0], end)
        elif self.end < end:
            self.lost.append((self.end, end))


def _empty(**fields: Any) -> Message:
    headers = {**(fields.pop("headers", None) or {}), HEADER: True}
    return Message(b"", headers=headers, ttl_ms=1, **fields)


def _of_meta(head: BatchHead) -> list[Message] | None:
    """Empty messages with the metadata of lost ones; None where that is damaged too."""
    try:
        meta = decode_meta(head.meta, head.count)
    except PenstockError:
        return None
    names = [name for name in (*_KEPT, "headers") if getattr(meta, name) is not None]
    columns = [getattr(meta, name) for name in names]
    return [_empty(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)] or [
        _empty() for _ in range(head.count)
    ]


# Groups --------------------------------------------------------------------------------------------------


class Mended:
    """The rows of a lane's groups, as far as they fit, and what did not."""

    def __init__(self, image: LaneImage, chain: Chain, groups: Iterable[int], now_ms: int) -> None:
        """`groups` are the ids of those that are declared."""
        self._old = image
        self._lost = chain.lost
        self._now_ms = now_ms
        self.damage: list[Damage] = []
        self.image = LaneImage(image.lane, image.first, chain.end, chain.bytes_end)
        for group in sorted(groups):
            self._mend(group)

    def _mend(self, group: int) -> None:
        old, new = self._old, self.image
        cursor = next((row for row in old.groups if row.group == group), None)
        if cursor is None:
            cursor = GroupRow(group, old.first, old.first)
            if old.end > old.first or old.groups:
                self._tell(f"the cursor of group {group} is lost: it begins at the first message again")
        cursor = GroupRow(group, *(min(max(value, new.first), new.end) for value in (cursor.next, cursor.committed)))
        new.groups.append(cursor)
        taken = _Taken(new.first, cursor.next)
        self._mend_dead(group, taken)
        self._mend_leases(group, taken)
        self._mend_waiting(group, taken)

    def _mend_dead(self, group: int, taken: _Taken) -> None:
        for row in self._old.dead:
            if row.group == group:
                for start, end in taken.free(row.start, row.end):
                    self.image.dead.append(msgspec.structs.replace(row, start=start, end=end))

    def _mend_leases(self, group: int, taken: _Taken) -> None:
        for row in self._old.leases:
            if row.group == group:
                entries = self._whole(row, f"lease {row.lease} of group {group}", taken)
                if entries:
                    self.image.leases.append(msgspec.structs.replace(row, entries=encode_entries(entries)))

    def _mend_waiting(self, group: int, taken: _Taken) -> None:
        chunks: dict[int, list[Entry]] = {}
        for row in self._old.waiting:
            if row.group == group:
                for entry in self._whole(row, f"waiting row {row.chunk} of group {group}", taken):
                    chunks.setdefault(entry.start // core_waiting.CHUNK_OFFSETS, []).append(entry)
        for chunk, entries in sorted(chunks.items()):
            entries.sort(key=lambda entry: entry.start)
            self.image.waiting.append(WaitingRow(group, chunk, encode_entries(entries)))

    def _whole(self, row: LeaseRow | WaitingRow, what: str, taken: _Taken) -> list[Entry]:
        """The entries of a row that are not taken yet and whose messages can be read; the others are dead."""
        try:
            entries = decode_entries(row.entries)
        except PenstockError as error:
            self._tell(f"{what} is lost: {error}")
            return []
        if not is_sorted(entries):
            self._tell(f"{what} is not in order")
        kept: list[Entry] = []
        for entry in entries:
            for start, end in taken.free(entry.start, entry.end):
                part = entry.part(start, end)
                kept += [part.part(*alive) for alive in _without(start, end, self._lost)]
                for dead in _within(start, end, self._lost):
                    self._dies(row.group, *dead, max(entry.attempts, 1))
        return kept

    def _dies(self, group: int, start: int, end: int, attempts: int) -> None:
        text = "the message could not be read from the store"
        self.image.dead.append(DeadRow(group, start, end, attempts, REASON, text, "", self._now_ms))

    def _tell(self, problem: str) -> None:
        self.damage.append(Damage("rows", problem, self._old.lane))


class _Taken:
    """Offsets of a group that have a state already: none may have two."""

    def __init__(self, first: int, following: int) -> None:
        self._first = first
        self._following = following
        self._ranges: list[tuple[int, int]] = []

    def free(self, start: int, end: int) -> list[tuple[int, int]]:
        """Those of [start, end) that are handed out, kept and in no state yet; from now on they are in one."""
        found = _without(max(start, self._first), min(end, self._following), sorted(self._ranges))
        self._ranges += found
        return found


def _without(start: int, end: int, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What sorted ranges leave of [start, end)."""
    left: list[tuple[int, int]] = []
    for low, high in ranges:
        if low >= end:
            break
        if high > start:
            if low > start:
                left.append((start, low))
            start = max(start, high)
    return [*left, (start, end)] if start < end else left


def _within(start: int, end: int, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What sorted ranges have of [start, end)."""
    return [(max(low, start), min(high, end)) for low, high in ranges if low < end and high > start]
