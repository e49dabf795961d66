"""The parked messages of a group: retries, delays, locked partitions, lower priorities.

An entry is ready (in a heap by priority, then offset), delayed (in a heap by due time), or queued behind others of its
partition. The heaps use lazy deletion: an item counts only if the entry it names is still as it says. In an ordered
group an entry is reached only through its partition: the partition is locked while any of its offsets is leased, and
only its lowest entry can be ready.
"""

from __future__ import annotations

from heapq import heappop
from typing import Final

from penstock.core.group.entries import Entry, carve, decode_entries, encode_entries, insert, is_sorted
from penstock.core.heaps import joined, push
from penstock.model.rows import WaitingRow
from penstock.model.work import MESSAGE_WORK, Budget

CHUNK_OFFSETS: Final = 64
"""A waiting row holds the entries that start within this many offsets: what one change rewrites."""
ADVANCE_WORK: Final = 3 * MESSAGE_WORK
"""What an entry costs that has become due."""


class Partition:
    """A partition of an ordered group that has something leased or waiting: its lock and its queue."""

    __slots__ = ("entries", "hold_ms", "leased")

    def __init__(self) -> None:
        self.leased = 0
        self.entries: list[Entry] = []
        self.hold_ms = 0


class Waiting:
    """The waiting entries of one group on one lane, and which chunks of them changed since the last seal."""

    __slots__ = (
        "by_start",
        "chunks",
        "count",
        "debounced",
        "dirty",
        "expiring",
        "later",
        "lowest_heap",
        "ordered",
        "partitions",
        "ready",
        "stored",
    )

    def __init__(self, *, ordered: bool, debounced: bool) -> None:
        self.ordered = ordered
        self.debounced = debounced
        self.by_start: dict[int, Entry] = {}
        self.partitions: dict[str, Partition] = {}
        self.ready: list[tuple[int, int, str]] = []
        self.later: list[tuple[int, int, str]] = []
        self.expiring: list[tuple[int, int]] = []
        self.lowest_heap: list[int] = []
        self.chunks: dict[int, set[int]] = {}
        self.dirty: set[int] = set()
        self.stored: set[int] = set()
        self.count = 0

    def __len__(self) -> int:
        return len(self.by_start)

    def load(self, row: WaitingRow) -> None:
        """Take in a stored row."""
        for entry in decode_entries(row.entries):
            self.put(entry)
        self.stored.add(row.chunk)
        self.dirty.discard(row.chunk)

    # Putting and taking -----------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Park an entry until it is due and first in its partition."""
        self._index(entry)
        if entry.expires_ms:
            push(self.expiring, (entry.expires_ms, entry.start), len(self.by_start), self._is_expiry)
        if self.ordered and entry.partition:
            self._put_in_partition(entry)
        else:
            self._offer(entry, entry.due_ms, "")

    def _index(self, entry: Entry) -> None:
        start = entry.start
        assert start < entry.end, f"an empty range waits: {entry}"
        assert start not in self.by_start, f"{entry} waits already: {self.by_start[start]}"
        assert entry.attempts >= 0, f"{entry} was taken back more often than handed out"
        self.by_start[start] = entry
        self.count += entry.end - start
        chunk = start // CHUNK_OFFSETS
        self.chunks.setdefault(chunk, set()).add(start)
        self.dirty.add(chunk)
        push(self.lowest_heap, start, len(self.by_start), self.by_start.__contains__)

    def _put_in_partition(self, entry: Entry) -> None:
        partition = self.partitions.get(entry.partition)
        if partition is None:
            partition = self.partitions[entry.partition] = Partition()
        insert(partition.entries, entry)
        if self.debounced and not entry.attempts:
            partition.hold_ms = max(partition.hold_ms, entry.due_ms)
        if partition.entries[0] is entry or self.debounced:
            self._offer_head(entry.partition, partition)

    def _offer_head(self, name: str, partition: Partition) -> None:
        if partition.entries and not partition.leased:
            head = partition.entries[0]
            self._offer(head, max(head.due_ms, partition.hold_ms), name)

    def _offer(self, entry: Entry, due_ms: int, partition: str) -> None:
        if due_ms:
            push(self.later, (due_ms, entry.start, partition), len(self.by_start), self._is_later)
        else:
            push(self.ready, (-entry.priority, entry.start, partition), len(self.by_start), self._is_offer)

    def _is_offer(self, item: tuple[int, int, str]) -> bool:
        return self._entry_at(item[1], item[2]) is not None

    def _is_later(self, item: tuple[int, int, str]) -> bool:
        entry = self._entry_at(item[1], item[2])
        return entry is not None and self._due(entry, item[2]) == item[0]

    def _is_expiry(self, item: tuple[int, int]) -> bool:
        entry = self.by_start.get(item[1])
        return entry is not None and entry.expires_ms == item[0]

    def _entry_at(self, start: int, partition: str) -> Entry | None:
        """The entry that a heap item points at, if it may be taken once it is due."""
        if not partition:
            entry = self.by_start.get(start)
            return None if entry is None or (self.ordered and entry.partition) else entry
        queue = self.partitions.get(partition)
        if queue is None or queue.leased or not queue.entries or queue.entries[0].start != start:
            return None
        return queue.entries[0]

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        del self.by_start[entry.start]
        self.count -= entry.end - entry.start
        chunk = entry.start // CHUNK_OFFSETS
        starts = self.chunks[chunk]
        starts.discard(entry.start)
        if not starts:
            del self.chunks[chunk]
        self.dirty.add(chunk)
        if self.ordered and entry.partition:
            self._remove_from_partition(entry)

    def _remove_from_partition(self, entry: Entry) -> None:
        partition = self.partitions[entry.partition]
        if partition.entries[0] is entry:
            del partition.entries[0]
        else:
            carve(partition.entries, entry.start, entry.end)
        if not partition.entries and not partition.leased:
            del self.partitions[entry.partition]
        elif not partition.leased:
            self._offer_head(entry.partition, partition)

    def join(self, other: Waiting) -> None:
        """Take over entries without partitions, of which none are here; `other` must not be used any more."""
        assert not other.partitions, f"entries of partitions {sorted(other.partitions)} are put one by one"
        self.by_start.update(other.by_start)
        self.count += other.count
        for chunk, starts in other.chunks.items():
            self.chunks.setdefault(chunk, starts).update(starts)
        self.dirty |= other.dirty
        self.ready = joined(self.ready, other.ready)
        self.later = joined(self.later, other.later)
        self.expiring = joined(self.expiring, other.expiring)
        self.lowest_heap = joined(self.lowest_heap, other.lowest_heap)

    # Partitions of an ordered group -----------------------------------------------------------------------

    def is_free(self, partition: str) -> bool:
        """Whether nothing of the partition is leased or waiting: its next message may be handed out."""
        return partition not in self.partitions

    def lock(self, partition: str, count: int) -> None:
        """Count offsets of the partition as leased."""
        queue = self.partitions.get(partition)
        if queue is None:
            queue = self.partitions[partition] = Partition()
        queue.leased += count

    def unlock(self, partition: str, count: int) -> None:
        """Count offsets of the partition as no longer leased; call after parking those that must wait."""
        queue = self.partitions[partition]
        queue.leased -= count
        assert queue.leased >= 0, f"partition {partition!r} has {queue.leased} leased offsets"
        if queue.leased == 0:
            if queue.entries:
                self._offer_head(partition, queue)
            else:
                del self.partitions[partition]

    # Taking what is ready ---------------------------------------------------------------------------------

    def advance(self, now_ms: int, budget: Budget) -> bool:
        """Make ready what has become due; False where the budget was spent before, and the next call goes on.

        An entry that was put off since has a later item in the heap.
        """
        later = self.later
        while later and later[0][0] <= now_ms:
            if budget.left <= 0:
                return False
            budget.left -= ADVANCE_WORK
            _, start, partition = heappop(later)
            entry = self._entry_at(start, partition)
            if entry is not None and self._due(entry, partition) <= now_ms:
                push(self.ready, (-entry.priority, start, partition), len(self.by_start), self._is_offer)
        return True

    def first_ready(self, now_ms: int) -> Entry | None:
        """The entry to hand out next: highest priority, then lowest offset. Call `advance` first."""
        while self.ready:
            _, start, partition = self.ready[0]
            entry = self._entry_at(start, partition)
            if entry is not None and self._due(entry, partition) <= now_ms:
                return entry
            heappop(self.ready)
        return None

    def _due(self, entry: Entry, partition: str) -> int:
        return max(entry.due_ms, self.partitions[partition].hold_ms) if partition else entry.due_ms

    def head_of(self, partition: str, now_ms: int) -> Entry | None:
        """The first entry of a partition, if the partition is not locked and the entry is due."""
        queue = self.partitions.get(partition)
        if queue is None or queue.leased or not queue.entries:
            return None
        head = queue.entries[0]
        return head if self._due(head, partition) <= now_ms else None

    def follower(self, partition: str, now_ms: int) -> Entry | None:
        """The next entry of a partition that the caller has just locked, if it is due."""
        queue = self.partitions[partition]
        return queue.entries[0] if queue.entries and queue.entries[0].due_ms <= now_ms else None

    def stands_behind(self, partition: str) -> bool:
        """Whether messages of the partition wait: a later one must not pass them."""
        queue = self.partitions.get(partition)
        return queue is not None and bool(queue.entries)

    def take(self, entry: Entry, most: int) -> Entry:
        """Remove up to `most` offsets from an entry's low end; the rest stays parked."""
        self.remove(entry)
        if entry.end - entry.start <= most:
            return entry
        middle = entry.start + most
        self.put(entry.part(middle, entry.end))
        return entry.part(entry.start, middle)

    # Times and lowest offset ------------------------------------------------------------------------------

    def first_due(self) -> int | None:
        """When the next entry becomes due: perhaps too early, never too late."""
        return self.later[0][0] if self.later else None

    def first_expiry(self) -> int | None:
        """When the next entry expires."""
        while self.expiring:
            if self._is_expiry(self.expiring[0]):
                return self.expiring[0][0]
            heappop(self.expiring)
        return None

    def pop_expired(self, now_ms: int) -> Entry | None:
        """Remove and return an entry that is past its ttl."""
        expires_ms = self.first_expiry()
        if expires_ms is None or expires_ms > now_ms:
            return None
        entry = self.by_start[heappop(self.expiring)[1]]
        self.remove(entry)
        return entry

    def lowest(self) -> int | None:
        """The lowest waiting offset."""
        heap = self.lowest_heap
        while heap and heap[0] not in self.by_start:
            heappop(heap)
        return heap[0] if heap else None

    def in_order(self) -> list[Entry]:
        """All entries by rising offset."""
        return [self.by_start[start] for start in sorted(self.by_start)]

    def clear(self) -> list[Entry]:
        """Remove every entry; locks of leased partitions stay. Returns the entries by rising offset."""
        entries = self.in_order()
        self.dirty.update(self.chunks)
        self.count = 0
        for index in (self.by_start, self.chunks, self.ready, self.later, self.expiring, self.lowest_heap):
            index.clear()
        self.partitions = {name: partition for name, partition in self.partitions.items() if partition.leased}
        for partition in self.partitions.values():
            partition.entries.clear()
        return entries

    def seal(self, group: int) -> tuple[list[WaitingRow], list[tuple[int, int]]]:
        """The rows to put and to delete for the chunks that changed."""
        rows: list[WaitingRow] = []
        deleted: list[tuple[int, int]] = []
        for chunk in self.dirty:
            starts = self.chunks.get(chunk)
            if starts:
                self.stored.add(chunk)
                by_start = self.by_start
                rows.append(WaitingRow(group, chunk, encode_entries([by_start[start] for start in sorted(starts)])))
            elif chunk in self.stored:
                self.stored.discard(chunk)
                deleted.append((group, chunk))
        self.dirty.clear()
        return rows, deleted

    # Invariants -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that counters and indexes say what a recount says, and that every entry will come up."""
        if not self.by_start:
            assert not any(self.chunks.values()), f"nothing waits, chunked are {self.chunks}"
            assert not self.count, f"no offset waits, counted are {self.count}"
            assert self.lowest() is None, f"nothing waits, the lowest offset is {self.lowest()}"
            self._check_partitions([])
            return
        entries = self.in_order()
        assert is_sorted(entries), f"waiting entries overlap: {entries}"
        assert all(start == entry.start for start, entry in self.by_start.items()), "an entry is filed elsewhere"
        count = sum(entry.count for entry in entries)
        assert self.count == count, f"{count} offsets wait, counted are {self.count}"
        chunked = sorted(start for starts in self.chunks.values() for start in starts)
        assert chunked == sorted(self.by_start), f"entries at {sorted(self.by_start)}, chunked are {chunked}"
        lowest = min(self.by_start, default=None)
        assert self.lowest() == lowest, f"the lowest waiting offset is {lowest}, not {self.lowest()}"
        for entry in entries:
            assert not entry.expires_ms or (entry.expires_ms, entry.start) in self.expiring, f"{entry} never expires"
        self._check_partitions(entries)
        self._check_offers(entries)

    def _check_partitions(self, entries: list[Entry]) -> None:
        assert self.ordered or not self.partitions, f"partitions {sorted(self.partitions)} in an unordered group"
        for name, partition in self.partitions.items():
            queued = [entry for entry in entries if entry.partition == name]
            assert partition.entries == queued, f"partition {name!r} has {queued}, queued are {partition.entries}"
            assert partition.leased or queued, f"partition {name!r} is locked by nothing"

    def _check_offers(self, entries: list[Entry]) -> None:
        """Each entry that may be taken once it is due is in a heap under its time, or is ready."""
        ready = {(start, partition) for _, start, partition in self.ready}
        later = {(due_ms, start, partition) for due_ms, start, partition in self.later}
        for entry in entries:
            name = entry.partition if self.ordered else ""
            if self._entry_at(entry.start, name) is entry:
                offered = (entry.start, name) in ready or (self._due(entry, name), entry.start, name) in later
                assert offered, f"{entry} would never be handed out"
