"""Several commits under way at once: which may be, what keeps its order, and what one that fails takes with it."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Message
from penstock.api.ticket import in_task
from penstock.embedded import open_store
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit, home_slot
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.store.contract import Capabilities
from penstock.store.memory.engine import MemoryStore
from tests.nodes import node_of


class GatedStore(MemoryStore):
    """Commits wait until a test lets them go, or fails them, by the slot that they are of."""

    capabilities = Capabilities(commits_under_way=4)

    def __init__(self) -> None:
        super().__init__()
        self.is_gated = False
        self.waiting: dict[frozenset[int], asyncio.Future[None]] = {}

    @in_task
    async def apply(self, commit: Commit) -> None:
        if self.is_gated:
            gate = self.waiting[frozenset(commit.epochs)] = asyncio.get_running_loop().create_future()
            try:
                await gate
            finally:
                del self.waiting[frozenset(commit.epochs)]
        await super().apply(commit)

    def slots(self) -> set[int]:
        """Of the commits under way."""
        return {slot for slots in self.waiting for slot in slots}

    def end(self, slot: int, error: Exception | None = None) -> None:
        gate = next(gate for slots, gate in self.waiting.items() if slot in slots)
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)

    def open_gate(self) -> None:
        self.is_gated = False
        for gate in self.waiting.values():
            if not gate.done():
                gate.set_result(None)


NAMES = ("a", "b", "c", "d", "f", "g")
SLOTS = {name: home_slot("default", name) for name in NAMES}
assert len(set(SLOTS.values())) == len(NAMES)


async def opened() -> tuple[LocalBroker, GatedStore]:
    store = GatedStore()
    broker = await open_store(store, SystemClock(), events=False)
    for name in NAMES:
        await broker.declare_queue(name)
        await broker.declare_group(name, "default")
        await broker.publish(name, Message(b"first"))
    store.is_gated = True
    return broker, store


async def settled() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_four_commits_of_four_slots_are_under_way_and_the_fifth_waits() -> None:
    async def scenario() -> None:
        broker, store = await opened()
        tickets = {}
        for name in NAMES:
            tickets[name] = broker.publish(name, Message(b"second"))
            await settled()
        assert store.slots() == {SLOTS[name] for name in NAMES[:4]}
        store.end(SLOTS["c"])
        assert (await tickets["c"]).offset == 1, "it need not wait for those that began before it"
        await settled()
        assert store.slots() == {SLOTS[name] for name in ("a", "b", "d", "f", "g")}, "those that waited share a commit"
        store.open_gate()
        await asyncio.gather(*tickets.values())
        await broker.close()

    asyncio.run(scenario())


def test_what_is_of_a_slot_under_way_waits_for_it_and_keeps_its_order() -> None:
    async def scenario() -> None:
        broker, store = await opened()
        first = broker.publish("a", Message(b"second"))
        await settled()
        second = broker.publish("a", Message(b"third"))
        await settled()
        assert len(store.waiting) == 1
        store.end(SLOTS["a"])
        assert (await first).offset == 1
        await settled()
        assert not second.is_done
        store.open_gate()
        assert (await second).offset == 2
        await broker.close()

    asyncio.run(scenario())


def test_a_failure_takes_what_is_behind_it_and_not_what_is_beside_it() -> None:
    async def scenario() -> None:
        broker, store = await opened()
        failing = broker.publish("a", Message(b"second"))
        await settled()
        beside = broker.publish("b", Message(b"second"))
        await settled()
        behind = broker.publish("a", Message(b"third"))
        also = broker.publish("b", Message(b"third"))
        await settled()
        store.end(SLOTS["a"], Unavailable("the disk is gone"))
        with pytest.raises(Unavailable):
            await failing
        await settled()
        assert not beside.is_done
        store.open_gate()
        assert (await beside).offset == 1
        for ticket in (behind, also):
            with pytest.raises(Unavailable):
                await ticket
        assert (await broker.publish("a", Message(b"again"))).offset == 1
        assert (await broker.publish("b", Message(b"again"))).offset == 2
        await broker.close()

    asyncio.run(scenario())


def test_who_waits_for_everything_waits_for_what_is_under_way() -> None:
    async def scenario() -> None:
        broker, store = await opened()
        publish = broker.publish("a", Message(b"second"))
        await settled()
        everything = node_of(broker).commits.commit()
        await settled()
        assert not everything.is_done
        store.open_gate()
        await everything
        assert publish.is_done
        await broker.close()

    asyncio.run(scenario())


def test_what_is_in_memory_is_declared_beside_a_commit_and_survives_its_failure() -> None:
    async def scenario() -> None:
        broker, store = await opened()
        store.is_gated = False
        await broker.declare_exchange("x", kind="topic")
        store.is_gated = True
        stored = asyncio.ensure_future(broker.publish("a", Message(b"stored")))
        await settled()
        assert store.slots() == {SLOTS["a"]}
        async with asyncio.timeout(5):
            await broker.declare_queue("memory", ephemeral=True, max_length=10)
            await broker.bind("x", "memory", "#")
        assert await broker.groups("memory") == {"default": {}}
        store.end(SLOTS["a"], Unavailable("the disk is away"))
        with pytest.raises(Unavailable):
            await stored
        store.open_gate()
        await broker.publish_to("x", Message(b"routed"))
        claim = await broker.claim("memory")
        assert [received.message.payload for received in claim.messages] == [b"routed"]
        await broker.close()

    asyncio.run(scenario())
