"""A stream group: reads, auto and manual commits, readers that leave, seeks, filters and ttl."""

from __future__ import annotations

import pytest

from penstock.core import log
from penstock.core.group.stream import TURNS_KEPT
from penstock.model import GroupConfig, Message
from penstock.model.errors import InvalidArgument, WrongKind
from tests.unit.core.lanes import GROUP, Bench, plain

NOW = 1_000_000


def stream(**options: object) -> Bench:
    return Bench(GroupConfig(kind="stream", **options))  # type: ignore[arg-type]


def test_reads_go_on_where_the_last_one_ended() -> None:
    bench = stream()
    bench.publish(NOW, *plain(3))
    bench.publish(NOW, *plain(3))
    assert bench.stream.read(NOW, 2, "ann") == [(0, 2)]
    assert bench.stream.read(NOW, 3, "bob") == [(2, 5)]
    assert bench.stream.read(NOW, 9, "ann") == [(5, 6)]
    assert bench.stream.read(NOW, 9, "ann") == []
    assert bench.stream.read(NOW, 0, "ann") == []


def test_a_read_commits_what_the_reader_read_before() -> None:
    bench = stream()
    bench.publish(NOW, *plain(6))
    bench.stream.read(NOW, 2, "ann")
    assert bench.stream.committed == 0
    bench.stream.read(NOW, 2, "bob")
    assert bench.stream.committed == 0
    bench.stream.read(NOW, 2, "ann")
    assert bench.stream.committed == 2  # bob still works on 2 and 3
    bench.stream.read(NOW, 2, "bob")
    assert bench.stream.committed == 4
    bench.stream.read(NOW, 2, "ann")
    assert bench.stream.committed == 6


@pytest.mark.parametrize("auto_commit", [True, False])
def test_what_a_reader_left_undone_is_read_again(auto_commit: bool) -> None:
    bench = stream(auto_commit=auto_commit)
    bench.publish(NOW, *plain(6))
    bench.stream.read(NOW, 3, "ann")
    bench.stream.consumer_left(NOW, "ann")
    assert bench.stream.read(NOW, 9, "bob") == [(0, 6)]


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_commit_in_the_middle_of_a_read(auto_commit: bool) -> None:
    bench = stream(auto_commit=auto_commit)
    bench.publish(NOW, *plain(6))
    bench.stream.read(NOW, 4, "ann")
    bench.stream.commit(NOW, 2)
    bench.stream.consumer_left(NOW, "ann")
    assert bench.stream.read(NOW, 9, "bob") == [(2, 6)]


def test_manual_commit_of_all_leaves_nothing_to_read_again() -> None:
    bench = stream(auto_commit=False)
    bench.publish(NOW, *plain(6))
    bench.stream.read(NOW, 2, "ann")
    bench.stream.read(NOW, 2, "ann")
    assert bench.stream.committed == 0
    bench.stream.commit(NOW, 4)
    bench.stream.consumer_left(NOW, "ann")
    assert bench.stream.read(NOW, 9, "bob") == [(4, 6)]


def test_commits_stay_inside_the_log() -> None:
    bench = stream()
    bench.publish(NOW, *plain(2))
    bench.lane.append(NOW, plain(2))
    for offset in (-1, 3):
        with pytest.raises(InvalidArgument):
            bench.stream.commit(NOW, offset)
    bench.stream.commit(NOW, 2)
    assert (bench.stream.next, bench.stream.committed) == (2, 2)


def test_a_restart_goes_on_from_what_was_committed() -> None:
    bench = stream(auto_commit=False)
    bench.publish(NOW, *plain(6))
    bench.stream.read(NOW, 5, "ann")
    bench.stream.commit(NOW, 3)
    bench.commit(NOW)
    bench.reload()
    assert bench.ask(lambda: bench.stream.read(NOW, 9, "ann")) == [(3, 6)]


def test_seek_stays_inside_the_log() -> None:
    bench = stream()
    bench.publish(NOW, *plain(4))
    bench.stream.read(NOW, 4, "ann")
    bench.stream.seek(NOW, 1)
    assert bench.stream.read(NOW, 1, "ann") == [(1, 2)]
    bench.stream.seek(NOW, 99)
    assert bench.stream.next == bench.stream.committed == 4
    bench.stream.seek(NOW, -5)
    assert bench.stream.next == 0


def test_filter_and_ttl() -> None:
    bench = Bench(GroupConfig(kind="stream", filter="n = 1"), ttl_ms=100)
    bench.publish(NOW, Message(), *(Message(headers={"n": 1}, ttl_ms=ttl) for ttl in (None, 10, 0, 1_000)))
    assert bench.stream.read(NOW + 10, 1, "ann") == [(1, 2)]
    assert bench.stream.read(NOW + 10, 9, "ann") == [(4, 5)]
    bench.stream.seek(NOW + 100, 0)
    assert bench.stream.read(NOW + 100, 9, "ann") == []
    assert bench.stream.committed == 5


def test_paused() -> None:
    bench = stream(paused=True)
    bench.publish(NOW, *plain(1))
    assert bench.stream.read(NOW, 9, "ann") == []


def test_heads_that_are_missing_end_a_read_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PAGES_MAX", 2)
    bench = stream()
    for _ in range(4):
        bench.publish(NOW, *plain(2))
    bench.reload()
    found = []
    while ranges := bench.ask(lambda: bench.stream.read(NOW, 5, "ann")):
        found += [offset for start, end in ranges for offset in range(start, end)]
    assert found == list(range(8))


def test_reads_whose_answers_were_lost_are_read_again() -> None:
    bench = stream(auto_commit=False)
    bench.publish(NOW, *plain(6))
    assert bench.stream.read(NOW, 2, "ann", "1") == [(0, 2)]
    assert bench.stream.read(NOW, 2, "ann", "2") == [(2, 4)]
    bench.stream.give_up("ann", ["2"])
    assert bench.stream.read(NOW, 2, "ann", "3") == [(2, 4)]
    bench.stream.give_up("ann", ["2"])  # it is known, and changes nothing
    assert bench.stream.read(NOW, 2, "ann", "4") == [(4, 6)]
    bench.stream.commit(NOW, 3)
    bench.stream.give_up("ann", ["3", "2"])
    assert bench.stream.read(NOW, 9, "ann", "5") == [(3, 6)]
    bench.stream.give_up("ann", ["never"])
    assert bench.stream.read(NOW, 9, "ann", "6") == []
    assert set(bench.stream.given_up) == {"2", "3", "never"}


def test_the_latest_turns_are_remembered() -> None:
    bench = stream(auto_commit=False)
    bench.publish(NOW, *plain(TURNS_KEPT + 1))
    for number in range(TURNS_KEPT + 1):
        bench.stream.read(NOW, 1, "ann", f"{number}")
    assert list(bench.stream.turns) == [f"{number}" for number in range(1, TURNS_KEPT + 1)]
    bench.stream.give_up("ann", [f"x{number}" for number in range(TURNS_KEPT + 1)])
    assert len(bench.stream.given_up) == TURNS_KEPT


def test_work_is_not_for_streams() -> None:
    with pytest.raises(WrongKind):
        stream().lane.work(GROUP)
    with pytest.raises(WrongKind):
        Bench().lane.stream(GROUP)
