"""Each command that changes a lane or a group marks the lane itself; no question does, and no module outside."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.core.group.settings import settings_of
from penstock.model import GroupConfig, Message, QueueConfig
from penstock.model.verdict import Verdict
from tests.unit.core.lanes import GROUP, Bench, plain

NOW = 1_000_000
SOURCE = Path(penstock.__file__).parent


def stocked() -> Bench:
    """Ten messages: 0 and 1 leased, 2 waiting, 3 dead, the others ready; all of it sealed."""
    bench = Bench(lease_ms=1_000)
    bench.publish(NOW, *plain(10))
    bench.work.claim(NOW, 2, "ann", 1, session="1.s")
    bench.claim(NOW, 2, lease=2)
    bench.settle(NOW, 2, "postpone", (2, 3), delay_ms=50)
    bench.settle(NOW, 2, "reject", (3, 4))
    bench.commit(NOW)
    assert not bench.lane.dirty
    return bench


COMMANDS: dict[str, Callable[[Bench], object]] = {
    "append": lambda bench: bench.lane.append(NOW, plain(1)),
    "claim": lambda bench: bench.work.claim(NOW, 1, "ann", 9),
    "claim and settle": lambda bench: bench.work.claim(NOW, 1, "ann", 9, settle=True),
    "claim what waits": lambda bench: bench.work.claim(NOW + 50, 1, "ann", 9),
    "settle": lambda bench: bench.work.settle(NOW, 1, [Verdict("ack")]),
    "settle a part": lambda bench: bench.work.settle(NOW, 1, [Verdict("nack", 0, 1)]),
    "extend": lambda bench: bench.work.extend(NOW, 1, 5_000),
    "consumer_left": lambda bench: bench.work.consumer_left(NOW, "ann"),
    "session_left": lambda bench: bench.work.session_left(NOW, "1.s"),
    "seek": lambda bench: bench.work.seek(NOW, 0),
    "purge": lambda bench: bench.work.purge(NOW),
    "redrive": lambda bench: bench.work.redrive(NOW, [(0, 10)]),
    "purge_dead": lambda bench: bench.work.purge_dead(NOW, [(0, 10)]),
    "drop_oldest": lambda bench: bench.work.drop_oldest(NOW, 1, dead=False),
    "drop_below": lambda bench: bench.work.drop_below(NOW, 5, dead=True),
    "tick": lambda bench: bench.lane.tick(NOW + 2_000),
    "add_group": lambda bench: bench.lane.add_group(5, settings_of(QueueConfig(), GroupConfig()), 0),
    "remove_group": lambda bench: bench.lane.remove_group(GROUP),
    "name_publish": lambda bench: bench.lane.name_publish(NOW, b"name", 0),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_marks_its_lane_and_the_seal_has_its_change(name: str) -> None:
    bench = stocked()
    COMMANDS[name](bench)
    assert bench.lane.dirty
    assert bench.commit(NOW + 2_000) is not None
    assert not bench.lane.dirty


STREAM_COMMANDS: dict[str, Callable[[Bench], object]] = {
    "commit": lambda bench: bench.stream.commit(NOW, 3),
    "seek": lambda bench: bench.stream.seek(NOW, 2),
    "read what the last read commits": lambda bench: bench.stream.read(NOW, 2, "ann"),
}


@pytest.mark.parametrize("name", STREAM_COMMANDS)
def test_a_stream_command_marks_its_lane(name: str) -> None:
    bench = Bench(GroupConfig(kind="stream"), stream=True)
    bench.publish(NOW, *plain(5))
    bench.stream.read(NOW, 1, "ann")
    bench.commit(NOW)
    STREAM_COMMANDS[name](bench)
    assert bench.lane.dirty
    assert bench.commit(NOW) is not None


def test_a_commit_has_what_each_group_changed_and_no_other_group() -> None:
    bench = Bench()
    for group in (2, 3):
        bench.lane.add_group(group, settings_of(QueueConfig(), GroupConfig()), 0)
    bench.publish(NOW, *plain(5))
    for group in (3, GROUP):
        bench.lane.work(group).claim(NOW, 2, "ann", group)
    sealed = bench.commit(NOW)
    assert sealed is not None
    assert [row.group for row in sealed.change.groups] == [3, GROUP]
    assert [lease.group for lease in sealed.change.leases] == [3, GROUP]
    assert [group for group, _ in sealed.events] == [3, GROUP]


QUESTIONS: dict[str, Callable[[Bench], object]] = {
    "work": lambda bench: bench.lane.work(GROUP),
    "states": lambda bench: bench.work.states(0, 10),
    "claim that finds too few": lambda bench: bench.work.claim(NOW, 9, "ann", 9, minimum=9),
    "claim for nobody": lambda bench: bench.work.claim(NOW, 0, "ann", 9),
    "next_due_ms": lambda bench: bench.lane.next_due_ms(),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_does_not(name: str) -> None:
    bench = stocked()
    bench.claim(NOW, 6, lease=3)
    bench.commit(NOW)
    QUESTIONS[name](bench)
    assert not bench.lane.dirty


def test_a_claim_that_only_passes_messages_over_marks_its_lane() -> None:
    bench = Bench(GroupConfig(filter="a = 1"))
    bench.publish(NOW, Message(headers={"a": 2}))
    assert bench.claim(NOW) == []
    assert bench.lane.dirty
    assert bench.commit(NOW) is not None


def test_a_claim_that_only_finds_expired_messages_marks_its_lane() -> None:
    bench = Bench()
    bench.publish(NOW, Message(ttl_ms=100, delay_ms=50))
    assert bench.claim(NOW) == []
    bench.commit(NOW)
    assert bench.claim(NOW + 200) == []
    assert bench.lane.dirty


def test_nothing_outside_the_core_marks_a_lane() -> None:
    marks = re.compile(r"\b\w*lane\w*\.dirty\s*=[^=]")
    files = [path for path in SOURCE.rglob("*.py") if SOURCE / "core" not in path.parents]
    assert len(files) > 300
    assert [path for path in files if marks.search(path.read_text())] == []


def test_no_module_of_the_node_assigns_dirty() -> None:
    assigns = re.compile(r"\.dirty\s*=[^=]")
    assert [path for path in (SOURCE / "node").rglob("*.py") if assigns.search(path.read_text())] == []
