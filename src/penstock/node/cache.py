"""The hot tail: batches lately appended or read, by lane and base, up to a number of bytes.

A consumer that keeps up is served from here and never reads the store.
"""

from __future__ import annotations

from collections.abc import Set

from penstock.batch import EncodedBatch, Reader, is_large
from penstock.model.rows import BatchRow, slot_of

OVERHEAD_BYTES = 500
"""What a batch costs beside its bytes; keeps a million tiny batches from passing as nothing."""


class CachedBatch:
    """A batch with its place, opened once for all who read from it."""

    __slots__ = ("base", "cost", "end", "published_ms", "reader")

    def __init__(self, row: BatchRow, is_checked: bool) -> None:
        self.base = row.base
        self.end = row.base + row.count
        self.published_ms = row.published_ms
        self.reader = Reader(EncodedBatch(row.count, row.meta, row.body), is_checked=is_checked)
        self.cost = self.reader.size + OVERHEAD_BYTES


class BatchCache:
    """Least recently used batches go first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        """Batches that deliveries found here, and those they had to read: counted by who delivers, once a batch."""
        self._batches: dict[tuple[int, int], CachedBatch] = {}

    def put(self, lane: int, row: BatchRow, *, is_checked: bool = False) -> CachedBatch:
        """Keep a batch, in place of an older one of the same base; as it is kept.

        `is_checked` when it comes from a publish: what comes from the store has its checksum looked at.
        """
        batch = CachedBatch(row, is_checked or row.is_intact)
        self.forget(lane, row.base)
        self._batches[lane, row.base] = batch
        self.bytes += batch.cost
        while self.bytes > self.bytes_max:
            key = next(iter(self._batches))
            self.bytes -= self._batches.pop(key).cost
        return batch

    def keeps(self, row: BatchRow, lag_bytes: int) -> bool:
        """Whether a batch cached now would survive until a reader `lag_bytes` behind reaches it.

        What the reader passes on its way is cached too. That costs at least twice its bytes, unless its payloads are
        large, as they will be if this batch's are. The batch that the reader is in counts as one like this.
        """
        passed = lag_bytes + len(row.body)
        return (1 if is_large(row.body, row.count) else 2) * passed <= self.bytes_max

    def get(self, lane: int, base: int) -> CachedBatch | None:
        batch = self._batches.pop((lane, base), None)
        if batch is not None:
            self._batches[lane, base] = batch
        return batch

    def look(self, lane: int, base: int) -> CachedBatch | None:
        """A batch if it is kept; it is not thereby used."""
        return self._batches.get((lane, base))

    def has(self, lane: int, base: int) -> bool:
        """Whether a batch is kept; it is not thereby used."""
        return (lane, base) in self._batches

    def trimmed(self, lane: int, start: int, end: int) -> None:
        """The batches from start to end are gone from the log, so nobody comes for them again.

        Memory that is used over and over stays in the processor's cache; a tail of what is done pushes it out.
        """
        while start < end and (batch := self._batches.pop((lane, start), None)) is not None:
            self.bytes -= batch.cost
            start = batch.end

    def forget_lanes(self, lanes: set[int]) -> None:
        """What is kept of these lanes may not be what is stored."""
        for lane, base in [key for key in self._batches if key[0] in lanes] if lanes else ():
            self.forget(lane, base)

    def slots_lost(self, slots: Set[int]) -> None:
        """Another node writes to these slots' lanes now, whether they are loaded here or not."""
        for lane, base in [key for key in self._batches if slot_of(key[0]) in slots]:
            self.forget(lane, base)

    def clear(self) -> None:
        """Memory is low: everything can be read again."""
        self._batches.clear()
        self.bytes = 0

    def forget(self, lane: int, base: int) -> None:
        batch = self._batches.pop((lane, base), None)
        if batch is not None:
            self.bytes -= batch.cost
