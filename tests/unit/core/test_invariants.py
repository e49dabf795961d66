"""The assertions of the core, seen to fire: each test breaks the state on purpose.

The first table breaks what a command relies on or does, and the command must stop; the second breaks a state at rest,
and `check` must find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from penstock.core.dedup import Dedup
from penstock.core.group import claim as claiming
from penstock.core.group.dead import Dead
from penstock.core.group.entries import Entry
from penstock.core.group.leases import Lease, Leases
from penstock.core.group.waiting import Partition, Waiting
from penstock.core.lane import retention
from penstock.core.log import Log
from penstock.model import GroupConfig, Message
from penstock.model.rows import BatchHead, DeadRow, DedupRow
from penstock.model.verdict import Verdict
from tests.unit.core.lanes import Bench, keyed, plain

NOW = 1_000_000


def stocked(**options: Any) -> Bench:
    """Ten messages: 0 to 2 leased, 3 waiting, 4 dead, the others ready."""
    bench = Bench(**options)
    bench.publish(NOW, *(keyed(*"aaabcdefgh") if options.get("ordered") else plain(10)))
    assert bench.claim(NOW, 3) == [0, 1, 2]
    bench.claim(NOW, 2, lease=2)
    bench.settle(NOW, 2, "postpone", (3, 4), delay_ms=50)
    bench.settle(NOW, 2, "reject", (4, 5))
    bench.commit(NOW)
    bench.lane.check()
    return bench


def ordered() -> Bench:
    return stocked(ordered=True)


def row(start: int, end: int) -> DeadRow:
    return DeadRow(1, start, end, 1, "rejected", "", "ann", NOW)


def head(base: int, count: int) -> BatchHead:
    return BatchHead(base, count, NOW, 100, 10, b"")


def waiting(*entries: Entry) -> Waiting:
    made = Waiting(ordered=False, debounced=False)
    for entry in entries:
        made.put(entry)
    return made


def dead(*rows: DeadRow) -> Dead:
    made = Dead()
    for one in rows:
        made.add(one)
    return made


# Commands that must stop ----------------------------------------------------------------------------------


def twice_the_same_lease() -> None:
    stocked().claim(NOW, 1)


def a_lease_of_nothing() -> None:
    Leases().add(Lease(1, "ann", NOW, []))


def a_lease_of_overlapping_ranges() -> None:
    Leases().add(Lease(1, "ann", NOW, [Entry(0, 3, 1), Entry(2, 4, 1)]))


def taking_what_a_lease_does_not_hold() -> None:
    leases = Leases()
    lease = Lease(1, "ann", NOW, [Entry(0, 3, 1), Entry(5, 7, 1)])
    leases.add(lease)
    leases.take(lease, 1, 6)


def ending_more_than_is_leased() -> None:
    bench = stocked()
    bench.work.leases.count = 1
    bench.settle(NOW, 1, "ack")


def a_lease_that_ends_at_once() -> None:
    stocked().claim(NOW, 1, lease=9, lease_ms=0)


def handing_out_without_an_attempt() -> None:
    bench = stocked()
    with patch.object(claiming, "_take_plain", lambda *_: Entry(2, 3)):
        bench.claim(NOW, 1, lease=9)


def handing_out_what_the_cursor_has_not_passed() -> None:
    bench = stocked()
    with patch.object(claiming, "_take_plain", lambda *_: Entry(8, 9, 1)):
        bench.claim(NOW, 1, lease=9)


def handing_out_more_than_was_asked_for() -> None:
    bench = stocked()
    with patch.object(claiming, "_take", lambda *_: [Entry(0, 5, 1)]):
        bench.claim(NOW, 2, lease=9)


def spending_more_than_the_rate() -> None:
    bench = Bench(rate=2.0)
    bench.publish(NOW, *plain(5))
    with patch.object(claiming, "room_for", lambda *_: 5):
        bench.claim(NOW, 5)


def a_cursor_past_the_end() -> None:
    stocked().work.move_to(11)


def a_cursor_below_what_is_kept() -> None:
    bench = stocked()
    bench.lane.first = 3
    bench.work.move_to(2)


def waiting_for_nothing() -> None:
    waiting(Entry(3, 3))


def waiting_twice() -> None:
    waiting(Entry(3, 4), Entry(3, 5))


def taking_back_what_was_never_handed_out() -> None:
    waiting(Entry(3, 4, -1))


def unlocking_more_than_is_locked() -> None:
    bench = ordered()
    bench.work.waiting.partitions["a"].leased = 1
    bench.settle(NOW, 1, "ack")


def dying_twice() -> None:
    dead(row(3, 6), row(5, 7))


def a_death_of_nothing() -> None:
    dead(row(3, 3))


def a_gap_in_the_log() -> None:
    log = Log()
    log.append(head(0, 5))
    log.append(head(6, 2))


def committing_ids_that_were_never_added() -> None:
    Dedup([], True).committed(1)


def sealing_less_than_was_published() -> None:
    bench = stocked()
    bench.lane.append(NOW, plain(2))
    bench.lane.parts.pop()
    bench.lane.seal(NOW)


def a_commit_that_takes_messages_back() -> None:
    bench = stocked()
    bench.lane.append(NOW, plain(1))
    sealed = bench.lane.seal(NOW)
    assert sealed is not None
    sealed.change.end = 5
    bench.lane.committed(sealed)


def a_commit_of_what_was_never_sealed() -> None:
    bench = stocked()
    bench.lane.append(NOW, plain(1))
    sealed = bench.lane.seal(NOW)
    assert sealed is not None
    sealed.change.end = 99
    bench.lane.committed(sealed)


def trimming_what_is_not_durable() -> None:
    retention._trim_to(stocked().lane, 11)


def committing_a_stream_past_the_end() -> None:
    bench = Bench(GroupConfig(kind="stream"), stream=True)
    bench.stream._set_committed(1, NOW)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (twice_the_same_lease, "lease 1 exists"),
        (a_lease_of_nothing, "lease 1 of nothing"),
        (a_lease_of_overlapping_ranges, "ranges of lease 1"),
        (taking_what_a_lease_does_not_hold, r"3 offsets of \[1, 6\) were in lease 1"),
        (ending_more_than_is_leased, "-2 offsets are leased after the end of lease 1"),
        (a_lease_that_ends_at_once, "lease 9 would end at 1000000, now is 1000000"),
        (handing_out_without_an_attempt, r"\[2, 3\) is handed out for the 0th time"),
        (handing_out_what_the_cursor_has_not_passed, r"\[8, 9\) is handed out, the cursor is at 5"),
        (handing_out_more_than_was_asked_for, "5 messages were taken for a claim of 2"),
        (spending_more_than_the_rate, "-3.0 tokens are left of a rate of 2.0"),
        (a_cursor_past_the_end, "cursor to 11; the lane has 0 to 10"),
        (a_cursor_below_what_is_kept, "cursor to 2; the lane has 3 to 10"),
        (waiting_for_nothing, "an empty range waits"),
        (waiting_twice, "waits already"),
        (taking_back_what_was_never_handed_out, "was taken back more often than handed out"),
        (unlocking_more_than_is_locked, "partition 'a' has -2 leased offsets"),
        (dying_twice, "overlaps"),
        (a_death_of_nothing, "an empty range died"),
        (a_gap_in_the_log, "batch at 6 behind 5"),
        (committing_ids_that_were_never_added, "1 ids were committed, 0 waited for it"),
        (sealing_less_than_was_published, "encoded to 11, published to 12"),
        (a_commit_that_takes_messages_back, "5 is durable: 10 was, 11 is sealed"),
        (a_commit_of_what_was_never_sealed, "99 is durable: 10 was, 11 is sealed"),
        (trimming_what_is_not_durable, "trim to 11; the lane has 0 to 10"),
        (committing_a_stream_past_the_end, "committed to 1; the lane ends at 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_command_stops(command: Callable[[], None], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        command()


# States that `check` must find ----------------------------------------------------------------------------


def leased_and_waiting(bench: Bench) -> None:
    bench.work.waiting.put(Entry(1, 2, 1))


def leased_and_dead(bench: Bench) -> None:
    bench.work.dead.add(row(2, 3))


def waiting_past_the_cursor(bench: Bench) -> None:
    bench.work.waiting.put(Entry(7, 8))


def dead_past_the_end(bench: Bench) -> None:
    bench.work.next = 10
    bench.work.dead.add(row(10, 12))


def leased_twice(bench: Bench) -> None:
    bench.work.leases.add(Lease(9, "bob", NOW + 1, [Entry(2, 3, 1)]))


def trimmed_and_needed(bench: Bench) -> None:
    bench.lane.first = bench.lane.sealed_first = 2


def cursor_past_the_end(bench: Bench) -> None:
    bench.work.next = 11


def miscounted_leases(bench: Bench) -> None:
    bench.work.leases.count += 1


def lease_of_another_consumer(bench: Bench) -> None:
    bench.work.leases.by_id[1].consumer = "bob"


def lease_of_another_session(bench: Bench) -> None:
    bench.work.leases.by_id[1].session = "s1"


def lease_without_timer(bench: Bench) -> None:
    bench.work.leases.deadlines.clear()


def lease_without_attempts(bench: Bench) -> None:
    bench.work.leases.by_id[1].entries = [Entry(0, 3)]


def lease_filed_elsewhere(bench: Bench) -> None:
    bench.work.leases.by_id[1].id = 5


def lost_lowest_lease(bench: Bench) -> None:
    bench.work.leases.lowest_heap.clear()


def miscounted_waiting(bench: Bench) -> None:
    bench.work.waiting.count = 0


def waiting_entries_overlap(bench: Bench) -> None:
    bench.work.waiting.by_start[2] = Entry(2, 4)


def unchunked_waiting(bench: Bench) -> None:
    bench.work.waiting.chunks.clear()


def lost_lowest_waiting(bench: Bench) -> None:
    bench.work.waiting.lowest_heap.clear()


def waiting_for_good(bench: Bench) -> None:
    bench.work.waiting.later.clear()


def waiting_without_expiry(bench: Bench) -> None:
    bench.work.waiting.put(Entry(4, 5, 0, 0, NOW + 5))
    bench.work.dead.take(4, 5)
    bench.work.waiting.expiring.clear()


def a_partition_in_an_unordered_group(bench: Bench) -> None:
    bench.work.waiting.partitions["a"] = Partition()


def miscounted_dead(bench: Bench) -> None:
    bench.work.dead.count = 0


def unsorted_dead(bench: Bench) -> None:
    bench.work.dead.starts.append(0)


def visible_past_the_end(bench: Bench) -> None:
    bench.lane.visible_end = 11


def sealed_past_the_end(bench: Bench) -> None:
    bench.lane.parts.append(plain(1)[0])


def a_hole_in_the_tail(bench: Bench) -> None:
    bench.lane.log.tail[-1].end = 9


def miscounted_tail(bench: Bench) -> None:
    bench.lane.log.tail_bytes += 1


def a_page_with_a_hole(bench: Bench) -> None:
    bench.lane.log.feed([head(0, 2), head(3, 2)])


def done_marks_out_of_order(bench: Bench) -> None:
    bench.lane.done_marks = [(2, 2), (1, 1)]


def an_id_under_another_key(bench: Bench) -> None:
    bench.lane.dedup.by_key[b"j"] = DedupRow(b"k", 0, NOW)


def more_unsealed_than_uncommitted_ids(bench: Bench) -> None:
    bench.lane.dedup.add(DedupRow(b"k", 0, NOW))
    bench.lane.dedup.uncommitted = 0


BROKEN: list[tuple[Callable[[Bench], None], str]] = [
    (leased_and_waiting, "overlaps"),
    (leased_and_dead, "overlaps"),
    (leased_twice, "overlaps"),
    (waiting_past_the_cursor, "overlaps"),
    (dead_past_the_end, "is past the lane's end 10"),
    (trimmed_and_needed, "overlaps"),
    (cursor_past_the_end, "is at 11, the lane has 0 to 10"),
    (miscounted_leases, "3 offsets are leased, counted are 4"),
    (lease_of_another_consumer, "consumers hold"),
    (lease_of_another_session, "sessions hold"),
    (lease_without_timer, "lease 1 would never expire"),
    (lease_without_attempts, "lease 1 has unspent attempts"),
    (lease_filed_elsewhere, "lease 5 is filed as 1"),
    (lost_lowest_lease, "the lowest leased offset is 0, not None"),
    (miscounted_waiting, "1 offsets wait, counted are 0"),
    (waiting_entries_overlap, "waiting entries overlap"),
    (unchunked_waiting, r"entries at \[3\], chunked are \[\]"),
    (lost_lowest_waiting, "the lowest waiting offset is 3, not None"),
    (waiting_for_good, "would never be handed out"),
    (waiting_without_expiry, "never expires"),
    (a_partition_in_an_unordered_group, "in an unordered group"),
    (miscounted_dead, "1 offsets are dead, counted are 0"),
    (unsorted_dead, "dead ranges at"),
    (visible_past_the_end, "first, visible, sealed and end are"),
    (sealed_past_the_end, "1 parts from 10, the lane ends at 10"),
    (a_hole_in_the_tail, "the log ends before 10"),
    (miscounted_tail, "bytes of metadata"),
    (a_page_with_a_hole, "batch at 3 behind 2"),
    (done_marks_out_of_order, "done marks"),
    (an_id_under_another_key, "an id is filed under another key"),
    (more_unsealed_than_uncommitted_ids, "1 unsealed, 0 uncommitted"),
]


@pytest.mark.parametrize(("damage", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_check_finds_it(damage: Callable[[Bench], None], says: str) -> None:
    bench = stocked()
    damage(bench)
    with pytest.raises(AssertionError, match=says):
        bench.lane.check()


def lock_without_lease(bench: Bench) -> None:
    bench.work.waiting.partitions["a"].leased += 1


def partition_that_holds_nothing(bench: Bench) -> None:
    bench.work.waiting.partitions["z"] = Partition()


def entry_missing_from_its_partition(bench: Bench) -> None:
    bench.work.waiting.partitions["b"].entries.clear()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lock_without_lease, "locked are"),
        (partition_that_holds_nothing, "partition 'z' is locked by nothing"),
        (entry_missing_from_its_partition, "partition 'b' has"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_check_finds_it_in_an_ordered_group(damage: Callable[[Bench], None], says: str) -> None:
    bench = ordered()
    damage(bench)
    with pytest.raises(AssertionError, match=says):
        bench.lane.check()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("committed", 9, "committed 9, the lane ends at 5"),
        ("next", 9, "is at 9, the lane ends at 5"),
        ("handed", {"ann": (0, 6)}, "'ann' reads"),
    ],
)
def test_check_finds_it_in_a_stream(name: str, value: object, says: str) -> None:
    bench = Bench(GroupConfig(kind="stream"), stream=True)
    bench.publish(NOW, *plain(5))
    bench.stream.read(NOW, 2, "ann")
    bench.lane.check()
    setattr(bench.stream, name, value)
    with pytest.raises(AssertionError, match=says):
        bench.lane.check()


def test_settling_again_is_an_error_of_the_caller_and_no_assertion() -> None:
    """What a caller can get wrong is answered; assertions are for what only the core can."""
    bench = stocked()
    bench.settle(NOW, 1, "ack", (0, 1))
    with pytest.raises(Exception, match="not all in lease 1"):
        bench.work.settle(NOW, 1, [Verdict("ack", 0, 1)])
    bench.lane.check()


def test_an_id_whose_window_ends_before_its_commit_breaks_nothing() -> None:
    bench = Bench(dedup_window_ms=10)
    bench.lane.append(NOW, [Message(dedup_id="a")])
    bench.lane.expire_dedup(NOW + 10)
    bench.lane.check()
