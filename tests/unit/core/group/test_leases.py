"""Leases: deadlines, lowest offsets, who holds what, rows of a seal, and heaps that do not grow."""

from __future__ import annotations

from penstock.core.group.entries import Entry, decode_entries
from penstock.core.group.leases import Lease, Leases
from penstock.core.heaps import SLACK
from penstock.model.rows import LeaseRow


def made(leases: Leases, id: int, start: int, end: int, deadline_ms: int = 10, consumer: str = "ann") -> Lease:
    lease = Lease(id, consumer, deadline_ms, [Entry(start, end, 1)])
    leases.add(lease)
    return lease


def test_deadlines_come_up_in_order() -> None:
    leases = Leases()
    made(leases, 1, 0, 1, 30)
    made(leases, 2, 1, 2, 10)
    late = made(leases, 3, 2, 3, 20)
    leases.extend(late, 40)
    assert leases.first_deadline() == 10
    assert leases.pop_expired(9) is None
    found = []
    while (lease := leases.pop_expired(30)) is not None:
        leases.take_all(lease)
        found.append(lease.id)
    assert found == [2, 1]
    leases.extend(late, 5)
    assert leases.first_deadline() == 5


def test_the_lowest_offset_moves_with_what_is_taken() -> None:
    leases = Leases()
    low = made(leases, 1, 0, 4)
    made(leases, 2, 4, 6)
    assert leases.lowest() == 0
    assert leases.take(low, 0, 2) == [Entry(0, 2, 1)]
    assert leases.lowest() == 2
    assert leases.count == 4
    leases.take(low, 2, 4)
    assert leases.lowest() == 4
    assert 1 not in leases.by_id


def test_leases_of_a_consumer() -> None:
    leases = Leases()
    first = made(leases, 1, 0, 1)
    made(leases, 2, 1, 2, consumer="bob")
    made(leases, 3, 2, 3)
    assert [lease.id for lease in leases.of("ann")] == [1, 3]
    leases.take_all(first)
    assert [lease.id for lease in leases.of("ann")] == [3]
    leases.take_all(leases.by_id[3])
    assert leases.of("ann") == []
    assert set(leases.by_consumer) == {"bob"}


def test_a_seal_writes_what_changed() -> None:
    leases = Leases()
    lease = made(leases, 1, 0, 4)
    gone = made(leases, 2, 4, 5)
    leases.take_all(gone)
    rows, deleted = leases.seal(9)
    assert [(row.group, row.lease, row.deadline_ms, row.consumer) for row in rows] == [(9, 1, 10, "ann")]
    assert deleted == []
    leases.take(lease, 1, 2)
    rows, _ = leases.seal(9)
    assert decode_entries(rows[0].entries) == [Entry(0, 1, 1), Entry(2, 4, 1)]
    leases.take_all(lease)
    assert leases.seal(9) == ([], [(9, 1)])
    assert leases.seal(9) == ([], [])


def test_a_loaded_lease_is_not_written_again() -> None:
    source = Leases()
    made(source, 1, 0, 4)
    rows, _ = source.seal(9)
    leases = Leases()
    loaded = leases.load(LeaseRow(9, 1, 10, "ann", rows[0].entries))
    assert loaded.entries == [Entry(0, 4, 1)]
    assert (leases.count, leases.lowest(), leases.first_deadline()) == (4, 0, 10)
    assert leases.seal(9) == ([], [])


def test_renewed_leases_leave_no_trail() -> None:
    leases = Leases()
    lease = made(leases, 1, 0, 1)
    for deadline_ms in range(20, 10 * SLACK):
        leases.extend(lease, deadline_ms)
    assert len(leases.deadlines) <= SLACK + 3
    for id in range(2, 5 * SLACK):
        leases.take_all(made(leases, id, 2 * id, 2 * id + 1))
    assert len(leases.lowest_heap) <= SLACK + 3
    assert leases.lowest() == 0
