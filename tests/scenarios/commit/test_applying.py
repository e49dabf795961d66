"""How a round is applied: where the store is done at once, and where memory keeps a part of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import Closed, Message
from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.embedded import open_store
from penstock.model.errors import InvalidArgument, Unavailable
from penstock.model.rows import Commit
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.store.memory.engine import MemoryStore
from penstock.store.sqlite import engine
from penstock.store.sqlite.engine import SqliteStore
from tests.nodes import node_of
from tests.scenarios.rig import soon, texts, turns

PUBLISHES = 2_000
"""More than Python's stack has room for."""


class Held(MemoryStore):
    """Commits wait for the test, once it holds them."""

    is_held = False

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Commit, Ticket[None]]] = []

    def apply(self, commit: Commit) -> Ticket[None]:
        if not self.is_held:
            return super().apply(commit)
        ticket: Ticket[None] = Ticket()
        self.held.append((commit, ticket))
        return ticket

    def let_go(self) -> None:
        commit, ticket = self.held.pop()
        super().apply(commit)
        ticket.end()


async def opened(store: Held) -> LocalBroker:
    broker = await open_store(store, SystemClock(), events=False)
    await broker.declare_queue("kept")
    await broker.declare_queue("brief", ephemeral=True)
    await broker.declare_exchange("both", kind="fanout")
    for queue in ("kept", "brief"):
        await broker.declare_group(queue, "default")
        await broker.bind("both", queue)
    return broker


@pytest.mark.parametrize("queue", ["kept", "brief"])
def test_a_round_that_is_done_at_once_begins_no_other_within_it(queue: str) -> None:
    async def scenario() -> None:
        broker = await opened(Held())
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def publish_again(ticket: Ticket[Receipt]) -> None:
            if ticket.result().first().offset == PUBLISHES:
                told.set_result(None)
            else:
                broker.publish_many(queue, [Message(b"again")]).then(publish_again)

        broker.publish_many(queue, [Message(b"first")]).then(publish_again)
        await soon(told)
        await broker.close()

    asyncio.run(scenario())


def test_memory_gets_its_part_when_the_store_has_its_own() -> None:
    async def scenario() -> None:
        store = Held()
        broker = await opened(store)
        store.is_held = True
        ticket = broker.publish_to("both", Message(b"m"))
        await turns()
        assert len(store.held) == 1
        [lane] = node_of(broker).catalog.queue("default", "brief").lanes
        assert not await node_of(broker).memory.read(lane, 0, 1, 1)
        store.let_go()
        assert await node_of(broker).memory.read(lane, 0, 1, 1)
        await soon(ticket)
        store.is_held = False
        for queue in ("kept", "brief"):
            assert texts(await broker.claim(queue)) == ["m"]
        await broker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [Unavailable("the disk is gone"), asyncio.CancelledError(), OSError("what")])
def test_memory_gets_nothing_when_the_store_fails(failure: BaseException) -> None:
    async def scenario() -> None:
        store = Held()
        broker = await opened(store)
        store.is_held = True
        ticket = broker.publish_to("both", Message(b"m"))
        await turns()
        store.held.pop()[1].fail(failure)
        with pytest.raises(Closed if isinstance(failure, asyncio.CancelledError) else Unavailable):
            await soon(ticket)
        store.is_held = False
        for queue in ("kept", "brief"):
            assert texts(await broker.claim(queue)) == []
        await broker.close()

    asyncio.run(scenario())


def test_a_commit_that_the_engine_refuses_ends_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Commit) -> None:
        raise InvalidArgument("no engine may apply it")

    async def scenario() -> None:
        broker = await open_store(await SqliteStore.open(tmp_path / "penstock.db"), SystemClock(), events=False)
        await broker.declare_queue("kept")
        with monkeypatch.context() as patch:
            patch.setattr(engine, "check_commit", refuse)
            with pytest.raises(InvalidArgument, match="no engine"):
                await soon(broker.publish("kept", Message(b"refused")))
        await soon(broker.publish("kept", Message(b"taken")))
        assert texts(await broker.claim("kept", max=2)) == ["taken"]
        await broker.close()

    asyncio.run(scenario())
