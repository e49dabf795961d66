"""Staying awake for a client that works alone: who is looked for, for how long, and when no more."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.fronts.http import busy_poll
from penstock.fronts.http.busy_poll import IN_A_ROW, TURNS, Alertness
from tests.fronts.http.rig import Front, over_http


class Turns:
    """A loop that only takes turns."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, work: Callable[[], None]) -> None:
        self._soon.append(work)

    def turn(self) -> bool:
        """Do what is due; whether something was."""
        due, self._soon = self._soon, deque()
        assert len(due) <= 1, "it looks once a turn"
        for work in due:
            work()
        return bool(due)

    def awake(self) -> int:
        """How many turns it takes until the loop may sleep."""
        count = 0
        while self.turn():
            count += 1
        return count


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "_cores", lambda: 2)


def made() -> tuple[Alertness, Turns]:
    turns = Turns()
    return Alertness(cast("asyncio.AbstractEventLoop", turns)), turns


def serve(alert: Alertness, turns: Turns, count: int, connection: object = "one", after: int = 1) -> None:
    """Requests of which each comes so many turns after the last was answered."""
    for _ in range(count):
        alert.asked(connection)
        alert.answered()
        for _ in range(after):
            turns.turn()


def test_one_who_works_alone_is_looked_for_and_not_for_ever(cores: None) -> None:
    alert, turns = made()
    serve(alert, turns, IN_A_ROW + 1)
    assert turns.awake() == 0
    serve(alert, turns, 100)
    assert turns.awake() == TURNS - 1


def test_several_are_not_looked_for(cores: None) -> None:
    alert, turns = made()
    for number in range(20 * IN_A_ROW):
        serve(alert, turns, 1, connection=number % 2)
        assert turns.awake() == 0
    serve(alert, turns, IN_A_ROW + 2, connection=0)
    serve(alert, turns, 1, connection=1)
    assert turns.awake() == 0
    serve(alert, turns, IN_A_ROW + 2, connection=0)
    assert turns.awake() > 0


def test_one_who_takes_his_time_is_looked_for_ever_less(cores: None) -> None:
    alert, turns = made()
    serve(alert, turns, IN_A_ROW + 1)
    looked = []
    for _ in range(10 * IN_A_ROW):
        serve(alert, turns, 1, after=0)
        looked.append(turns.awake() > 0)
    places = [place for place, was in enumerate(looked) if was]
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    assert gaps[:4] == [3, 5, 9, 17]
    assert set(gaps[4:]) == {IN_A_ROW + 1}
    serve(alert, turns, 3 * IN_A_ROW, after=TURNS // 2)  # and then does not
    serve(alert, turns, 1, after=0)
    assert turns.awake() == TURNS
    serve(alert, turns, 3, after=0)
    assert turns.awake() == TURNS, "once in vain is soon forgiven"


def test_with_one_core_nobody_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "_cores", lambda: 1)
    alert, turns = made()
    serve(alert, turns, 10 * IN_A_ROW)
    assert turns.awake() == 0


def test_cores_are_counted() -> None:
    assert busy_poll._cores() >= 1


@over_http()
async def test_a_server_looks_for_a_client_that_publishes_alone(front: Front) -> None:
    alert = front.server._alertness
    alert._needed = IN_A_ROW
    await front.broker.declare_queue("mail")
    body: Any = {"messages": [{"payload": "x"}]}
    seen = []
    for _ in range(IN_A_ROW + 20):
        await front.ok("POST", "/v1/queues/mail/messages", body)
        seen.append(alert._is_looking or alert._in_vain > 0)
    assert not any(seen[: IN_A_ROW + 1])
    assert any(seen)
    assert (await front.broker.stats("mail")).published == len(seen)
