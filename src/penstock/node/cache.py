"""The hot tail: batches lately appended or read, by lane and base, up to a number of bytes.

A consumer that keeps up is served from here and never reads the store.
"""

from __future__ import annotations

from penstock.rows import BatchRow

OVERHEAD_BYTES = 300
"""What a batch costs beside its bytes; keeps a million tiny batches from passing as nothing."""


class BatchCache:
    """Least recently used batches go first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._rows: dict[tuple[int, int], BatchRow] = {}

    def put(self, lane: int, row: BatchRow) -> None:
        old = self._rows.pop((lane, row.base), None)
        if old is not None:
            self.bytes -= old.size + OVERHEAD_BYTES
        self._rows[lane, row.base] = row
        self.bytes += row.size + OVERHEAD_BYTES
        while self.bytes > self.bytes_max:
            key = next(iter(self._rows))
            self.bytes -= self._rows.pop(key).size + OVERHEAD_BYTES

    def get(self, lane: int, base: int) -> BatchRow | None:
        row = self._rows.pop((lane, base), None)
        if row is None:
            self.misses += 1
            return None
        self._rows[lane, base] = row
        self.hits += 1
        return row

    def forget(self, lane: int, base: int) -> None:
        row = self._rows.pop((lane, base), None)
        if row is not None:
            self.bytes -= row.size + OVERHEAD_BYTES
