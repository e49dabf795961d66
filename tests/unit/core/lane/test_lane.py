"""A lane: appending, dedup, limits and their policies, sealing, retention, pins, reloading."""

from __future__ import annotations

import pytest

from penstock.batch import check, encode
from penstock.core import log
from penstock.core.group.settings import settings_of
from penstock.core.lane import retention
from penstock.core.lane import seal as sealing
from penstock.model import GroupConfig, Message, QueueConfig
from penstock.model.errors import NotFound, QueueFull
from tests.unit.core.lanes import GROUP, Bench, keyed, plain

NOW = 1_000_000


# Append --------------------------------------------------------------------------------------------------


def test_messages_and_batches_share_one_numbering() -> None:
    bench = Bench()
    assert bench.lane.append(NOW, plain(2)).offsets() == [0, 1]
    batch = encode(plain(3))
    assert bench.lane.append_batch(NOW, batch, None).offsets() == [2, 3, 4]
    assert bench.lane.append(NOW, plain(1)).offsets() == [5]
    assert bench.lane.append(NOW, []).offsets() == []
    sealed = bench.commit(NOW)
    assert sealed is not None
    assert [(row.base, row.count) for row in sealed.change.batches] == [(0, 2), (2, 3), (5, 1)]
    assert sealed.change.batches[1].body == batch.body
    assert sealed.change.bytes_end == sum(row.size for row in sealed.change.batches)


def test_single_messages_are_stored_together_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "ROW_MESSAGES_MAX", 4)
    monkeypatch.setattr(sealing, "ROW_BYTES_MAX", 10)
    bench = Bench()
    bench.lane.append(NOW, [Message(b"x")] * 5 + [Message(b"y" * 10), Message(b""), Message(b"z" * 99)])
    sealed = bench.commit(NOW)
    assert sealed is not None
    assert [row.count for row in sealed.change.batches] == [4, 1, 2, 1]


def test_lag_bytes_are_those_behind_the_foremost_group() -> None:
    bench = Bench()
    bench.lane.add_group(2, bench.settings[GROUP], 0)
    assert bench.lane.lag_bytes() == 0
    for _ in range(3):
        bench.publish(NOW, *plain(10))
    sizes = [segment.size for segment in bench.lane.log.tail]
    assert bench.lane.lag_bytes() == sum(sizes[1:])
    bench.claim(NOW, 15)
    assert bench.lane.lag_bytes() == sizes[2]
    bench.claim(NOW, 15, 2)
    assert bench.lane.lag_bytes() == 0
    bench.lane.remove_group(GROUP)
    bench.reload()
    assert bench.lane.lag_bytes() == 0  # no head of it is in memory


def test_duplicates_name_the_first_offset() -> None:
    bench = Bench(dedup_window_ms=100)
    first = bench.lane.append(NOW, [Message(dedup_id="a"), Message(dedup_id="a"), Message(dedup_id="a", partition="p")])
    assert first.offsets() == [0, 0, 1]
    messages = [Message(dedup_id="b"), Message(dedup_id="a"), Message(dedup_id="b"), Message()]
    batch = encode(messages)
    assert bench.lane.append_batch(NOW + 99, batch, check(batch)).offsets() == [2, 0, 2, 3]
    only = encode([Message(dedup_id="a")])
    assert bench.lane.append_batch(NOW + 99, only, check(only)).offsets() == [0]
    assert bench.lane.append(NOW + 100, [Message(dedup_id="a")]).offsets() == [4]
    bench.commit(NOW + 100)
    bench.reload()
    assert bench.lane.append(NOW + 199, [Message(dedup_id="a")]).offsets() == [4]
    bench.lane.expire_dedup(NOW + 200)
    sealed = bench.commit(NOW + 200)
    assert sealed is not None
    assert sealed.change.dedup_expired_ms == NOW + 200
    assert bench.store.dedup == {}


def test_no_window_no_dedup() -> None:
    bench = Bench(dedup_window_ms=0)
    assert bench.lane.append(NOW, [Message(dedup_id="a")] * 2).offsets() == [0, 1]


# Limits --------------------------------------------------------------------------------------------------


def test_max_length_refuses() -> None:
    bench = Bench(max_length=3)
    bench.publish(NOW, *plain(2))
    bench.lane.check_room(1, 0)
    with pytest.raises(QueueFull):
        bench.lane.check_room(2, 0)
    bench.claim(NOW, 1)
    bench.lane.check_room(2, 0)  # what is leased does not count


def test_max_bytes_refuses() -> None:
    bench = Bench(max_bytes=1_000)
    bench.publish(NOW, Message(b"\x00\xff" * 100))
    size = bench.lane.bytes_end
    bench.lane.check_room(1, 1_000 - size)
    with pytest.raises(QueueFull):
        bench.lane.check_room(1, 1_001 - size)
    bench.lane.append(NOW, [Message(b"x" * 50)])
    with pytest.raises(QueueFull):
        bench.lane.check_room(1, 951 - size)
    bench.claim(NOW, settle=True)
    bench.lane.check_room(1, 950)


@pytest.mark.parametrize(("overflow", "dead"), [("drop_oldest", []), ("dead_letter_oldest", [0, 1])])
def test_max_bytes_drops_whole_batches(overflow: str, dead: list[int]) -> None:
    body = bytes(range(100))
    bench = Bench(max_bytes=500, overflow=overflow)
    for _ in range(3):
        bench.publish(NOW, Message(body), Message(b""))
    size = bench.lane.bytes_end // 3
    assert 3 * size <= 500 < 4 * size + 100
    bench.lane.check_room(1, 400 - size)
    bench.lane.append(NOW, [Message(b"x" * (500 - 2 * size))])
    assert bench.dead() == dead
    assert bench.claim(NOW) == [2, 3, 4, 5]
    with pytest.raises(QueueFull):  # nothing can be dropped: all is leased
        bench.lane.check_room(1, 500)


def test_dropping_by_bytes_never_asks_in_the_middle_of_a_publish() -> None:
    bench = Bench(max_bytes=500, overflow="drop_oldest")
    for _ in range(3):
        bench.publish(NOW, Message(bytes(range(100))))
    bench.reload()
    bench.ask(lambda: bench.lane.check_room(1, 450))
    assert bench.asked == 1
    assert bench.lane.append(NOW, [Message(b"x" * 450)]).offsets() == [3]  # no `Missing`, else it would be there twice
    assert bench.lane.end == 4
    assert bench.work.next == 1  # the next batch was not in memory: it goes with the next publish


def test_what_is_not_committed_is_looked_up_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "TAIL_SEGMENTS_MAX", 2)
    bench = Bench(max_bytes=10_000)
    for _ in range(9):
        bench.lane.append_batch(NOW, encode(plain(1)), None)
    assert bench.lane.seal(NOW) is not None  # not durable yet: the store could not answer
    bench.lane.check_room(1, 1)


# Seal and reload -----------------------------------------------------------------------------------------


def test_a_seal_of_nothing_is_none() -> None:
    bench = Bench()
    assert bench.commit(NOW) is not None  # the group itself
    assert bench.commit(NOW) is None
    bench.claim(NOW)
    assert bench.commit(NOW) is None


def test_dead_letters_are_told_to_whoever_copies_them() -> None:
    bench = Bench(dead_letter_to="queue:graveyard")
    bench.publish(NOW, *plain(2))
    bench.claim(NOW)
    bench.settle(NOW, 1, "reject", (0, 1), error="no")
    sealed = bench.commit(NOW)
    assert sealed is not None
    assert [(group, row.start, row.reason, row.error) for group, row in sealed.died] == [(GROUP, 0, "rejected", "no")]
    assert {event.kind for _, events in sealed.events for event in events} == {"claimed", "dead"}
    assert bench.commit(NOW) is None


def test_a_reloaded_lane_goes_on() -> None:
    bench = Bench(ordered=True, max_attempts=2)
    bench.publish(NOW, *keyed("p", "p", "q", None))
    assert bench.claim(NOW, 1) == [0]
    bench.settle(NOW, 1, "nack", delay_ms=50)
    assert bench.claim(NOW, 1, 2) == [2]
    bench.commit(NOW)
    assert bench.claim(NOW, 1, 3) == [3]
    bench.reload()  # the last claim was never answered: it is undone
    assert bench.claim(NOW, 9, 4) == [3]
    bench.settle(NOW, 2, "nack", delay_ms=0)
    assert bench.claim(NOW + 50, 9, 5) == [0, 1, 2]
    bench.settle(NOW + 50, 5, "nack")
    assert bench.dead() == [0, 2]


def test_groups_come_and_go() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(3))
    bench.lane.add_group(2, bench.settings[GROUP], 2)
    assert bench.lane.work(2).claim(NOW, 9, "ann", 1)[0].start == 2
    bench.commit(NOW)
    assert (2, 1) in bench.store.leases
    bench.lane.remove_group(2)
    bench.lane.remove_group(2)
    bench.commit(NOW)
    assert {key[0] for key in bench.store.leases} == set()
    with pytest.raises(NotFound):
        bench.lane.work(2)


# Retention -----------------------------------------------------------------------------------------------


def test_done_batches_go_with_the_commit() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(2))
    bench.publish(NOW, *plain(2))
    bench.claim(NOW)
    bench.settle(NOW, 1, "ack", (0, 3))
    bench.commit(NOW)
    assert bench.lane.first == 2
    bench.settle(NOW, 1, "reject")
    bench.commit(NOW)
    assert bench.lane.first == 2
    bench.work.purge_dead(NOW, [(0, 9)])
    bench.commit(NOW)
    assert bench.lane.first == 4
    assert bench.store.batches == {}


def test_kept_after_done() -> None:
    bench = Bench(keep_done_ms=100)
    bench.publish(NOW, *plain(1))
    bench.claim(NOW, settle=True)
    bench.commit(NOW)
    assert bench.lane.next_due_ms() == NOW + 100
    bench.lane.tick(NOW + 99)
    bench.commit(NOW + 99)
    assert bench.lane.first == 0
    bench.lane.tick(NOW + 100)
    bench.commit(NOW + 100)
    assert bench.lane.first == 1
    assert bench.lane.next_due_ms() is None


def test_marks_of_what_is_done_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DONE_MARKS_MAX", 10)
    bench = Bench(keep_done_ms=1_000)
    for step in range(1_000):
        bench.publish(NOW + step, *plain(1))
        bench.claim(NOW + step, settle=True)
        bench.commit(NOW + step)
        assert len(bench.lane.done_marks) <= 12
    bench.lane.tick(NOW + 1_500)
    bench.commit(NOW + 1_500)
    assert 390 <= bench.lane.first <= 501


@pytest.mark.parametrize("options", [{"keep_done_ms": 0}, {"keep_done_ms": 100, "retain_ms": 5}])
def test_a_change_of_retention_leaves_no_timer_behind(options: dict[str, int]) -> None:
    bench = Bench(keep_done_ms=100)
    bench.publish(NOW, *plain(1))
    bench.claim(NOW, settle=True)
    bench.commit(NOW)
    config = QueueConfig(**options)  # type: ignore[arg-type]
    bench.lane.configure(config, {GROUP: settings_of(config, GroupConfig())})
    bench.lane.tick(NOW + 200)
    bench.commit(NOW + 200)
    assert bench.lane.next_due_ms() is None


def test_a_seek_back_makes_it_not_done() -> None:
    bench = Bench(keep_done_ms=100)
    bench.publish(NOW, *plain(2))
    bench.claim(NOW, settle=True)
    bench.commit(NOW)
    bench.work.seek(NOW + 90, 0)
    bench.commit(NOW + 90)
    bench.claim(NOW + 95, settle=True)
    bench.commit(NOW + 95)
    bench.lane.tick(NOW + 150)
    bench.commit(NOW + 150)
    assert bench.lane.first == 0


def test_a_pin_holds() -> None:
    bench = Bench()
    bench.publish(NOW, *plain(2))
    bench.lane.pin(0)
    bench.lane.pin(0)
    bench.claim(NOW, settle=True)
    bench.commit(NOW)
    bench.lane.unpin(0)
    bench.commit(NOW)
    assert bench.lane.first == 0
    bench.lane.unpin(0)
    bench.commit(NOW)
    assert bench.lane.first == 2


@pytest.mark.parametrize(
    ("options", "first"),
    [({"retain_messages": 3}, 2), ({"retain_messages": 0}, 6), ({"retain_ms": 20}, 2), ({"retain_bytes": 0}, 6)],
)
def test_limits_of_a_stream(options: dict[str, int], first: int) -> None:
    bench = Bench(GroupConfig(kind="stream"), **options)
    for step in range(3):
        bench.publish(NOW + 10 * step, *plain(2))
    heads = bench.store.heads(0, 99)
    assert bench.lane.trim_by_limits(NOW + 20, heads)
    assert bench.lane.first == first
    bench.commit(NOW + 20)
    assert min(bench.store.batches, default=6) == first
    assert bench.ask(lambda: bench.stream.read(NOW + 20, 9, "ann")) == ([(first, 6)] if first < 6 else [])


def test_limits_never_take_what_work_needs() -> None:
    bench = Bench(retain_messages=0)
    for _ in range(3):
        bench.publish(NOW, *plain(2))
    bench.claim(NOW, 3)
    bench.settle(NOW, 1, "ack", (0, 2))
    assert bench.lane.trim_by_limits(NOW, bench.store.heads(0, 99))
    assert bench.lane.first == 2
    assert not bench.lane.trim_by_limits(NOW, bench.store.heads(2, 99))


def test_what_trimming_needs_to_know_is_asked_for() -> None:
    """After a restart the slowest group may stand where no head is in memory: the lane says which one it wants."""
    bench = Bench()
    for _ in range(4):
        bench.publish(NOW, *plain(2))
    assert bench.claim(NOW, 3) == [0, 1, 2]
    bench.commit(NOW)
    bench.reload()
    bench.settle(NOW, 1, "ack", (0, 2))
    bench.commit(NOW)
    assert bench.lane.first == 0
    assert bench.lane.trim_wants == 2
    bench.lane.log.feed(bench.store.heads(2, 1))
    bench.lane.trim_again()
    bench.commit(NOW)
    assert bench.lane.first == 2
    assert bench.lane.trim_wants is None


def test_a_lane_is_idle_when_all_of_it_is_stored() -> None:
    bench = Bench()
    assert not bench.lane.is_idle()  # its new group is not stored yet
    bench.commit(NOW)
    assert bench.lane.is_idle()
    bench.publish(NOW, *plain(2))
    assert bench.lane.is_idle()
    bench.claim(NOW, 2)
    bench.commit(NOW)
    assert not bench.lane.is_idle()  # the lease has a deadline
    bench.settle(NOW, 1, "ack")
    assert not bench.lane.is_idle()
    bench.commit(NOW)
    assert bench.lane.first == 2  # and the trim that came with it is stored too
    assert bench.lane.is_idle()
