"""Settles of many verdicts that cannot be joined: in turns with others, all or none, in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from penstock import Message
from penstock.api.inspect import GroupStats
from penstock.api.results import Lease
from penstock.api.slices import in_turns
from penstock.core.group import draft
from penstock.core.group.draft import VERDICTS_AT_ONCE, Draft
from penstock.core.group.settle import settle
from penstock.model.errors import LeaseLost
from penstock.model.verdict import Action, Verdict
from penstock.model.work import Steps
from penstock.node.broker import LocalBroker
from penstock.node.consume import claims
from tests.scenarios.rig import Home, cancelled, play

MANY = 3_000


class Meter:
    """How many verdicts were carried out within one turn of the event loop at the most."""

    def __init__(self) -> None:
        self.total = self.most = self._seen = 0

    def patched(self) -> Any:
        original = settle

        def counted(group: Any, now_ms: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
            self.total += len(verdicts)
            original(group, now_ms, lease_id, verdicts)

        return patch.object(draft, "settle", counted)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self.total - self._seen)
            self._seen = self.total
            await asyncio.sleep(0)


class Gate:
    """Holds the first draft after its first step, until it is opened."""

    def __init__(self) -> None:
        self._is_first = True
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def patched(self) -> Any:
        async def gated(steps: Steps[Draft]) -> Draft:
            if self._is_first:
                self._is_first = False
                next(steps)
                self.reached.set()
                await self.opened.wait()
            return await in_turns(steps)

        return patch.object(claims, "in_turns", gated)


async def claimed(broker: LocalBroker, **options: Any) -> Lease:
    await broker.declare_queue("q", **options)
    await broker.publish_many("q", [Message(str(number).encode()) for number in range(MANY)])
    lease = (await broker.claim("q", max=MANY)).lease
    assert isinstance(lease, Lease)
    return lease


def alternating(start: int = 0, end: int = MANY) -> list[Verdict]:
    actions: tuple[Action, ...] = ("ack", "reject", "release")
    return [Verdict(actions[offset % 3], offset, offset + 1) for offset in range(start, end)]


async def numbers(broker: LocalBroker) -> tuple[int, int, int]:
    group: GroupStats
    [group] = (await broker.stats("q")).groups
    return group.leased, group.dead, group.ready


def test_alternating_verdicts_let_others_have_their_turn(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        lease = await claimed(broker)
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            await broker.settle(lease, alternating()[::-1])
            await cancelled(watching)
        assert (meter.total, meter.most) == (MANY, VERDICTS_AT_ONCE)
        third = MANY // 3
        assert await numbers(broker) == (0, third, third)
        broker = await home.reopen(broker)
        assert await numbers(broker) == (0, third, third)
        again = await broker.claim("q", max=MANY)
        assert [received.offset for received in again.messages] == list(range(2, MANY, 3))

    play(home, scenario)


def test_nothing_of_a_settle_is_seen_or_committed_before_all_of_it(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        lease = await claimed(broker)
        gate = Gate()
        with gate.patched():
            settling = asyncio.ensure_future(broker.settle(lease, alternating()))
            await gate.reached.wait()
            await broker.extend(lease)  # a commit of the same lane, between two steps
            assert await numbers(broker) == (MANY, 0, 0)
            await cancelled(settling)  # its client went
        assert await numbers(broker) == (MANY, 0, 0)
        broker = await home.open()  # as after a crash
        assert await numbers(broker) == (MANY, 0, 0)

    play(home, scenario)


def test_a_lease_that_changes_meanwhile_is_settled_as_it_is_then(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        lease = await claimed(broker)
        meter, gate = Meter(), Gate()
        with meter.patched(), gate.patched():
            settling = asyncio.ensure_future(broker.settle(lease, alternating(3)))
            await gate.reached.wait()
            await broker.settle(lease, [Verdict("ack", 0, 3)])
            gate.opened.set()
            await settling
        assert meter.total > MANY  # it was begun anew
        assert await numbers(broker) == (0, MANY // 3 - 1, MANY // 3 - 1)

    play(home, scenario)


def test_a_lease_that_is_lost_meanwhile_is_not_settled_in_part(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        lease = await claimed(broker)
        gate = Gate()
        with gate.patched():
            settling = asyncio.ensure_future(broker.settle(lease, alternating()))
            await gate.reached.wait()
            await broker.settle(lease, [Verdict("release", MANY - 1, MANY)])
            gate.opened.set()
            with pytest.raises(LeaseLost):
                await settling
        assert await numbers(broker) == (MANY - 1, 0, 1)

    play(home, scenario)


def test_many_verdicts_of_a_transaction_and_of_a_settle_with_a_claim(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        lease = await claimed(broker)
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            half = MANY // 2
            transaction = broker.transaction().settle(lease, alternating(0, half))
            await transaction.publish("q", Message(b"more")).commit()
            claim = await broker.settle_and_claim(lease, alternating(half), max=MANY)
            await cancelled(watching)
        assert (meter.total, meter.most) == (MANY, VERDICTS_AT_ONCE)
        assert len(claim.messages) == MANY // 3 + 1
        assert await numbers(broker) == (MANY // 3 + 1, MANY // 3, 0)

    play(home, scenario)


def test_many_verdicts_on_an_ordered_group_are_carried_out_in_place(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        lease = await claimed(broker, ordered=True)
        await broker.settle(lease, alternating())
        assert await numbers(broker) == (0, MANY // 3, MANY // 3)

    play(home, scenario)
