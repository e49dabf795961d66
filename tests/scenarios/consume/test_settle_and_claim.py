"""Settle a lease and claim what comes next in one call: one commit, and the settle is what it says of itself."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from penstock import Claim, Forbidden, InvalidArgument, LeaseLost, Unavailable
from penstock.model.verdict import Verdict
from penstock.node.broker import LocalBroker
from penstock.node.cache import BatchCache
from tests.nodes import node_of
from tests.scenarios import shaky
from tests.scenarios.rig import Home, numbered, play, soon, texts, turns


async def first_claim(broker: LocalBroker, count: int, **options: Any) -> Claim:
    """A queue with so many messages, of which the first one is claimed."""
    await broker.declare_queue("q", **options)
    await broker.declare_group("q", "default")
    await broker.publish_many("q", numbered(count))
    return await broker.claim("q")


async def states(broker: LocalBroker) -> tuple[int, int]:
    """How many are ready, and leased."""
    [group] = (await broker.stats("q")).groups
    return group.ready, group.leased


def test_what_was_claimed_is_done_and_the_next_is_there(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        claim = await first_claim(broker, 6)
        following = await broker.settle_and_claim(claim, max=2)
        assert texts(following) == ["1", "2"]
        assert following.lane == 0
        assert [one.attempt for one in following] == [1, 1]
        following = await broker.settle_and_claim(following)
        assert texts(following) == ["3"]
        with pytest.raises(LeaseLost):
            await broker.ack(claim)
        again = await home.open()  # as after a crash: what was answered is so
        assert await states(again) == (2, 1)
        assert texts(await again.claim("q", max=9)) == ["4", "5"]

    play(home, scenario)


def test_nothing_there_is_an_empty_claim_and_the_settle_is_durable(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        claim = await first_claim(broker, 1)
        following = await broker.settle_and_claim(claim, max=10)
        assert len(following) == 0
        assert following.lease is None
        assert following.queue == "q"
        assert await states(await home.open()) == (0, 0)

    play(home, scenario)


def test_any_verdict_and_what_it_gives_back_may_be_claimed_at_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=0)
        await broker.declare_group("q", "default")
        await broker.publish_many("q", numbered(4))
        claim = await broker.claim("q", max=4)
        verdicts = [
            Verdict("nack", 0, 1, 0, "once more"),
            Verdict("release", 1, 2),
            Verdict("reject", 2, 3, None, "never"),
        ]
        following = await broker.settle_and_claim(claim, verdicts, max=10)
        assert [(one.payload, one.attempt) for one in following] == [(b"0", 2), (b"1", 1)]
        await broker.ack(claim)  # what is left of the first lease
        assert await states(broker) == (0, 2)
        assert [dead.received.payload for dead in await broker.dead("q")] == [b"2"]

    play(home, scenario)


def test_a_lease_that_has_ended_claims_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        claim = await first_claim(broker, 3, lease_ms=1_000)
        home.pass_time(broker, 2_000)
        with pytest.raises(LeaseLost):
            await broker.settle_and_claim(claim, max=10)
        assert await states(broker) == (3, 0)
        with pytest.raises(LeaseLost):
            await broker.settle_and_claim("7-7-7", max=10)

    play(home, scenario)


def test_the_next_of_an_ordered_partition_follows_in_the_same_call(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True, max_in_flight=1)
        await broker.declare_group("q", "default")
        await broker.publish_many("q", numbered(3, partition="ann"))
        claim = await broker.claim("q", max=10)
        seen = texts(claim)
        while claim.lease is not None:
            claim = await broker.settle_and_claim(claim, max=10)
            seen += texts(claim)
        assert seen == ["0", "1", "2"]

    play(home, scenario)


def test_other_lanes_and_groups(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=4)
        await broker.declare_group("q", "g")
        await broker.declare_group("q", "default")
        for message in numbered(8):
            await broker.publish("q", message)
        claim = await broker.claim("q", group="g", max=10)
        lanes, seen = {claim.lane}, texts(claim)
        while claim.lease is not None:
            claim = await broker.settle_and_claim(claim, max=10)
            seen += texts(claim)
            lanes |= {claim.lane}
        assert sorted(seen) == [str(number) for number in range(8)]
        assert lanes == {0, 1, 2, 3}
        stats = {group.group: group for group in (await broker.stats("q")).groups}
        assert (stats["g"].ready, stats["default"].ready) == (0, 8)

    play(home, scenario)


def test_lease_and_consumer_are_as_asked(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        claim = await first_claim(broker, 3)
        following = await broker.settle_and_claim(claim, lease_seconds=90, consumer="bob")
        assert following.deadline_ms == clock.time_ms + 90_000
        await broker.detach("q", "default", consumer="alice")
        assert await states(broker) == (1, 1)
        await broker.detach("q", "default", consumer="bob")  # whose lease it is
        assert await states(broker) == (2, 0)

    play(home, scenario)


def test_what_it_refuses(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        claim = await first_claim(broker, 2)
        with pytest.raises(InvalidArgument, match="at least one verdict"):
            await broker.settle_and_claim(claim, [])
        with pytest.raises(InvalidArgument, match="max"):
            await broker.settle_and_claim(claim, max=0)
        with pytest.raises(InvalidArgument, match="holds no lease"):
            await broker.settle_and_claim(Claim("q", 0, None, 0, []))
        with pytest.raises(LeaseLost, match="namespace 'default'"):
            await broker.in_namespace("other").settle_and_claim(claim)
        assert await states(broker) == (1, 1)

    play(home, scenario)


def test_a_sessions_own_queue_is_not_claimed_from_by_others(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        async with broker.session() as session:
            await session.declare_queue("own", exclusive=True)
            await session.declare_group("own", "default")
            await session.publish_many("own", numbered(2))
            claim = await session.claim("own")
            with pytest.raises(Forbidden):
                await broker.settle_and_claim(claim)
            assert texts(await session.settle_and_claim(claim)) == ["1"]

    play(home, scenario)


def test_one_who_goes_away_keeps_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        claim = await first_claim(broker, 2)
        task = asyncio.ensure_future(broker.settle_and_claim(claim))
        await turns(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = await soon(broker.claim("q", wait=10))
        assert [(one.payload, one.attempt) for one in again] == [(b"1", 1)]

    play(home, scenario)


# When something fails --------------------------------------------------------------------------------------


def test_both_are_one_commit() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        claim = await first_claim(broker, 3)
        before = len(machine.store.commits)
        assert texts(await broker.settle_and_claim(claim)) == ["1"]
        [commit] = machine.store.commits[before:]
        [change] = [change for change in commit.lanes if change.leases or change.leases_deleted]
        assert (len(change.leases), len(change.leases_deleted)) == (1, 1)

    shaky.play(story)


@pytest.mark.parametrize("there", [1, 3])
def test_a_commit_that_fails_settles_nothing_and_claims_nothing(there: int) -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        claim = await first_claim(broker, there)
        machine.store.fail("before", 1, lambda _: True)
        with pytest.raises(Unavailable):
            await broker.settle_and_claim(claim)
        assert await states(broker) == (there - 1, 1)
        following = await broker.settle_and_claim(claim, max=9)  # the lease is still held
        assert len(following) == there - 1
        assert [one.attempt for one in following] == [1] * (there - 1)

    shaky.play(story)


class Unreadable:
    """A store that has nothing in memory, and cannot be read for a while."""

    def __init__(self, broker: LocalBroker) -> None:
        self._store = node_of(broker).store
        self.failed = 0

    def __enter__(self) -> Unreadable:
        self._patches = ExitStack()
        self._patches.enter_context(patch.object(BatchCache, "get", lambda *_: None))
        self._patches.enter_context(patch.object(self._store, "read", self._fail))
        return self

    async def _fail(self, *_: object) -> None:
        self.failed += 1
        raise Unavailable("cannot be read now")

    def __exit__(self, *_: object) -> None:
        self._patches.close()


def test_where_the_next_cannot_be_read_the_settle_stands_and_nothing_is_kept() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        claim = await first_claim(broker, 2)
        with Unreadable(broker) as unreadable:
            following = await broker.settle_and_claim(claim)
            assert unreadable.failed == 1
        assert following.lease is None
        again = await broker.claim("q", max=9, wait=1)
        assert [(one.payload, one.attempt) for one in again] == [(b"1", 1)]

    shaky.play(story)


def test_what_a_claim_could_not_read_is_there_at_once_without_an_attempt_spent() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        await broker.ack(await first_claim(broker, 2))
        with Unreadable(broker), pytest.raises(Unavailable, match="cannot be read now"):
            await broker.claim("q")
        began_ms = machine.now_ms()
        again = await broker.claim("q", wait=5)
        assert [(one.payload, one.attempt) for one in again] == [(b"1", 1)]
        assert machine.now_ms() - began_ms < 1_000

    shaky.play(story)


def test_what_a_waiting_claim_could_not_read_is_given_to_it_later_without_an_attempt_spent() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "default")
        claiming = asyncio.ensure_future(broker.claim("q", wait=5))
        await asyncio.sleep(0.01)
        with Unreadable(broker) as unreadable:
            await broker.publish_many("q", numbered(1))
            await machine.comes(lambda: unreadable.failed > 0)
        began_ms = machine.now_ms()
        claim = await claiming
        assert [(one.payload, one.attempt) for one in claim] == [(b"0", 1)]
        assert machine.now_ms() - began_ms < 1_000  # long before a lease would have ended

    shaky.play(story)


@pytest.mark.parametrize("ack", [False, True])
def test_a_waiting_claim_is_told_when_the_publish_it_is_served_with_is_in_doubt(ack: bool) -> None:
    """It may have been done: its messages may be leased, or acknowledged."""

    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "default")
        claiming = asyncio.ensure_future(broker.claim("q", wait=5, ack=ack))
        await asyncio.sleep(0.01)
        machine.store.fail("after", 1, lambda _: True)
        with pytest.raises(Unavailable):
            await broker.publish_many("q", numbered(1))
        with pytest.raises(Unavailable):
            await claiming
        assert await states(broker) == (0, 0 if ack else 1)

    shaky.play(story)


def test_what_is_given_back_before_its_commit_is_read_after_it() -> None:
    """A consumer that waited is handed a message in the commit that publishes it, and goes: the next one to ask has it
    before it is stored.
    """

    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        claim = await first_claim(broker, 1)
        waiting = asyncio.ensure_future(broker.claim("q", wait=5))
        await turns()
        publishing = asyncio.ensure_future(broker.publish_many("q", numbered(1, 1)))
        tries = machine.store.tries
        while machine.store.tries == tries:  # noqa: ASYNC110 - the loop turns once
            await asyncio.sleep(0)
        waiting.cancel()
        await turns()
        following = await broker.settle_and_claim(claim)
        assert texts(following) == ["1"]
        await publishing
        assert await states(broker) == (0, 1)
        assert node_of(broker).damage.notes() == []

    shaky.play(story)
