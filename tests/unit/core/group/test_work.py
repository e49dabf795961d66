"""A work group: claims with every option, settling, time, administration, and the costs that must not grow."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock.core import log
from penstock.core.group import walk
from penstock.core.group.settings import backoff_ms, settings_of
from penstock.core.group.settle import ERROR_CHARACTERS_MAX
from penstock.core.group.work import WorkGroup
from penstock.model import GroupConfig, Message, QueueConfig
from penstock.model.errors import InvalidArgument, LeaseLost, WrongKind
from penstock.model.rows import LaneImage
from penstock.model.verdict import Verdict
from tests.unit.core.lanes import GROUP, Bench, keyed, plain

NOW = 1_000_000


# Claim ---------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_before_its_commit() -> None:
    bench = Bench()
    bench.lane.append(NOW, plain(3))
    assert bench.claim(NOW) == []
    sealed = bench.lane.seal(NOW)
    assert sealed is not None
    assert bench.claim(NOW) == []
    bench.lane.committed(sealed)
    assert bench.claim(NOW) == [0, 1, 2]


def test_a_plain_batch_is_one_range() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(1000))
    entries = bench.work.claim(NOW, 700, "ann", 1)
    assert [(entry.start, entry.end, entry.attempts) for entry in entries] == [(0, 700, 1)]
    assert bench.claim(NOW, 700, 2) == list(range(700, 1000))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_of_a_claim_ends_where_the_long_one_does(seed: int, ordered: bool) -> None:
    chance = random.Random(seed)
    kinds: list[dict[str, Any]] = [{}, {}, {}, {"delay_ms": 5}, {"ttl_ms": 9}, {"partition": "p"}]
    batches = [plain(chance.randint(1, 9), **chance.choice(kinds)) for _ in range(12)]
    steps = [(chance.randint(1, 12), chance.random() < 0.3, chance.choice(["ack", "nack", None])) for _ in range(40)]
    seen: list[object] = []
    for is_plain in (True, False):
        bench = Bench(ordered=ordered, backoff_ms=3, backoff_jitter=0.0)
        assert bench.work.settings.is_plain
        bench.work.settings = msgspec.structs.replace(bench.work.settings, is_plain=is_plain)
        told: list[object] = []
        for lease, (most, settle, action) in enumerate(steps):
            if batches[lease : lease + 1]:
                bench.publish(NOW + lease, *batches[lease])
            told.append(bench.claim(NOW + lease, most, lease, settle=settle))
            if action is not None and told[-1] and not settle:
                bench.settle(NOW + lease, lease, action)  # type: ignore[arg-type]
            told.append((bench.work.next, bench.work.next_due_ms(), bench.work.needed_from(), bench.waiting()))
            sealed = bench.commit(NOW + lease)
            told.append(sealed if sealed is None else (sealed.change.leases, sealed.change.groups, sealed.events))
        seen.append(told)
    assert seen[0] == seen[1]


def test_claim_of_none_or_less() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(1))
    assert bench.claim(NOW, 0) == []
    assert bench.claim(NOW, -1) == []


def test_what_waits_and_is_due_goes_before_what_is_new() -> None:
    bench = Bench(backoff_ms=10, backoff_jitter=0.0)
    bench.publish(NOW, *plain(4))
    assert bench.claim(NOW, 2) == [0, 1]
    bench.settle(NOW, 1, "nack", (1, 2))
    assert bench.claim(NOW, 1, 2) == [2]
    assert bench.claim(NOW + 10, 2, 3) == [1, 3]


def test_settle_at_once() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed("p", "p", None))
    assert bench.claim(NOW, settle=True) == [0, 1, 2]
    assert bench.work.watermark() == 3
    assert not bench.work.leases.by_id
    assert not bench.work.waiting.partitions


@pytest.mark.parametrize("lease_ms", [1, 50])
def test_a_lease_ends_at_its_deadline(lease_ms: int) -> None:
    bench = Bench(max_attempts=0)
    bench.publish(NOW, *plain(1))
    bench.claim(NOW, lease_ms=lease_ms)
    bench.lane.tick(NOW + lease_ms - 1)
    assert bench.claim(NOW + lease_ms - 1, lease=2) == []
    assert bench.lane.next_due_ms() == NOW + lease_ms
    bench.lane.tick(NOW + lease_ms)
    assert bench.claim(NOW + lease_ms, lease=3) == [0]
    assert bench.work.leases.by_id[3].entries[0].attempts == 2


def test_delays() -> None:
    bench = Bench(delay_ms=10)
    bench.publish(NOW, Message(), Message(delay_ms=5), Message(not_before_ms=NOW + 100), Message(not_before_ms=1))
    assert bench.claim(NOW + 9) == []
    assert bench.claim(NOW + 10) == [0, 3]
    assert bench.claim(NOW + 15, lease=2) == [1]
    assert bench.lane.next_due_ms() == NOW + 100
    assert bench.claim(NOW + 100, lease=3) == [2]


@pytest.mark.parametrize(("expired", "dead"), [("drop", []), ("dead", [0, 1])])
def test_ttl(expired: str, dead: list[int]) -> None:
    bench = Bench(expired=expired, ttl_ms=100)
    bench.publish(NOW, Message(ttl_ms=0), Message(ttl_ms=10), Message(ttl_ms=1_000), Message())
    assert bench.claim(NOW + 10, 1) == [2]
    assert bench.dead() == dead
    bench.settle(NOW + 100, 1, "nack")
    assert bench.waiting() == []  # expired while it was leased
    assert bench.claim(NOW + 100, lease=2) == []


def test_a_filter_leaves_out() -> None:
    bench = Bench(GroupConfig(filter="n = 1"))
    bench.publish(NOW, Message(), Message(headers={"n": 1}), Message(headers={"n": 2}))
    assert bench.claim(NOW) == [1]
    assert bench.work.next == 3
    bench.settle(NOW, 1, "ack")
    assert bench.work.watermark() == 3


def test_expired_messages_that_do_not_pass_the_filter_do_not_die() -> None:
    bench = Bench(GroupConfig(filter="n = 1"), expired="dead")
    bench.publish(NOW, Message(ttl_ms=1), Message(ttl_ms=1, headers={"n": 1}))
    bench.lane.tick(NOW + 1)
    assert bench.dead() == [1]
    assert bench.work.next == 2


def test_priority() -> None:
    bench = Bench(prioritized=True)
    bench.publish(NOW, *(Message(priority=priority) for priority in (0, 2, 1)))
    bench.publish(NOW, *(Message(priority=priority) for priority in (2, 255)))
    assert bench.claim(NOW, 1, 1) == [4]
    assert bench.claim(NOW, 2, 2) == [1, 3]
    assert bench.claim(NOW, 5, 3) == [2, 0]


def test_limits_of_a_claim() -> None:
    bench = Bench(max_in_flight=2)
    bench.publish(NOW, *plain(5))
    assert bench.claim(NOW, 5) == [0, 1]
    assert bench.claim(NOW, 5, 2) == []
    bench.settle(NOW, 1, "ack", (0, 1))
    assert bench.claim(NOW, 5, 3) == [2]


def test_rate() -> None:
    bench = Bench(rate=2.0)
    bench.publish(NOW, *plain(9))
    assert bench.claim(NOW) == [0, 1]
    assert bench.claim(NOW + 499, lease=2) == []
    ready_ms = bench.work.rate_ready_ms(NOW + 499)
    assert ready_ms is not None
    assert bench.claim(ready_ms, lease=3) == [2]
    assert bench.claim(NOW + 60_000, lease=4) == [3, 4]


def test_paused() -> None:
    bench = Bench(paused=True)
    bench.publish(NOW, *plain(1))
    assert bench.claim(NOW) == []
    bench.lane.configure(bench.config, {GROUP: settings_of(QueueConfig(), GroupConfig())})
    assert bench.claim(NOW) == [0]


def test_single_active_consumer() -> None:
    bench = Bench(single_active_consumer=True, lease_ms=100)
    bench.publish(NOW, *plain(4))
    assert bench.claim(NOW, 1, 1, consumer="ann") == [0]
    assert bench.claim(NOW, 1, 2, consumer="bob") == []
    bench.settle(NOW + 50, 1, "ack")
    assert bench.claim(NOW + 149, 1, 3, consumer="bob") == []
    assert bench.claim(NOW + 150, 1, 4, consumer="bob") == [1]
    bench.work.consumer_left(NOW + 150, "bob")
    assert bench.claim(NOW + 150, 1, 5, consumer="ann") == [1]


def test_a_long_lease_of_the_active_consumer_leaves_no_timer_behind() -> None:
    bench = Bench(single_active_consumer=True, lease_ms=100)
    bench.publish(NOW, *plain(1))
    bench.claim(NOW, lease_ms=10_000)
    bench.lane.tick(NOW + 100)
    assert bench.lane.next_due_ms() == NOW + 10_000
    bench.settle(NOW + 200, 1, "ack")
    assert bench.lane.next_due_ms() == NOW + 300
    bench.lane.tick(NOW + 300)
    assert bench.lane.next_due_ms() is None


# Ordered partitions --------------------------------------------------------------------------------------


def test_a_partition_is_locked_while_leased() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed("p", "q", "p", None, "p"))
    assert bench.claim(NOW, 2) == [0, 1]
    assert bench.claim(NOW, 9, 2) == [3]
    bench.settle(NOW, 1, "ack", (0, 1))
    assert bench.claim(NOW, 9, 3) == [2, 4]


def test_a_failed_head_holds_its_partition() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed("p", "p"))
    bench.publish(NOW, *keyed("p", "q"))
    assert bench.claim(NOW, 1) == [0]
    bench.settle(NOW, 1, "nack", delay_ms=50)
    assert bench.claim(NOW + 49, 9, 2) == [3]
    assert bench.claim(NOW + 50, 9, 3) == [0, 1, 2]


def test_a_delayed_message_holds_those_behind_it() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, Message(partition="p"), Message(partition="p", delay_ms=10), Message(partition="p"))
    assert bench.claim(NOW) == [0]
    bench.settle(NOW, 1, "ack")
    assert bench.claim(NOW + 9, lease=2) == []
    assert bench.claim(NOW + 10, lease=3) == [1, 2]


def test_an_expired_head_lets_the_next_go() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, Message(partition="p", delay_ms=100, ttl_ms=10), Message(partition="p"))
    assert bench.claim(NOW) == []
    bench.lane.tick(NOW + 10)
    assert bench.claim(NOW + 10) == [1]


def test_empty_and_absent_partitions_are_free() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed("", None, "", None))
    assert bench.claim(NOW, 2) == [0, 1]
    assert bench.claim(NOW, 2, 2) == [2, 3]


def test_claim_of_one_partition() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed("p", "q", None, "q"))
    bench.publish(NOW, *plain(2))
    assert bench.claim(NOW, partition="q") == [1, 3]
    assert bench.claim(NOW, lease=2, partition="q") == []
    assert bench.claim(NOW, lease=3, partition="nobody") == []
    assert bench.claim(NOW, lease=4) == [0, 2, 4, 5]


def test_claim_of_a_partition_that_is_none() -> None:
    with pytest.raises(WrongKind):
        Bench().claim(NOW, partition="p")
    with pytest.raises(InvalidArgument):
        Bench(ordered=True).claim(NOW, partition="")


def test_priority_between_partitions_goes_by_their_heads() -> None:
    bench = Bench(ordered=True, prioritized=True)
    bench.publish(
        NOW,
        Message(partition="p", priority=5),
        Message(partition="p", priority=0),
        Message(partition="q", priority=3),
        Message(partition="q", priority=9),
    )
    assert bench.claim(NOW, 2) == [0, 2]  # not 1: it would go before what outranks it
    assert bench.claim(NOW, 9, 2) == []
    bench.settle(NOW, 1, "ack")
    assert bench.claim(NOW, 1, 3) == [3]
    assert bench.claim(NOW, 9, 4) == [1]


def test_redriven_messages_stand_at_their_place() -> None:
    bench = Bench(ordered=True, max_attempts=1)
    bench.publish(NOW, *keyed("p", "p", "p"))
    assert bench.claim(NOW, 1) == [0]
    bench.settle(NOW, 1, "nack")
    assert bench.dead() == [0]
    assert bench.claim(NOW, 1, 2) == [1]
    assert bench.work.redrive(NOW, [(0, 9)]) == 1
    assert bench.claim(NOW, 9, 3) == []
    bench.settle(NOW, 2, "release")
    assert bench.claim(NOW, 9, 4) == [0, 1, 2]


def test_debounce_waits_for_a_quiet_partition() -> None:
    bench = Bench(ordered=True, debounce_ms=100)
    bench.publish(NOW, *keyed("p", "q", None))
    bench.publish(NOW + 90, *keyed("p"))
    assert bench.claim(NOW + 99) == [2]
    assert bench.claim(NOW + 100, lease=2) == [1]
    assert bench.claim(NOW + 189, lease=3) == []
    assert bench.claim(NOW + 190, lease=4) == [0, 3]


def test_what_is_not_for_the_group_does_not_hold_a_debounced_partition_up() -> None:
    bench = Bench(GroupConfig(filter="n = 1"), ordered=True, debounce_ms=100)
    bench.publish(NOW, Message(partition="p", headers={"n": 1}))
    bench.publish(NOW + 90, Message(partition="p"), Message(partition="p", headers={"n": 1}, ttl_ms=5))
    assert bench.claim(NOW + 99) == []
    assert bench.claim(NOW + 100) == [0]


def test_what_is_redriven_does_not_wait_for_its_partition_to_be_quiet() -> None:
    bench = Bench(ordered=True, debounce_ms=100, ttl_ms=10, expired="dead")
    bench.publish(NOW, *keyed("p"))
    assert bench.claim(NOW + 10) == []
    assert bench.dead() == [0]
    assert bench.work.redrive(NOW + 20, [(0, 9)]) == 1
    assert bench.claim(NOW + 20) == [0]


def test_debounce_can_be_switched_on() -> None:
    bench = Bench(ordered=True)
    config = QueueConfig(ordered=True, debounce_ms=100)
    bench.lane.configure(config, {GROUP: settings_of(config, GroupConfig())})
    bench.publish(NOW, *keyed("p"))
    bench.publish(NOW + 90, *keyed("p"))
    assert bench.claim(NOW + 100) == []
    assert bench.claim(NOW + 190) == [0, 1]


# Settle --------------------------------------------------------------------------------------------------


def test_each_verdict() -> None:
    bench = Bench(max_attempts=2, backoff_ms=100, backoff_jitter=0.0)
    bench.publish(NOW, *plain(5))
    bench.claim(NOW)
    bench.work.settle(
        NOW,
        1,
        [
            Verdict("ack", 0, 1),
            Verdict("nack", 1, 2, error="why"),
            Verdict("reject", 2, 3, error="no"),
            Verdict("postpone", 3, 4, delay_ms=50),
            Verdict("release", 4, 5),
        ],
    )
    states = bench.work.states(0, 10)
    assert states == [(1, 2, "waiting", 1), (2, 3, "dead", 1), (3, 4, "waiting", 0), (4, 5, "waiting", 0)]
    assert bench.claim(NOW, lease=2) == [4]
    assert bench.claim(NOW + 50, lease=3) == [3]
    assert bench.claim(NOW + 100, lease=4) == [1]
    bench.settle(NOW + 100, 4, "nack", error="again")
    assert [(row.start, row.reason, row.error) for row in bench.work.dead.overlapping(0, 9)] == [
        (1, "attempts", "again"),
        (2, "rejected", "no"),
    ]


@pytest.mark.parametrize(("max_attempts", "handed_out"), [(1, 1), (3, 3), (0, 20)])
def test_max_attempts(max_attempts: int, handed_out: int) -> None:
    bench = Bench(max_attempts=max_attempts)
    bench.publish(NOW, *plain(1))
    count = 0
    while count < 20 and bench.claim(NOW, lease=count):
        bench.settle(NOW, count, "nack", delay_ms=0)
        count += 1
    assert count == handed_out
    assert bench.dead() == ([0] if max_attempts else [])


def test_a_verdict_that_is_refused_changes_nothing() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(4))
    bench.claim(NOW, 3)
    bench.settle(NOW, 1, "ack", (1, 2))
    with pytest.raises(LeaseLost):
        bench.settle(NOW, 9, "ack")
    for verdicts in ([(1, 2)], [(0, 2)], [(2, 4)], [(-1, 1)], [(0, 1), (3, 4)]):
        with pytest.raises(LeaseLost):
            bench.settle(NOW, 1, "ack", *verdicts)
    for wrong in ([(0, 0)], [(1, 0)], [(0, 1), (0, 1)]):
        with pytest.raises(InvalidArgument):
            bench.settle(NOW, 1, "ack", *wrong)
    assert bench.work.states(0, 4) == [(0, 1, "leased", 1), (2, 3, "leased", 1), (3, 4, "ready", 0)]


def test_a_settle_of_nothing() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(1))
    bench.claim(NOW)
    bench.work.settle(NOW, 1, [])
    assert bench.work.leases.count == 1


def test_long_errors_are_cut() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(2))
    bench.claim(NOW)
    bench.settle(NOW, 1, "reject", (0, 1), error="x" * ERROR_CHARACTERS_MAX)
    bench.settle(NOW, 1, "reject", (1, 2), error="x" * (ERROR_CHARACTERS_MAX + 1))
    assert [len(row.error) for row in bench.work.dead.overlapping(0, 9)] == [ERROR_CHARACTERS_MAX] * 2


def test_extend() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(1))
    bench.claim(NOW, lease_ms=10)
    assert bench.work.extend(NOW + 5, 1, 100) == NOW + 105
    bench.lane.tick(NOW + 10)
    assert bench.work.leases.count == 1
    assert bench.work.extend(NOW + 10, 1, 1) == NOW + 11
    bench.lane.tick(NOW + 11)
    with pytest.raises(LeaseLost):
        bench.work.extend(NOW + 11, 1, 10)


def test_backoff_stays_within_its_bounds() -> None:
    settings = settings_of(QueueConfig(backoff_ms=100, backoff_max_ms=350, backoff_jitter=0.5), GroupConfig())
    for attempts, most in ((1, 100), (2, 200), (3, 350), (60_000, 350)):
        spans = [backoff_ms(settings, 1, offset, attempts) for offset in range(200)]
        assert all(most * 0.5 - 1 <= span <= most for span in spans)
        assert len(set(spans)) > 20
    steady = msgspec.structs.replace(settings, backoff_jitter=0.0, backoff_factor=1_000.0, backoff_max_ms=10**9)
    assert backoff_ms(steady, 1, 1, 60_000) == 10**9


# Administration ------------------------------------------------------------------------------------------


def test_seek_resets_leases_and_what_died_behind_it() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(4))
    bench.claim(NOW)
    bench.settle(NOW, 1, "reject", (0, 1), (2, 3))
    bench.work.seek(NOW, 1)
    with pytest.raises(LeaseLost):
        bench.settle(NOW, 1, "ack")
    assert bench.dead() == [0]
    assert bench.claim(NOW, lease=2) == [1, 2, 3]
    assert bench.work.leases.by_id[2].entries[0].attempts == 1


def test_seek_stays_inside_the_log() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(2))
    bench.claim(NOW)
    bench.settle(NOW, 1, "ack")
    bench.publish(NOW, *plain(2))
    assert bench.lane.first == 2
    bench.work.seek(NOW, 0)
    assert bench.claim(NOW, lease=2) == [2, 3]
    bench.work.seek(NOW, 10**15)
    assert bench.work.next == 4


def test_purge_leaves_leases_and_dead() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed("p", "p", "q", "p"))
    bench.claim(NOW, 2)
    bench.settle(NOW, 1, "reject", (1, 2))
    bench.claim(NOW, 1, 2, partition="q")
    assert bench.work.purge(NOW) == 1
    assert bench.work.states(0, 9) == [(0, 1, "leased", 1), (1, 2, "dead", 1), (2, 3, "leased", 1)]
    bench.settle(NOW, 1, "release")
    assert bench.claim(NOW, lease=3) == [0]


@pytest.mark.parametrize("ranges", [[(0, 9), (0, 9)], [(2, 9), (0, 3)], [(0, 9), (5, 2)], [(1, 1), (0, 4)]])
def test_ranges_that_overlap_count_once(ranges: list[tuple[int, int]]) -> None:
    for purge in (False, True):
        bench = Bench()
        bench.publish(NOW, *plain(4))
        bench.claim(NOW)
        bench.settle(NOW, 1, "reject")
        count = bench.work.purge_dead(NOW, ranges) if purge else bench.work.redrive(NOW, ranges)
        assert count == 4
        assert bench.dead() == []
        assert bench.work.waiting.count == len(bench.waiting()) == (0 if purge else 4)


def test_an_inverted_range_is_empty() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(9))
    bench.claim(NOW)
    bench.settle(NOW, 1, "reject")
    assert bench.work.redrive(NOW, [(5, 3)]) == bench.work.purge_dead(NOW, [(5, 3)]) == 0
    assert bench.dead() == list(range(9))


def test_redrive_forgets_ttl_and_attempts() -> None:
    bench = Bench(ttl_ms=10, expired="dead")
    bench.publish(NOW, *plain(1))
    bench.lane.tick(NOW + 10)
    assert bench.dead() == [0]
    assert bench.work.redrive(NOW + 20, [(0, 1)]) == 1
    assert bench.claim(NOW + 20) == [0]


def test_redrive_of_more_batches_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PAGES_MAX", 2)
    bench = Bench(ordered=True)
    for _ in range(6):
        bench.publish(NOW, *keyed("p", "q"))
    bench.claim(NOW)
    bench.settle(NOW, 1, "reject")
    bench.commit(NOW)
    bench.reload()
    assert bench.ask(lambda: bench.work.redrive(NOW, [(0, 99)])) == 12
    assert bench.asked <= 6
    assert bench.claim(NOW, lease=2) == list(range(12))


def test_the_oldest_make_room() -> None:
    bench = Bench(max_length=3, overflow="dead_letter_oldest", ordered=True)
    bench.publish(NOW, *keyed("p", "p", "q"))
    assert bench.claim(NOW, 1) == [0]
    bench.publish(NOW, *keyed("p", "p"))  # 1, 2, 3, 4 wait now
    assert bench.dead() == [1]
    assert bench.claim(NOW, 9, 2) == [2]
    bench.publish(NOW, *keyed("r", "r", "r"))
    assert bench.dead() == [1, 3, 4]
    assert [row.reason for row in bench.work.dead.overlapping(0, 9)] == ["overflow"] * 2
    bench.publish(NOW, *keyed(*("s" * 9)))
    assert bench.work.backlog() == 3
    assert bench.claim(NOW, 9, 3) == [14, 15, 16]


def test_what_overflowed_before_its_commit_cannot_be_redriven_before_it() -> None:
    bench = Bench(max_length=0, overflow="dead_letter_oldest", prioritized=True)
    bench.lane.append(NOW, plain(2))
    assert bench.dead() == [0, 1]
    assert bench.work.redrive(NOW, [(0, 9)]) == 0
    assert bench.claim(NOW) == []
    bench.commit(NOW)
    assert bench.work.redrive(NOW, [(0, 9)]) == 2
    assert bench.claim(NOW) == [0, 1]


def test_an_expired_head_does_not_hide_what_is_due_behind_it() -> None:
    bench = Bench(ordered=True)
    bench.publish(NOW, Message(partition="p"), Message(partition="p", ttl_ms=20), Message(partition="p", delay_ms=10))
    assert bench.claim(NOW, 1) == [0]
    assert bench.claim(NOW, 9, 2) == []
    bench.settle(NOW, 1, "ack")
    assert bench.claim(NOW + 20, 9, 3) == [2]


def test_consumer_left_counts_an_attempt() -> None:
    bench = Bench(max_attempts=2)
    bench.publish(NOW, *plain(3))
    bench.claim(NOW, 1, 1, consumer="ann")
    bench.claim(NOW, 1, 2, consumer="bob")
    bench.work.consumer_left(NOW, "ann")
    assert bench.claim(NOW, 9, 3, consumer="bob") == [0, 2]
    bench.work.consumer_left(NOW, "bob")
    assert bench.dead() == [0]
    assert bench.waiting() == [1, 2]
    bench.work.consumer_left(NOW, "nobody")


def test_a_session_that_ends_takes_its_own_leases_and_no_others() -> None:
    bench = Bench(max_attempts=2)
    bench.publish(NOW, *plain(4))
    bench.work.claim(NOW, 1, "ann", 1, session="7.s")
    bench.work.claim(NOW, 1, "bob", 2, session="7.s")
    bench.work.claim(NOW, 1, "ann", 3)
    bench.work.claim(NOW, 1, "ann", 4, session="7.t")
    bench.commit(NOW)
    bench.work.session_left(NOW, "7.s")
    assert sorted(bench.work.leases.by_id) == [3, 4]
    assert bench.work.leases.by_session == {"7.t": {4}}
    assert bench.claim(NOW, 9, 5) == [0, 1]
    bench.work.session_left(NOW, "7.s")  # again, when nothing is left
    assert sorted(bench.work.leases.by_id) == [3, 4, 5]


def test_a_lease_is_stored_with_its_session_and_found_by_it_after_a_load() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(2))
    bench.work.claim(NOW, 1, "ann", 1, session="7.s")
    bench.work.claim(NOW, 1, "ann", 2)
    sealed = bench.lane.seal(NOW)
    assert sealed is not None
    change = sealed.change
    assert {row.lease: row.session for row in change.leases} == {1: "7.s", 2: ""}
    image = LaneImage(bench.lane.id, leases=change.leases)
    loaded = WorkGroup(bench.work.id, bench.work.settings, bench.lane, 0)
    loaded.load(image)
    assert [lease.id for lease in loaded.leases.of_session("7.s")] == [1]


def test_the_active_consumer_of_a_session_is_replaced_when_it_ends() -> None:
    bench = Bench(single_active_consumer=True)
    bench.publish(NOW, *plain(3))
    bench.work.claim(NOW, 1, "ann", 1, session="7.s")
    assert bench.claim(NOW, 1, 2, consumer="bob") == []
    bench.work.session_left(NOW, "7.s")
    assert bench.claim(NOW, 1, 3, consumer="bob") == [0]
    bench.settle(NOW, 3, "ack")
    bench.work.session_left(NOW, "7.t", {"cid"})
    assert bench.claim(NOW, 1, 4, consumer="cid") == []
    bench.work.session_left(NOW, "7.t", {"bob"})  # which holds nothing, and was active all the same
    assert bench.claim(NOW, 1, 5, consumer="cid") == [1]


# Heads out of memory and costs ---------------------------------------------------------------------------


def test_a_tick_over_more_groups_than_pages_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PAGES_MAX", 2)
    bench = Bench(ttl_ms=1_000)
    for offset in range(6):
        bench.publish(NOW + offset, *plain(1))
    for number in range(6):
        bench.settings[10 + number] = bench.settings[GROUP]
        bench.lane.add_group(10 + number, bench.settings[GROUP], number)
    bench.commit(NOW)
    bench.reload()
    bench.ask(lambda: bench.lane.tick(NOW + 500))
    assert bench.lane.next_due_ms() == NOW + 1_000
    bench.ask(lambda: bench.lane.tick(NOW + 10_000))
    assert all(group.watermark() == 6 for group in bench.lane.works())


def test_the_window_of_parked_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "PARKED_MAX", 3)
    bench = Bench(ordered=True)
    bench.publish(NOW, *keyed(*("p" * 10), "q"))
    assert bench.claim(NOW, 1) == [0]
    assert bench.claim(NOW, 9, 2) == []
    assert len(bench.work.waiting) <= 3
    bench.settle(NOW, 1, "ack")
    found: list[int] = []
    for lease in range(3, 20):
        found += bench.claim(NOW, 1, lease)
        if lease in bench.work.leases.by_id:
            bench.settle(NOW, lease, "ack")
    assert found == list(range(1, 11))


def test_expired_messages_are_swept_by_runs() -> None:
    bench = Bench(expired="dead")
    bench.publish(NOW, *plain(1_000, ttl_ms=5), Message(ttl_ms=50), Message())
    bench.lane.tick(NOW + 5)
    assert [(row.start, row.end) for row in bench.work.dead.overlapping(0, 9_999)] == [(0, 1_000)]
    assert bench.lane.next_due_ms() == NOW + 50
    bench.lane.tick(NOW + 50)
    assert bench.lane.next_due_ms() is None
    assert bench.claim(NOW + 50) == [1_001]
