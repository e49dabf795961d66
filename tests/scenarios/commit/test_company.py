"""How long a commit waits for those who were answered together: some turns of the loop, more where commits are slow."""

from __future__ import annotations

import asyncio
import os

import pytest

from penstock import Message
from penstock.node.broker import LocalBroker
from penstock.node.commit.loop import CommitLoop
from penstock.node.commit.pacing import PLENTY_BYTES, TURNS, TURNS_REMOTE, Pacing
from penstock.node.commit.pending import Pending
from penstock.store.contract import Capabilities
from penstock.store.mysql.engine import MysqlStore
from penstock.store.postgres.engine import PostgresStore
from tests.nodes import node_of
from tests.scenarios.rig import turns
from tests.scenarios.shaky import Machine, ShakyStore, play


class RemoteStore(ShakyStore):
    capabilities = Capabilities(is_remote=True)


async def publish(broker: LocalBroker, after_turns: int) -> None:
    await broker.publish("q", Message(b"x"))
    await turns(after_turns)
    await broker.publish("q", Message(b"y"))


@pytest.mark.parametrize(
    ("store", "late_turns", "commits"),
    [
        (ShakyStore, TURNS // 2, 2),
        (ShakyStore, TURNS * 2, 3),
        (RemoteStore, TURNS * 2, 2),
        (RemoteStore, TURNS_REMOTE * 2, 3),
    ],
)
def test_two_who_were_answered_together_share_a_commit_again_unless_one_is_late(
    store: type[ShakyStore], late_turns: int, commits: int
) -> None:
    async def story(machine: Machine) -> None:
        machine.store = store()
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "default")
        before = len(machine.store.commits)
        await asyncio.gather(publish(broker, 0), publish(broker, late_turns))
        assert len(machine.store.commits) - before == commits

    play(story)


async def turns_waited(machine: Machine, broker: LocalBroker, payload: bytes = b"y") -> int:
    """How many turns of the loop a publish waits before its commit is begun."""
    before, waited = machine.store.tries, 0
    publishing = asyncio.ensure_future(broker.publish("q", Message(payload)))
    while machine.store.tries == before:
        await turns(1)
        waited += 1
    await publishing
    return waited


def test_who_does_not_come_again_is_waited_for_once() -> None:
    async def story(machine: Machine) -> None:
        machine.store = RemoteStore()
        broker = await machine.open()
        await broker.declare_queue("q")
        await asyncio.gather(*(broker.publish("q", Message(b"x")) for _ in range(3)))
        assert await turns_waited(machine, broker) > TURNS_REMOTE
        assert await turns_waited(machine, broker) < TURNS // 4

    play(story)


def test_who_has_plenty_to_write_waits_for_nobody() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        for size, most, least in ((PLENTY_BYTES // 2, 2 * TURNS, TURNS), (PLENTY_BYTES, TURNS // 4, 0)):
            await asyncio.gather(*(broker.publish("q", Message(b"x")) for _ in range(3)))
            assert least <= await turns_waited(machine, broker, os.urandom(size)) < most

    play(story)


def test_databases_say_that_they_are_remote() -> None:
    assert PostgresStore.capabilities.is_remote
    assert MysqlStore.capabilities.is_remote


def test_no_turn_is_spent_on_company_while_the_commit_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages handed to waiting claims as their commit is sealed ask for no commit of their own."""

    async def story(machine: Machine) -> None:
        broker = await machine.open()
        commits, should_wait, under_way = node_of(broker).commits, Pacing.should_wait, list[int]()
        assert isinstance(commits, CommitLoop)

        def asked(pacing: Pacing, pending: Pending) -> bool:
            under_way.append(commits.under_way)
            return should_wait(pacing, pending)

        monkeypatch.setattr(Pacing, "should_wait", asked)
        await broker.declare_queue("q")
        claims = [asyncio.ensure_future(broker.claim("q", wait=60)) for _ in range(2)]
        await asyncio.sleep(1)  # of virtual time: they stand in line
        await asyncio.gather(*(broker.publish("q", Message(b"x")) for _ in range(2)), *claims)
        assert under_way
        assert not any(under_way)

    play(story)


def test_what_comes_while_a_message_is_handed_out_is_committed() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        waiting = asyncio.ensure_future(broker.claim("q", wait=60))
        await asyncio.sleep(1)  # of virtual time: it stands in line
        second: list[asyncio.Future[object]] = []
        first = broker.publish("q", Message(b"x"))  # handed to the claim as it is sealed
        asyncio.get_running_loop().call_soon(
            lambda: second.append(asyncio.ensure_future(broker.publish("q", Message(b"y"))))
        )
        await first
        await waiting
        async with asyncio.timeout(10):
            await second[0]

    play(story)
