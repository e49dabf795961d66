"""What one connection publishes through one node is stored in its order, whichever node owns the queue and whichever
way to the store is cut: two nodes on one store, each with a spool and a way to the store of its own, HTTP between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.api.ticket import in_task
from penstock.batch import EncodedBatch, decode
from penstock.embedded import open_member
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.server import HttpServer
from penstock.model import Message
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit, home_slot
from penstock.node.broker.cluster import ClusterBroker
from penstock.node.clock import SystemClock
from penstock.node.cluster.membership import ClusterOptions
from penstock.node.spool import spool as spooling
from penstock.node.spool.spool import SpoolSettings
from penstock.store.memory.engine import MemoryStore
from tests.nodes import node_of
from tests.scenarios.cluster.test_slots import SharedStore
from tests.scenarios.cluster.test_spool_owners import Way
from tests.scenarios.rig import until
from tests.simulation.spool_folder import MemoryFolder

SLOT = home_slot("default", "work")


class Place:
    """One node, with its way to the store."""

    def __init__(self, broker: ClusterBroker, way: Way, disk: MemoryStore) -> None:
        self.broker = broker
        self.way = way
        self.cluster = broker.cluster
        self._disk = disk

    @property
    def spooled(self) -> int:
        numbers = self.broker.spool()
        assert numbers is not None
        return numbers.messages

    @property
    def own(self) -> str:
        """The name of a queue that this node has, and keeps."""
        slots = {home_slot("default", name): name for name in map(str, range(999))}
        return slots[min(self.cluster.ownership.owned)]

    async def lose_store(self) -> None:
        """Its commits do not arrive any more, and it has noticed."""
        self.way.is_away = True
        assert (await self.broker.publish(self.own, Message(b"it is away"))).buffered
        assert self.cluster.is_store_away

    async def log(self, queue: str) -> list[bytes]:
        """The payloads of a queue as they are stored."""
        found: list[bytes] = []
        for lane in node_of(self.broker._local).catalog.queue("default", queue).lanes:
            for row in await self._disk.read(lane, 0, 1 << 40, 1 << 40):
                found += [one.payload for one in decode(EncodedBatch(row.count, row.meta, row.body))]
        return found


@asynccontextmanager
async def node(disk: MemoryStore, name: str) -> AsyncIterator[Place]:
    options, way = ClusterOptions(heartbeat_ms=100, lease_ms=600_000), Way(disk)
    spool = SpoolSettings(MemoryFolder())
    broker = ClusterBroker.of(await open_member(way, SystemClock(), name=name, options=options, spool=spool))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        server = HttpServer(broker, HttpOptions(port=0, token="secret"))
        await server.start()
        stack.push_async_callback(server.stop)
        await broker.cluster.join(f"http://127.0.0.1:{server.port}")
        yield Place(broker, way, disk)


async def move(slot: int, giving: Place, taking: Place) -> None:
    """Move a slot from one node to the other, and wait until both know."""
    taking.cluster.ownership.keep([slot], 600)
    await giving.cluster.give([slot], taking.cluster.ownership.incarnation)
    await until(lambda: slot in taking.cluster.ownership.owned)
    await giving.cluster.beat()


def play(story: Callable[[Place, Place], Awaitable[None]]) -> None:
    """Of two nodes, the second has the queue `work`, and each has a queue of its own."""

    async def scene() -> None:
        disk = SharedStore()
        async with node(disk, "one") as first, node(disk, "two") as second:
            both = (first, second)
            await until(lambda: all(len(place.cluster.ownership.owned) == 32 for place in both))
            if SLOT in first.cluster.ownership.owned:
                await move(SLOT, first, second)
            await second.broker.declare_queue("work", keep_done_ms=3_600_000)
            for place in both:
                await place.broker.declare_queue(place.own)
            await story(first, second)
            for place in both:  # or it cannot say goodbye
                place.way.is_away = False

    asyncio.run(asyncio.wait_for(scene(), 60))


def carries_work_elsewhere(commit: Commit) -> bool:
    return bool(commit.outbox)


@pytest.mark.parametrize("how", ["publish", "publish_many", "publish_to"])
def test_what_comes_later_stays_behind_what_the_spool_holds_for_another_owner(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "WAITS_S", 0.05)

    async def story(first: Place, second: Place) -> None:
        await first.broker.declare_exchange("all", kind="fanout")
        await first.broker.bind("all", "work")

        async def publish(payload: bytes) -> None:
            message = Message(payload)
            if how == "publish":
                await first.broker.publish("work", message)
            elif how == "publish_many":
                await first.broker.publish_many("work", [message])
            else:
                await first.broker.publish_to("all", [message])

        await first.lose_store()
        await publish(b"one")
        assert first.spooled == 2
        first.way.holds = carries_work_elsewhere
        first.way.is_away = False
        await until(lambda: bool(first.way.held))  # `one` is on its way to its owner, and not there yet
        assert not first.cluster.is_store_away
        await publish(b"two")
        first.way.holds = lambda _: False
        first.way.goes_on.set()
        await until(lambda: not first.spooled)
        await publish(b"three")
        assert await second.log("work") == [b"one", b"two", b"three"]

    play(story)


def test_a_transaction_that_another_node_would_carry_out_stays_behind_the_spool_too() -> None:
    async def story(first: Place, second: Place) -> None:
        await first.lose_store()
        await first.broker.publish("work", Message(b"one"))
        first.way.holds = carries_work_elsewhere
        first.way.is_away = False
        await until(lambda: bool(first.way.held))
        with pytest.raises(Unavailable, match="in the spool, and go first"):
            await first.broker.transaction().publish("work", Message(b"two")).commit()
        first.way.holds = lambda _: False
        first.way.goes_on.set()
        await until(lambda: not first.spooled)
        await first.broker.transaction().publish("work", Message(b"two")).commit()
        assert await second.log("work") == [b"one", b"two"]

    play(story)


def test_what_comes_later_stays_behind_a_record_whose_commit_is_refused_because_the_queue_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit that replays it is under way when another node becomes the owner, and takes publishes at once."""
    monkeypatch.setattr(spooling, "WAITS_S", 0.05)

    async def story(first: Place, second: Place) -> None:
        await move(SLOT, second, first)
        first.way.is_away = True
        assert (await first.broker.publish("work", Message(b"one"))).buffered
        first.way.holds = lambda commit: any(change.batches for change in commit.lanes)
        first.way.is_away = False
        await until(lambda: bool(first.way.held))
        nodes = [place.cluster.ownership.incarnation for place in (first, second)]
        await first.way.release([SLOT], *nodes)
        await until(lambda: SLOT in second.cluster.ownership.owned)
        await until(lambda: SLOT not in first.cluster.ownership.owned)
        await first.broker.publish("work", Message(b"two"))
        first.way.holds = lambda _: False
        first.way.goes_on.set()
        await until(lambda: not first.spooled)
        await first.broker.publish("work", Message(b"three"))
        assert await second.log("work") == [b"one", b"two", b"three"]

    play(story)


async def take_over(giving: Place, taking: Place) -> None:
    """The store gives the slot of a node that it does not hear of to another one."""
    nodes = [place.cluster.ownership.incarnation for place in (giving, taking)]
    await taking.way.release([SLOT], *nodes)
    await until(lambda: SLOT in taking.cluster.ownership.owned)


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_owner_that_lost_the_store_keeps_nothing_for_another_node(is_stored: bool) -> None:
    """It would be stored when the owner has the store again, behind what its connection published later."""

    async def story(first: Place, second: Place) -> None:
        apply = second.way.apply

        async def lose(commit: Commit) -> None:
            if is_stored:
                await apply(commit)
            second.way.apply = apply  # type: ignore[method-assign]
            second.way.is_away = True
            raise Unavailable("the connection ended")

        second.way.apply = in_task(lose)  # type: ignore[method-assign]
        publishing = asyncio.ensure_future(first.broker.publish("work", Message(b"one")))
        await until(lambda: second.cluster.is_store_away)
        await take_over(second, first)
        assert not (await publishing).buffered
        assert not (await first.broker.publish("work", Message(b"two"))).buffered
        second.way.is_away = False
        await until(lambda: not second.cluster.is_store_away and not second.spooled)
        await first.broker.publish("work", Message(b"three"))
        assert await first.log("work") == [b"one", b"two", b"three"]

    play(story)


def test_what_an_owner_without_the_store_does_not_keep_is_kept_where_it_was_published() -> None:
    async def story(first: Place, second: Place) -> None:
        second.way.is_away = True
        publishing = asyncio.ensure_future(first.broker.publish("work", Message(b"one")))
        await until(lambda: second.cluster.is_store_away)
        await first.lose_store()
        assert (await publishing).buffered
        assert (await first.broker.publish("work", Message(b"two"))).buffered
        assert (first.spooled, second.spooled) == (3, 0)
        second.way.is_away = first.way.is_away = False
        await until(lambda: not first.spooled)
        assert await first.log("work") == [b"one", b"two"]

    play(story)


def test_what_came_through_another_node_does_not_wait_for_the_spool_of_the_owner() -> None:
    async def story(first: Place, second: Place) -> None:
        await second.lose_store()
        assert (await second.broker.publish("work", Message(b"second's"))).buffered
        second.way.holds = lambda commit: any(change.batches for change in commit.lanes)
        second.way.is_away = False
        await until(lambda: bool(second.way.held))
        publishing = asyncio.ensure_future(first.broker.publish("work", Message(b"first's")))
        second.way.holds = lambda _: False
        second.way.goes_on.set()
        assert not (await publishing).buffered
        await until(lambda: not second.spooled)
        assert sorted(await first.log("work")) == [b"first's", b"second's"]

    play(story)
