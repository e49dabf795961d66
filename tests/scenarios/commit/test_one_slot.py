"""A store that commits one slot at a time: what crosses slots happens all the same, once, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from penstock import Message
from penstock.api.ticket import in_task
from penstock.embedded import open_store
from penstock.model.errors import InvalidArgument, Unavailable
from penstock.model.rows import REGISTRAR_SLOT, CatalogRow, Commit, OutboxRow, home_slot
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.publish.parts import Origin, Part
from penstock.store.contract import Capabilities
from tests.nodes import node_of
from tests.one_slot import OneSlotStore
from tests.scenarios.rig import claim_all, group_stats, is_outbox_empty, texts, until

QUEUES = ("a", "b", "c")
SLOTS = {name: home_slot("default", name) for name in QUEUES}
assert len({*SLOTS.values(), REGISTRAR_SLOT}) == len(QUEUES) + 1


class Watched(OneSlotStore):
    """Commits of some slots wait, or fail; all are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, asyncio.Event] = {}
        self.failing: set[int] = set()
        self.applying: list[int] = []
        self.most = 0
        self.order: list[int] = []

    @in_task
    async def apply(self, commit: Commit) -> None:
        [slot] = commit.epochs
        assert slot not in self.applying, "two commits of one slot at once"
        self.applying.append(slot)
        self.most = max(self.most, len(self.applying))
        self.order.append(slot)
        try:
            if slot in self.held:
                await self.held[slot].wait()
            await asyncio.sleep(0)
            if slot in self.failing:
                raise Unavailable("the disk of this slot is gone")
            await super().apply(commit)
        finally:
            self.applying.remove(slot)

    def hold(self, *names: str) -> None:
        self.held |= {SLOTS[name]: asyncio.Event() for name in names}

    def let_go(self, *names: str) -> None:
        for name in names:
            self.held.pop(SLOTS[name]).set()


class WatchedFour(Watched):
    capabilities = Capabilities(spans_slots=False, commits_under_way=4)


async def opened(store: OneSlotStore) -> LocalBroker:
    broker = await open_store(store, SystemClock(), events=False)
    for name in QUEUES:
        await broker.declare_queue(name)
        await broker.declare_group(name, "default")
    await broker.declare_exchange("x", kind="fanout")
    for name in QUEUES:
        await broker.bind("x", name)
    return broker


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(main())


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def in_every_queue(broker: LocalBroker) -> list[list[str]]:
    return [await claim_all(broker, name) for name in QUEUES]


def test_a_publish_to_several_slots_is_decided_by_the_commit_of_one() -> None:
    """Before it nothing is there; after it everything will be, also when the node dies at once."""

    async def scenario() -> None:
        store = Watched()
        broker = await opened(store)
        before = store.clone()
        store.hold("b", "c")  # the commit of `a` decides: it was declared first
        publish = broker.publish_to("x", Message(b"1"))
        await until(lambda: bool(set(store.applying) & {SLOTS["b"], SLOTS["c"]}))
        assert not publish.is_done, "it is answered when it is in all of its queues"
        crashed = store.clone()
        store.let_go("b", "c")
        assert len((await publish).of(0)) == 3
        await broker.close()
        for image, found in ((before, []), (crashed, ["1"])):
            after = await open_store(image, SystemClock(), events=False)
            assert await in_every_queue(after) == [found] * 3
            assert await is_outbox_empty(after)
            await after.close()

    play(scenario)


def test_a_transaction_settles_in_its_own_slot_and_publishes_to_others() -> None:
    async def scenario() -> None:
        store = Watched()
        broker = await opened(store)
        await broker.publish("a", Message(b"1"))
        claim = await broker.claim("a")
        store.hold("b")

        async def transact() -> None:
            async with broker.transaction() as transaction:
                transaction.ack(claim)
                transaction.publish("b", Message(b"2"))

        task = asyncio.create_task(transact())
        await until(lambda: SLOTS["b"] in store.applying)
        after = await open_store(store.clone(), SystemClock(), events=False)
        assert (await group_stats(after, "a")).leased == 0
        assert await claim_all(after, "b") == ["2"]
        await after.close()
        store.let_go("b")
        await task
        await broker.close()

    play(scenario)


def test_leases_of_several_slots_are_not_settled_in_one_transaction() -> None:
    async def scenario() -> None:
        broker = await opened(OneSlotStore())
        await broker.publish_to("x", Message(b"1"))
        first, second = await broker.claim("a"), await broker.claim("b")
        transaction = broker.transaction()
        transaction.ack(first)
        transaction.ack(second)
        with pytest.raises(InvalidArgument, match="one slot at a time"):
            await transaction.commit()
        for name in ("a", "b"):
            assert (await group_stats(broker, name)).leased == 1
        await broker.close()

    play(scenario)


def test_a_slot_that_fails_takes_no_other_with_it() -> None:
    async def scenario() -> None:
        store = Watched()
        broker = await opened(store)
        store.hold("a")
        store.failing = {SLOTS["a"]}
        failing = broker.publish("a", Message(b"1"))
        await settled()
        behind, beside = broker.publish("a", Message(b"2")), broker.publish("b", Message(b"3"))
        store.let_go("a")
        assert (await beside).offset == 0
        for ticket in (failing, behind):
            with pytest.raises(Unavailable):
                await ticket
        store.failing = set()
        assert (await broker.publish("a", Message(b"4"))).offset == 0
        await broker.close()

    play(scenario)


def test_slots_take_turns() -> None:
    async def scenario() -> None:
        store = Watched()
        broker = await opened(store)
        store.order.clear()
        store.most = 0

        async def publish(name: str) -> None:
            for number in range(10):
                await broker.publish(name, Message(b"%d" % number))

        await asyncio.gather(*map(publish, QUEUES))
        assert store.most == 1
        assert len(store.order) == 30
        assert all(len(set(store.order[at : at + 3])) == 3 for at in range(0, 30, 3)), "none comes twice before another"
        await broker.close()

    play(scenario)


def test_as_many_slots_commit_at_once_as_the_engine_can_do() -> None:
    async def scenario() -> None:
        store = WatchedFour()
        broker = await opened(store)
        store.hold(*QUEUES)
        tickets = [broker.publish(name, Message(b"1")) for name in QUEUES]
        await until(lambda: len(store.applying) == 3)
        everything = node_of(broker).commits.commit()
        store.let_go("a")
        await tickets[0]
        assert not everything.is_done
        store.let_go("b", "c")
        await everything
        assert all(ticket.is_done for ticket in tickets)
        await broker.close()

    play(scenario)


def test_a_queue_and_its_bindings_go_in_two_commits() -> None:
    async def scenario() -> None:
        store = Watched()
        broker = await opened(store)
        images: list[OneSlotStore] = []
        apply = store.apply

        @in_task
        async def watched(commit: Commit) -> None:
            await apply(commit)
            copy = store.clone()
            assert isinstance(copy, OneSlotStore)
            images.append(copy)

        setattr(store, "apply", watched)  # noqa: B010 - mypy knows that methods are not assigned to
        await broker.delete_queue("b")
        await until(lambda: all(b'"b"' not in row.document for row in bindings(store)))
        await broker.close()
        for image in images:  # a crash after each of its commits
            after = await open_store(image, SystemClock(), events=False)
            await after.publish_to("x", Message(b"1"))
            for name in ("a", "c"):
                assert texts(await after.claim(name)) == ["1"]
            await after.close()

    play(scenario)


def bindings(store: OneSlotStore) -> list[CatalogRow]:
    return [row for row in store._catalog.in_order() if row.kind == "binding"]


# The order of what a spool sends --------------------------------------------------------------------------------


class Late(OneSlotStore):
    """Rows of the outbox are seen only once those of another slot's commit were read, though their ids are lower."""

    def __init__(self) -> None:
        super().__init__()
        self.late: set[int] = set()

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        rows = await super().outbox(after, 1_000, slots)
        if all(row.id in self.late for row in rows):
            self.late.clear()
        return [row for row in rows if row.id not in self.late][: min(most, 1)]


def test_rows_that_come_below_those_that_were_read_go_first() -> None:
    """A spool's records enter a lane in order: one that comes behind a later one would be taken for a repetition."""

    async def scenario() -> None:
        store = Late()
        broker = await opened(store)
        node = node_of(broker)

        def promised(name: str, sequence: int) -> OutboxRow:
            queue = node.catalog.queue("default", name)
            message = Message(b"%d" % sequence)
            part = Part(queue, queue.lanes[0], [message], None, None, None, origin=Origin("spool", sequence))
            return node.remote.promise(part)[0]

        rows = [promised("a", 1), promised("b", 2), promised("a", 3)]
        store.late = {rows[0].id, rows[2].id}
        epochs = {SLOTS["c"]: node.ownership.epoch(SLOTS["c"])}
        await store.apply(Commit(epochs=epochs, outbox=rows))
        assert await node.outbox.drain(set(SLOTS.values()))
        assert [await claim_all(broker, name) for name in ("a", "b")] == [["1", "3"], ["2"]]
        await broker.close()

    play(scenario)
