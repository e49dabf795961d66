"""Waiting entries: what is ready when, partitions and their locks, rows, and heaps that do not grow."""

from __future__ import annotations

import time

from penstock.core.group.entries import Entry, decode_entries
from penstock.core.group.waiting import CHUNK_OFFSETS, Waiting
from penstock.core.heaps import SLACK
from penstock.model.rows import WaitingRow
from penstock.model.work import Budget

MANY = 20_000


def free() -> Waiting:
    return Waiting(ordered=False, debounced=False)


def ordered(*, debounced: bool = False) -> Waiting:
    return Waiting(ordered=True, debounced=debounced)


def taken(waiting: Waiting, now_ms: int, most: int = 100) -> list[tuple[int, int]]:
    """All that is ready, in the order in which it is offered."""
    found = []
    waiting.advance(now_ms, Budget())
    while (entry := waiting.first_ready(now_ms)) is not None:
        piece = waiting.take(entry, most)
        found.append((piece.start, piece.end))
        waiting.advance(now_ms, Budget())
    return found


def test_ready_by_priority_then_offset() -> None:
    waiting = free()
    for start, priority in ((4, 0), (2, 1), (0, 0), (6, 9)):
        waiting.put(Entry(start, start + 1, priority=priority))
    assert taken(waiting, 0) == [(6, 7), (2, 3), (0, 1), (4, 5)]
    assert len(waiting) == waiting.count == 0


def test_later_until_due() -> None:
    waiting = free()
    waiting.put(Entry(0, 5, due_ms=10))
    waiting.put(Entry(5, 6, due_ms=20))
    assert waiting.first_due() == 10
    assert taken(waiting, 9) == []
    assert taken(waiting, 10, 3) == [(0, 3), (3, 5)]
    assert waiting.lowest() == 5


def test_an_entry_put_off_again_is_not_ready_by_its_old_time() -> None:
    waiting = free()
    waiting.put(Entry(0, 1, due_ms=10))
    waiting.advance(10, Budget())
    entry = waiting.first_ready(10)
    assert entry is not None
    waiting.remove(entry)
    waiting.put(entry.moved(1, 30))
    assert taken(waiting, 20) == []
    assert taken(waiting, 30) == [(0, 1)]


def test_only_the_head_of_a_partition_is_offered() -> None:
    waiting = ordered()
    waiting.put(Entry(1, 2, partition="p"))
    waiting.put(Entry(3, 4, partition="p"))
    waiting.put(Entry(2, 3))
    waiting.advance(0, Budget())
    head = waiting.first_ready(0)
    assert head == Entry(1, 2, partition="p")
    waiting.lock("p", 1)
    waiting.remove(head)
    assert taken(waiting, 0) == [(2, 3)]
    assert waiting.head_of("p", 0) is None
    assert not waiting.is_free("p")
    waiting.unlock("p", 1)
    assert taken(waiting, 0) == [(3, 4)]
    assert waiting.is_free("p")
    assert waiting.partitions == {}


def test_an_entry_put_before_the_head_becomes_the_head() -> None:
    waiting = ordered()
    waiting.put(Entry(5, 6, partition="p"))
    waiting.put(Entry(1, 2, due_ms=10, partition="p"))
    assert taken(waiting, 9) == []
    assert waiting.stands_behind("p")
    assert taken(waiting, 10) == [(1, 2), (5, 6)]


def test_a_quiet_partition() -> None:
    waiting = ordered(debounced=True)
    waiting.put(Entry(0, 1, due_ms=10, partition="p"))
    waiting.put(Entry(1, 2, due_ms=15, partition="p"))
    assert taken(waiting, 14) == []
    assert taken(waiting, 15) == [(0, 1), (1, 2)]


def test_expiry() -> None:
    waiting = ordered()
    waiting.put(Entry(0, 3, expires_ms=10, partition="p"))
    waiting.put(Entry(3, 4, expires_ms=5))
    piece = waiting.take(waiting.by_start[0], 1)
    assert (piece.start, piece.end) == (0, 1)
    assert waiting.first_expiry() == 5
    found = []
    while (entry := waiting.pop_expired(10)) is not None:
        found.append((entry.start, entry.end))
    assert found == [(3, 4), (1, 3)]
    assert waiting.first_expiry() is None
    assert waiting.partitions == {}


def test_clear_keeps_the_locks_of_what_is_leased() -> None:
    waiting = ordered()
    waiting.lock("p", 2)
    waiting.put(Entry(0, 1, partition="p"))
    waiting.put(Entry(5, 6, partition="q", due_ms=9, expires_ms=20))
    waiting.put(Entry(2, 3))
    waiting.seal(1)
    assert [entry.start for entry in waiting.clear()] == [0, 2, 5]
    assert (waiting.count, waiting.lowest(), waiting.first_due(), waiting.first_expiry()) == (0, None, None, None)
    assert set(waiting.partitions) == {"p"}
    assert waiting.seal(1) == ([], [(1, 0)])
    waiting.unlock("p", 2)
    assert waiting.partitions == {}


def test_rows_by_chunks() -> None:
    waiting = ordered()
    first = Entry(CHUNK_OFFSETS - 1, CHUNK_OFFSETS + 5, 2, 7, 9, 3, "p")  # it reaches into the next chunk
    second = Entry(CHUNK_OFFSETS + 5, CHUNK_OFFSETS + 6, partition="p")
    waiting.put(second)
    waiting.put(first)
    rows, deleted = waiting.seal(1)
    assert {row.chunk: decode_entries(row.entries) for row in rows} == {0: [first], 1: [second]}
    assert deleted == []
    loaded = ordered()
    for row in rows:
        loaded.load(WaitingRow(1, row.chunk, row.entries))
    assert loaded.seal(1) == ([], [])
    assert loaded.in_order() == [first, second]
    assert loaded.partitions["p"].entries == [first, second]
    loaded.remove(first)
    assert loaded.seal(1) == ([], [(1, 0)])


def test_a_busy_debounced_partition_leaves_no_trail() -> None:
    waiting = ordered(debounced=True)
    waiting.put(Entry(0, 1, due_ms=100, partition="p"))
    for now_ms in range(1, 20 * SLACK):  # short-lived messages keep the partition from becoming quiet
        entry = Entry(now_ms, now_ms + 1, due_ms=now_ms + 100, partition="p")
        waiting.put(entry)
        waiting.remove(entry)
        waiting.advance(now_ms, Budget())
    assert len(waiting.later) <= 2 * SLACK
    assert waiting.first_ready(20 * SLACK) is None
    assert taken(waiting, 20 * SLACK + 100) == [(0, 1)]


def test_claims_of_single_partitions_leave_no_trail() -> None:
    waiting = ordered()
    waiting.put(Entry(0, 1, partition="first"))  # stays on top of what is ready
    for index in range(1, 10 * SLACK):
        waiting.put(Entry(index, index + 1, due_ms=index, partition="p"))
        waiting.advance(index, Budget())
        head = waiting.head_of("p", index)
        assert head is not None
        waiting.remove(head)
    assert len(waiting.ready) <= 2 * SLACK


def test_a_crowd_behind_one_head_is_cleared_quickly() -> None:
    waiting = ordered()
    for index in range(MANY):
        waiting.put(Entry(index, index + 1, partition="p" if index % 2 else f"q{index}"))
    before = time.perf_counter()
    assert len(waiting.clear()) == MANY
    assert time.perf_counter() - before < 1.0
