"""The store's clock, as a node follows it."""

from __future__ import annotations

import time

import pytest

from penstock.node.clock import StoreClock


class Monotonic:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    made = Monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "time", lambda: 5_000_000.0)  # the machine's own clock is of no interest
    return made


def test_it_tells_the_stores_time_and_carries_it_on(monotonic: Monotonic) -> None:
    store = StoreClock()
    store.follow(7_000_000, 99.0, 101.0)
    assert store.now_ms() == 7_000_000
    monotonic.now += 2.5
    assert store.now_ms() == 7_002_500


def test_an_answer_that_took_its_time_moves_nothing(monotonic: Monotonic) -> None:
    store = StoreClock()
    store.follow(7_000_000, 100.0, 100.0)
    monotonic.now = 110.0
    store.follow(7_009_200, 109.0, 110.0)  # said at 109.2
    assert store.now_ms() == 7_010_000


def test_a_store_that_is_ahead_is_followed_at_once(monotonic: Monotonic) -> None:
    store = StoreClock()
    store.follow(7_000_000, 100.0, 100.0)
    store.follow(7_500_000, 100.0, 100.0)
    assert store.now_ms() == 7_500_000


def test_it_never_goes_back(monotonic: Monotonic) -> None:
    store = StoreClock()
    store.follow(7_000_000, 100.0, 100.0)
    assert store.now_ms() == 7_000_000
    store.follow(6_990_000, 100.0, 100.0)  # a replica whose clock is behind took over
    assert store.now_ms() == 7_000_000
    monotonic.now += 9.0
    assert store.now_ms() == 7_000_000
    monotonic.now += 2.0
    assert store.now_ms() == 7_001_000
