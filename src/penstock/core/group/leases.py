"""The leases of one group on one lane: which consumer holds which offsets, and until when.

Deadlines and lowest offsets are heaps with lazy deletion (`core/heaps.py`). Knows nothing of what becomes of offsets
that leave a lease.
"""

from __future__ import annotations

from heapq import heappop, heappush

import msgspec

from penstock.core.group.entries import Entry, carve, count_of, decode_entries, encode_entries, is_sorted
from penstock.core.heaps import push
from penstock.model.rows import LeaseRow


class Lease(msgspec.Struct, eq=False, gc=False):
    """Offsets handed to one consumer until a deadline, or until its session ends."""

    id: int
    consumer: str
    deadline_ms: int
    entries: list[Entry]
    session: str = ""
    """The session that claimed them; empty for none."""


class Leases:
    """The leases of a group by id, and which of them changed since the last seal."""

    __slots__ = ("by_consumer", "by_id", "by_session", "count", "deadlines", "dirty", "lowest_heap", "stored")

    def __init__(self) -> None:
        self.by_id: dict[int, Lease] = {}
        self.by_consumer: dict[str, set[int]] = {}
        self.by_session: dict[str, set[int]] = {}
        """Only of leases that a session holds."""
        self.count = 0
        self.deadlines: list[tuple[int, int]] = []
        self.lowest_heap: list[tuple[int, int]] = []
        self.dirty: set[int] = set()
        self.stored: set[int] = set()

    def load(self, row: LeaseRow) -> Lease:
        """Take in a stored lease."""
        lease = Lease(row.lease, row.consumer, row.deadline_ms, decode_entries(row.entries), row.session)
        self._index(lease)
        self.stored.add(lease.id)
        return lease

    def add(self, lease: Lease) -> None:
        """Keep a new lease."""
        assert lease.id not in self.by_id, f"lease {lease.id} exists: {lease.consumer!r} must get another id"
        assert lease.entries, f"lease {lease.id} of nothing"
        assert len(lease.entries) == 1 or is_sorted(lease.entries), f"ranges of lease {lease.id}: {lease.entries}"
        self._index(lease)
        self.dirty.add(lease.id)

    def _index(self, lease: Lease) -> None:
        id, entries = lease.id, lease.entries
        self.by_id[id] = lease
        ids = self.by_consumer.get(lease.consumer)
        if ids is None:
            self.by_consumer[lease.consumer] = {id}
        else:
            ids.add(id)
        if lease.session:
            self.by_session.setdefault(lease.session, set()).add(id)
        self.count += count_of(entries)
        live = len(self.by_id)
        push(self.deadlines, (lease.deadline_ms, id), live, self._is_deadline)
        push(self.lowest_heap, (entries[0].start, id), live, self._is_lease)

    def _is_deadline(self, item: tuple[int, int]) -> bool:
        lease = self.by_id.get(item[1])
        return lease is not None and lease.deadline_ms == item[0]

    def _is_lease(self, item: tuple[int, int]) -> bool:
        return item[1] in self.by_id

    def take(self, lease: Lease, start: int, end: int) -> list[Entry]:
        """Remove [start, end) from a lease that covers it; a lease without offsets ends. Returns what was removed."""
        if start <= lease.entries[0].start and lease.entries[-1].end <= end:
            return self.take_all(lease)
        taken = carve(lease.entries, start, end)
        count = count_of(taken)
        assert count == end - start, f"{count} offsets of [{start}, {end}) were in lease {lease.id}"
        self.count -= count
        self.dirty.add(lease.id)
        return taken

    def take_all(self, lease: Lease) -> list[Entry]:
        """End a lease; returns its entries."""
        del self.by_id[lease.id]
        _unindex(self.by_consumer, lease.consumer, lease.id)
        if lease.session:
            _unindex(self.by_session, lease.session, lease.id)
        self.count -= count_of(lease.entries)
        assert self.count >= 0, f"{self.count} offsets are leased after the end of lease {lease.id}"
        self.dirty.add(lease.id)
        return lease.entries

    def keep(self, lease: Lease, entries: list[Entry]) -> None:
        """Leave a lease only some of its entries, by rising offset."""
        self.count -= count_of(lease.entries) - count_of(entries)
        lease.entries = entries
        self.dirty.add(lease.id)

    def of(self, consumer: str) -> list[Lease]:
        """The leases that a consumer holds, oldest first."""
        return [self.by_id[id] for id in sorted(self.by_consumer.get(consumer, ()))]

    def of_session(self, session: str) -> list[Lease]:
        """The leases that a session holds, oldest first."""
        return [self.by_id[id] for id in sorted(self.by_session.get(session, ()))]

    def extend(self, lease: Lease, deadline_ms: int) -> None:
        """Set another deadline."""
        lease.deadline_ms = deadline_ms
        push(self.deadlines, (deadline_ms, lease.id), len(self.by_id), self._is_deadline)
        self.dirty.add(lease.id)

    def first_deadline(self) -> int | None:
        """The earliest deadline; None without leases."""
        while self.deadlines:
            if self._is_deadline(self.deadlines[0]):
                return self.deadlines[0][0]
            heappop(self.deadlines)
        return None

    def pop_expired(self, now_ms: int) -> Lease | None:
        """A lease whose deadline has passed; the caller ends it with `take_all`."""
        deadline_ms = self.first_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        return self.by_id[heappop(self.deadlines)[1]]

    def lowest(self) -> int | None:
        """The lowest offset in any lease."""
        while self.lowest_heap:
            start, id = self.lowest_heap[0]
            lease = self.by_id.get(id)
            if lease is not None and lease.entries[0].start == start:
                return start
            heappop(self.lowest_heap)
            if lease is not None:
                heappush(self.lowest_heap, (lease.entries[0].start, id))
        return None

    def seal(self, group: int) -> tuple[list[LeaseRow], list[tuple[int, int]]]:
        """The rows to put and to delete. A lease that began and ended since the last seal writes nothing."""
        rows: list[LeaseRow] = []
        deleted: list[tuple[int, int]] = []
        for id in self.dirty:
            lease = self.by_id.get(id)
            if lease is not None:
                self.stored.add(id)
                entries = encode_entries(lease.entries)
                rows.append(LeaseRow(group, id, lease.deadline_ms, lease.consumer, entries, lease.session))
            elif id in self.stored:
                self.stored.discard(id)
                deleted.append((group, id))
        self.dirty.clear()
        return rows, deleted

    # Invariants -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that counters and indexes say what a recount says."""
        if not self.by_id:
            assert not self.by_consumer, f"nothing is leased, indexed are {self.by_consumer}"
            assert not self.by_session, f"nothing is leased, indexed are {self.by_session}"
            assert not self.count, f"no offset is leased, counted are {self.count}"
            assert self.lowest() is None, f"nothing is leased, the lowest offset is {self.lowest()}"
            return
        held: dict[str, set[int]] = {}
        in_session: dict[str, set[int]] = {}
        for id, lease in self.by_id.items():
            held.setdefault(lease.consumer, set()).add(id)
            if lease.session:
                in_session.setdefault(lease.session, set()).add(id)
            assert lease.id == id, f"lease {lease.id} is filed as {id}"
            assert lease.entries, f"lease {id} of nothing"
            assert is_sorted(lease.entries), f"lease {id} holds ranges that do not rise: {lease.entries}"
            assert min(entry.attempts for entry in lease.entries) >= 1, f"lease {id} has unspent attempts"
            assert (lease.deadline_ms, id) in self.deadlines, f"lease {id} would never expire"
        assert self.by_consumer == held, f"consumers hold {held}, indexed are {self.by_consumer}"
        assert self.by_session == in_session, f"sessions hold {in_session}, indexed are {self.by_session}"
        count = sum(count_of(lease.entries) for lease in self.by_id.values())
        assert self.count == count, f"{count} offsets are leased, counted are {self.count}"
        lowest = min((lease.entries[0].start for lease in self.by_id.values()), default=None)
        assert self.lowest() == lowest, f"the lowest leased offset is {lowest}, not {self.lowest()}"


def _unindex(index: dict[str, set[int]], key: str, id: int) -> None:
    ids = index[key]
    ids.discard(id)
    if not ids:
        del index[key]
