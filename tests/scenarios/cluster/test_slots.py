"""What a node does with slots that it loses or hands on, seen through its broker; two of them on one memory store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock.api.results import Claim
from penstock.api.ticket import Ticket, in_task
from penstock.embedded import open_member
from penstock.model import Message
from penstock.model.errors import Fenced, NotOwner, Unavailable
from penstock.model.rows import SLOTS, ClusterView, Commit, LaneImage, home_slot
from penstock.node.broker import LocalBroker
from penstock.node.clock import StoreClock, SystemClock
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.store.memory.engine import MemoryStore
from tests.nodes import node_of

SLOT = home_slot("default", "work")


class SharedStore(MemoryStore):
    """The store of several brokers: it stays open when one of them closes."""

    async def close(self) -> None:
        """Nothing."""


@asynccontextmanager
async def member(store: MemoryStore, name: str) -> AsyncIterator[tuple[LocalBroker, Cluster]]:
    options = ClusterOptions(heartbeat_ms=60_000, lease_ms=600_000)  # nothing happens by itself
    broker = await open_member(store, SystemClock(), name=name, options=options)
    try:
        assert broker.cluster is not None
        await broker.cluster.join(f"http://{name}:7333")
        yield broker, broker.cluster
    finally:
        await broker.close()


def test_what_was_not_committed_when_a_slot_was_lost_is_not_answered() -> None:
    async def story() -> None:
        store = SharedStore()
        async with member(store, "one") as (broker, cluster):
            await broker.declare_queue("work")
            publishing = broker.publish("work", Message(b"m"))  # it is in memory now, and its commit has not begun
            cluster._lose({SLOT}, "for the test")
            with pytest.raises(Fenced):
                await publishing
            assert (await store.load(node_of(broker).catalog.queue("default", "work").lanes, 1))[0].end == 0

    asyncio.run(story())


def test_who_waits_for_a_slot_that_is_handed_on_is_told_where_it_went() -> None:
    async def story() -> None:
        store = SharedStore()
        async with member(store, "one") as (first, giving), member(store, "two") as (second, taking):
            await first.declare_queue("work")
            claiming = asyncio.ensure_future(first.claim("work", wait=30))
            await asyncio.sleep(0.05)
            await giving.beat()  # knows of the second now
            to = giving.ownership.node_of(taking.ownership.incarnation)
            assert to is not None
            if SLOT in giving.ownership.owned:
                await giving.hand_over({SLOT}, to)
            with pytest.raises(NotOwner) as raised:
                await claiming
            assert raised.value.slot == SLOT
            with pytest.raises(NotOwner):
                await first.publish("work", Message(b"m"))
            await taking.beat()
            assert SLOT in taking.ownership.owned
            await second.publish("work", Message(b"m"))
            assert (await second.claim("work", ack=True)).payloads() == [b"m"]

    asyncio.run(story())


class Gate(SharedStore):
    """Commits wait while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    @in_task
    async def apply(self, commit: Commit) -> None:
        self.waiting += 1
        await self.open.wait()
        self.waiting -= 1
        await super().apply(commit)


async def begun_claim(store: Gate, broker: LocalBroker) -> asyncio.Future[Claim]:
    """A claim of the only message, whose commit waits at the gate."""
    await broker.declare_queue("work")
    await broker.declare_group("work", "default")
    await broker.publish("work", Message(b"m"))
    store.open.clear()
    claiming = asyncio.ensure_future(broker.claim("work"))
    while not store.waiting:  # noqa: ASYNC110 - the loop turns once
        await asyncio.sleep(0)
    return claiming


def test_a_claim_that_is_committed_while_its_slot_is_handed_on_is_answered() -> None:
    """Were it told that the slot is another's, it would ask there, and what it has leased would be nobody's."""

    async def story() -> None:
        store = Gate()
        async with member(store, "one") as (broker, cluster):
            claiming = await begun_claim(store, broker)
            handing = asyncio.ensure_future(cluster._slots.hand_on({SLOT}))
            await asyncio.sleep(0)
            assert SLOT not in cluster.ownership.owned
            store.open.set()
            assert (await claiming).payloads() == [b"m"]
            await handing

    asyncio.run(story())


def test_what_is_published_at_the_last_moment_is_stored_before_its_slot_is_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        store = SharedStore()
        async with member(store, "one") as (broker, cluster):
            await broker.declare_queue("work")
            await broker.publish("work", Message(b"a"))
            commits, lanes = node_of(broker).commits, node_of(broker).lanes
            lane = lanes.get(*node_of(broker).catalog.queue("default", "work").lanes)
            assert lane is not None
            late: list[Ticket[None]] = []

            def come_late() -> None:
                """What began before the slot was handed on, and comes to its lane now."""
                lane.append(SystemClock().now_ms(), [Message(b"b")])
                late.append(commits.commit(lane))

            concerns_slots = commits.concerns_slots

            def concerns_none(slots: set[int]) -> bool:
                found = concerns_slots(slots)
                if not found and not late:
                    asyncio.get_running_loop().call_soon(come_late)
                return found

            monkeypatch.setattr(commits, "concerns_slots", concerns_none)
            await cluster._slots.hand_on({SLOT})
            await late[0]
            assert (await store.load([lane.id], 1))[0].end == 2

    asyncio.run(story())


def test_a_claim_whose_slot_is_lost_behind_its_commit_may_have_been_done() -> None:
    """So it is not `NotOwner`, upon which it would be asked for again as if nothing had happened."""

    async def story() -> None:
        store = Gate()
        async with member(store, "one") as (broker, cluster):
            claiming = await begun_claim(store, broker)
            cluster._lose({SLOT}, "for the test")
            store.open.set()
            with pytest.raises(Unavailable) as raised:
                await claiming
            assert type(raised.value) is Unavailable

    asyncio.run(story())


def test_a_commit_under_an_old_epoch_is_refused_and_the_node_goes_on_with_what_it_has() -> None:
    async def story() -> None:
        store = SharedStore()
        async with member(store, "one") as (broker, cluster):
            await broker.declare_queue("work")
            other = next(name for name in map(str, range(99)) if home_slot("default", name) != SLOT)
            await broker.declare_queue(other)
            await store.acquire([SLOT], "somebody")
            with pytest.raises(Fenced):
                await broker.publish("work", Message(b"m"))
            await cluster.beat()
            await broker.publish(other, Message(b"m"))  # this is still its own
            await broker.publish("work", Message(b"n"))  # and that nobody's, so it has taken it again
            assert (await broker.claim("work", ack=True)).payloads() == [b"n"]

    asyncio.run(story())


class SlowStore(SharedStore):
    """Its next `load` answers late, with what was true when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Event | None = None

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        found = await super().load(lanes, dedup_most)
        gate, self.answers = self.answers, None
        if gate is not None:
            await gate.wait()
        return found


async def passed_on(store: MemoryStore, giving: Cluster, taking: Cluster) -> None:
    """A slot that the first has lost is taken by the second."""
    await store.release([SLOT], giving.ownership.incarnation, taking.ownership.incarnation)
    await taking.beat()
    assert SLOT in taking.ownership.owned


def test_a_lane_that_was_read_before_another_node_had_it_is_read_again() -> None:
    async def story() -> None:
        store = SlowStore()
        async with member(store, "one") as (first, giving), member(store, "two") as (second, taking):
            if SLOT in taking.ownership.owned:
                first, giving, second, taking = second, taking, first, giving
            await first.declare_queue("work")
            await first.declare_group("work", "default")
            await first.publish("work", Message(b"m"))
            await taking.beat()
            await giving.beat()
            lanes = node_of(first).catalog.queue("default", "work").lanes
            node_of(first).lanes.drop(set(lanes))
            gate = store.answers = asyncio.Event()
            claiming = asyncio.ensure_future(first.claim("work"))
            await asyncio.sleep(0.01)  # the lane is asked for, and m is not handed out yet
            giving._lose({SLOT}, "for the test")
            await passed_on(store, giving, taking)
            assert (await second.claim("work", ack=True)).payloads() == [b"m"]
            to = taking.ownership.node_of(giving.ownership.incarnation)
            assert to is not None
            await taking.hand_over({SLOT}, to)
            await giving.beat()
            assert SLOT in giving.ownership.owned
            gate.set()
            assert (await claiming).payloads() == []

    asyncio.run(story())


def test_what_a_refused_commit_would_have_stored_is_not_handed_out() -> None:
    async def story() -> None:
        store = SharedStore()
        async with member(store, "one") as (first, giving), member(store, "two") as (second, taking):
            if SLOT in taking.ownership.owned:
                first, giving, second, taking = second, taking, first, giving
            await first.declare_queue("work")
            await first.declare_group("work", "default")
            await taking.beat()
            await giving.beat()
            await store.release([SLOT], giving.ownership.incarnation, taking.ownership.incarnation)
            await taking.beat()
            with pytest.raises(Fenced):
                await first.publish("work", Message(b"refused"))
            giving._lose({SLOT}, "for the test")
            await second.publish("work", Message(b"stored"))
            to = taking.ownership.node_of(giving.ownership.incarnation)
            assert to is not None
            await taking.hand_over({SLOT}, to)
            await giving.beat()
            assert SLOT in giving.ownership.owned
            assert (await first.claim("work", ack=True)).payloads() == [b"stored"]

    asyncio.run(story())


class UnwillingStore(SharedStore):
    """It does not take the next releases."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the connection ended")
        await super().release(slots, incarnation, to)


def test_slots_whose_release_failed_are_not_left_without_an_owner() -> None:
    """They are this node's for the store, and it has let go of them: nobody else can take them."""

    async def story() -> None:
        store = UnwillingStore()
        async with member(store, "one") as (_, giving), member(store, "two") as (_, taking):
            store.refusals = 1
            with pytest.raises(Unavailable):
                await giving.beat()
            for _ in range(30):
                await giving.beat()
                await taking.beat()
            assert giving.ownership.owned | taking.ownership.owned == set(range(SLOTS))
            assert (len(giving.ownership.owned), len(taking.ownership.owned)) == (SLOTS // 2, SLOTS // 2)

    asyncio.run(story())


class SlowAtFirst(SharedStore):
    """Says what time it is, and the first times it takes long until that arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def heartbeat(self, incarnation: int) -> ClusterView:
        view = await super().heartbeat(incarnation)
        self.asked += 1
        if self.asked < 3:
            await asyncio.sleep(0.3)
        return view


def test_a_node_that_joins_learns_the_time_from_an_answer_that_came_quickly() -> None:
    async def story() -> None:
        options = ClusterOptions(heartbeat_ms=60_000, lease_ms=600_000)
        broker = await open_member(SlowAtFirst(), StoreClock(), name="one", options=options)
        try:
            assert broker.cluster is not None
            await broker.cluster.join("http://one:7333")
            assert abs(node_of(broker).clock.now_ms() - time.time() * 1000) < 100
        finally:
            await broker.close()

    asyncio.run(story())
