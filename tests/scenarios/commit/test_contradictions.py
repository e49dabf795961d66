"""An assertion of the core fails: nothing of the lane is committed, callers are told, and it is read again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import Message
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.model.errors import Unavailable
from tests.nodes import node_of
from tests.scenarios.rig import Home, Result, group_stats, messages, play, texts, turns, until


@pytest.fixture(autouse=True)
def _loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "penstock.commits")


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, halfway: bool) -> list[str]:
    """Have a method of the core fail its next call, after it has changed something where it is `halfway`."""
    true: Callable[..., Any] = getattr(owner, name)
    calls: list[str] = []

    def failing(self: Any, *args: Any, **named: Any) -> Any:
        if calls:
            return true(self, *args, **named)
        calls.append(name)
        if halfway:
            true(self, *args, **named)
        raise AssertionError("made by the test")

    monkeypatch.setattr(owner, name, failing)
    return calls


async def again(operation: Callable[[], Awaitable[Result]]) -> Result:
    """What an operation returns once the lane is back."""
    found: list[Result] = []

    async def tried() -> bool:
        try:
            found.append(await operation())
        except Unavailable:
            return False
        return True

    await until(tried)
    return found[0]


@pytest.mark.parametrize("name", ["seal", "append"])
def test_a_publish_that_breaks_its_lane_is_refused_and_the_next_succeeds(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("orders")
        await broker.publish("orders", Message(b"before"))
        calls = fail_once(monkeypatch, Lane, name, halfway=True)
        with pytest.raises(Unavailable, match="contradicted itself"):
            await broker.publish("orders", Message(b"broken"))
        assert calls == [name]
        await again(lambda: broker.publish("orders", Message(b"after")))
        claim = await broker.claim("orders", max=10, ack=True)
        assert texts(claim) == ["before", "after"]
        assert "contradicted itself" in caplog.text

    play(home, scenario)


def test_what_is_durable_is_answered_although_its_lane_broke_after_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("orders")
        calls = fail_once(monkeypatch, Lane, "committed", halfway=False)
        await broker.publish("orders", Message(b"one"))
        assert calls == ["committed"]
        await again(lambda: broker.publish("orders", Message(b"two")))
        assert texts(await broker.claim("orders", max=10, ack=True)) == ["one", "two"]

    play(home, scenario)


@pytest.mark.parametrize("halfway", [False, True])
def test_a_claim_that_breaks_its_lane_leases_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch, halfway: bool
) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("orders")
        await broker.publish_many("orders", messages("one", "two"))
        fail_once(monkeypatch, WorkGroup, "claim", halfway=halfway)
        with pytest.raises(Unavailable, match="contradicted itself"):
            await broker.claim("orders", max=10)
        claim = await again(lambda: broker.claim("orders", max=10, wait=20))
        assert texts(claim) == ["one", "two"]
        assert [message.attempt for message in claim.messages] == [1, 1]

    play(home, scenario)


@pytest.mark.parametrize("halfway", [False, True])
def test_a_settle_that_breaks_its_lane_settles_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch, halfway: bool
) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("orders")
        await broker.publish("orders", Message(b"one"))
        claim = await broker.claim("orders")
        assert claim.lease is not None
        fail_once(monkeypatch, WorkGroup, "settle", halfway=halfway)
        with pytest.raises(Unavailable, match="contradicted itself"):
            await broker.ack(claim)
        await turns()  # the lane is given up by then
        await again(lambda: broker.ack(claim))
        assert (await group_stats(broker, "orders")).lag == 0

    play(home, scenario)


def test_what_changed_in_a_lane_that_was_dropped_is_not_answered(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("orders")
        await broker.publish("orders", Message(b"before"))
        publishing = broker.publish("orders", Message(b"lost"))
        node = node_of(broker)
        node.lanes.drop(set(node.catalog.queue("default", "orders").lanes))
        with pytest.raises(Unavailable, match="was dropped with changes"):
            await publishing
        assert texts(await again(lambda: broker.claim("orders", max=10, ack=True))) == ["before"]

    play(home, scenario)
