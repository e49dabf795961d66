"""The dead letters of one group on one lane: offsets kept in place, with the reason.

They stay until redriven or purged, and retention keeps their batches. Knows nothing of when messages die.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from penstock.model.rows import DeadRow


def _part(row: DeadRow, start: int, end: int) -> DeadRow:
    return DeadRow(row.group, start, end, row.attempts, row.reason, row.error, row.consumer, row.dead_ms)


class Dead:
    """Dead ranges by rising offset, and which of them changed since the last seal."""

    __slots__ = ("by_start", "count", "dirty", "starts", "stored")

    def __init__(self) -> None:
        self.by_start: dict[int, DeadRow] = {}
        self.starts: list[int] = []
        self.count = 0
        self.dirty: set[int] = set()
        self.stored: set[int] = set()

    def load(self, row: DeadRow) -> None:
        """Take in a stored row."""
        self.add(row)
        self.stored.add(row.start)
        self.dirty.discard(row.start)

    def add(self, row: DeadRow) -> None:
        """Keep a range that died."""
        assert row.start < row.end, f"an empty range died: {row}"
        low, high = self._span(row.start, row.end)
        assert low == high, f"{row} overlaps {self.overlapping(row.start, row.end)}"
        self.starts.insert(low, row.start)
        self.by_start[row.start] = row
        self.count += row.end - row.start
        self.dirty.add(row.start)

    def join(self, other: Dead) -> None:
        """Take over ranges of which none are here; those of `other` must not be used any more."""
        if other.starts:
            self.starts += other.starts
            self.starts.sort()
            self.by_start.update(other.by_start)
            self.count += other.count
            self.dirty |= other.dirty

    def overlapping(self, start: int, end: int) -> list[DeadRow]:
        """The rows within [start, end), cut to it."""
        if start >= end:
            return []
        low, high = self._span(start, end)
        rows = [self.by_start[at] for at in self.starts[low:high]]
        return [_part(row, max(row.start, start), min(row.end, end)) for row in rows]

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """The indexes in `starts` of the rows that overlap [start, end)."""
        low = bisect_right(self.starts, start) - 1
        if low < 0 or self.by_start[self.starts[low]].end <= start:
            low += 1
        return low, max(low, bisect_left(self.starts, end))

    def take(self, start: int, end: int) -> list[DeadRow]:
        """Remove what is dead of [start, end); returns it."""
        if start >= end:
            return []
        taken = self.overlapping(start, end)
        low, high = self._span(start, end)
        rows = [self.by_start.pop(at) for at in self.starts[low:high]]
        del self.starts[low:high]
        for row in rows:
            self.count -= row.end - row.start
            self.dirty.add(row.start)
        if rows and rows[0].start < start:
            self.add(_part(rows[0], rows[0].start, start))
        if rows and end < rows[-1].end:
            self.add(_part(rows[-1], end, rows[-1].end))
        return taken

    def seal(self, group: int) -> tuple[list[DeadRow], list[tuple[int, int]]]:
        """The rows to put and to delete."""
        put = self.dirty & self.by_start.keys()
        gone = (self.dirty - put) & self.stored
        self.stored -= gone
        self.stored |= put
        self.dirty.clear()
        return [self.by_start[start] for start in put], [(group, start) for start in gone]

    def check(self) -> None:
        """Assert that dead ranges are sorted, disjoint and counted."""
        assert self.starts == sorted(self.by_start), f"dead ranges at {sorted(self.by_start)}, sorted are {self.starts}"
        end = count = 0
        for start in self.starts:
            row = self.by_start[start]
            assert end <= start == row.start < row.end, f"{row} overlaps what ends at {end}, or is empty"
            end = row.end
            count += end - start
        assert self.count == count, f"{count} offsets are dead, counted are {self.count}"
