"""Spools among several nodes while slots change hands: what is under way goes first, what is in doubt is waited for.

Each story is one that loses or doubles a message where its guard is missing. Nodes on one memory store, a virtual
clock; nothing happens by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.api.ticket import in_task
from penstock.batch import EncodedBatch, decode
from penstock.embedded import open_member
from penstock.model import Message
from penstock.model.errors import NotOwner, Unavailable
from penstock.model.rows import Commit, DedupRow, home_slot
from penstock.node.broker import LocalBroker
from penstock.node.cluster import remote_publish
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.node.cluster.remote_publish import Landed, Landing
from penstock.node.spool.spool import SpoolSettings
from penstock.store.memory.engine import MemoryStore
from tests.nodes import node_of
from tests.simulation.spool_folder import MemoryFolder
from tests.simulation.virtual_loop import SimulatedClock, VirtualLoop, run

SLOT = home_slot("default", "work")
LEASE_S = 600


class Way:
    """One node's way to the store that all have: it can be cut, and what a test chooses is held back on it."""

    def __init__(self, disk: MemoryStore) -> None:
        self._disk = disk
        self.is_away = False
        self.holds: Callable[[Commit], bool] = lambda _: False
        self.goes_on = asyncio.Event()
        self.held: list[Commit] = []
        self.refuses: Callable[[Commit], bool] = lambda _: False
        self.refused = 0
        self.holds_position_of = -1
        self.positions_go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    @in_task
    async def apply(self, commit: Commit) -> None:
        if self.is_away:
            raise Unavailable("nobody answers")
        if self.holds(commit):
            self.held.append(commit)
            await self.goes_on.wait()
        if self.refuses(commit):
            self.refused += 1
            raise Unavailable("the connection ended before it arrived")
        await self._disk.apply(commit)

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        if any(key.startswith(b"spool:") and key.endswith(b":%d" % self.holds_position_of) for key in keys):
            await self.positions_go_on.wait()
        return await self._disk.find_dedup(lane, keys)

    async def close(self) -> None:
        """The disk stays open for the others."""


class Wires:
    """Nodes reach each other by their names."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def poke(self, url: str) -> None:
        self._world.clusters[url].look()

    async def landed(self, url: str, landings: list[Landing]) -> list[Landed]:
        await asyncio.sleep(self._world.delay_s)
        return await self._world.clusters[url].landed(landings)

    async def end_session(self, url: str, session: str) -> None:
        raise AssertionError

    async def hand_over(self, url: str, slots: list[int], to: int) -> None:
        raise AssertionError


class World:
    """One store, and nodes by their names."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.disk = MemoryStore(self.clock.now_ms)
        self.clusters: dict[str, Cluster] = {}
        self.ways: dict[str, Way] = {}
        self.delay_s = 0.0
        """How long a call of another node takes."""
        self._ids = 0

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:04}"

    async def join(self, name: str, folder: MemoryFolder | None = None) -> tuple[LocalBroker, Way]:
        way = self.ways[name] = Way(self.disk)
        broker = await open_member(
            way,
            self.clock,
            name=name,
            options=ClusterOptions(heartbeat_ms=60_000, lease_ms=LEASE_S * 1000),
            spool=SpoolSettings(folder or MemoryFolder(), new_id=self._new_id),
        )
        assert broker.cluster is not None
        broker.cluster.peers = Wires(self)
        self.clusters[name] = broker.cluster
        await broker.cluster.join(name)
        return broker, way

    async def move(self, slot: int, giving: str, taking: str) -> None:
        """Hand a slot on in good order."""
        to = self.clusters[giving].ownership.node_of(self.clusters[taking].ownership.incarnation)
        assert to is not None
        await self.clusters[giving].hand_over({slot}, to)
        await self.clusters[taking].beat()
        assert slot in self.clusters[taking].ownership.owned

    async def log(self, broker: LocalBroker, queue: str) -> list[bytes]:
        """The payloads of a queue as they are stored."""
        found: list[bytes] = []
        for lane in node_of(broker).catalog.queue("default", queue).lanes:
            for row in await self.disk.read(lane, 0, 1 << 40, 1 << 40):
                found += [one.payload for one in decode(EncodedBatch(row.count, row.meta, row.body))]
        return found


async def come(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{condition} did not come true")


def spooled(broker: LocalBroker) -> int:
    numbers = broker.spool()
    assert numbers is not None
    return numbers.messages


def play(story: Callable[[World], Awaitable[None]]) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await story(World(loop))

    run(loop, main())


async def two_nodes(world: World) -> tuple[LocalBroker, LocalBroker, Way]:
    """Both know of each other; the second has the slot of `work`. The first, which has the spool that matters, comes
    first; with its way to the store.
    """
    first, way = await world.join("first")
    second, _ = await world.join("second")
    for _ in range(20):  # until each has its share
        for cluster in world.clusters.values():
            await cluster.beat()
    if SLOT in world.clusters["first"].ownership.owned:
        await world.move(max(world.clusters["second"].ownership.owned), "second", "first")
        await world.move(SLOT, "first", "second")
    for cluster in world.clusters.values():
        await cluster.beat()
    return first, second, way


async def declared(world: World, broker: LocalBroker, queue: str, **options: Any) -> None:
    """At the node that owns its home; then both know of it."""
    await broker.declare_queue(queue, keep_done_ms=3_600_000, **options)
    for cluster in world.clusters.values():
        await cluster.beat()


def homed(cluster: Cluster) -> Iterator[str]:
    """Names of queues that a node owns, and owns longest: it is the highest slots that are handed on."""
    slots = {home_slot("default", name): name for name in map(str, range(999))}
    return (slots[slot] for slot in sorted(cluster.ownership.owned))


def test_records_that_wait_for_room_at_another_node_go_before_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue's records stay in the outbox; then the node that has the spool becomes the queue's owner."""
    monkeypatch.setattr(remote_publish, "LANDED_WITHIN_S", 0.1)

    async def story(world: World) -> None:
        first, second, way = await two_nodes(world)
        mine = next(homed(world.clusters["first"]))
        await declared(world, second, "work", max_length=3)
        await declared(world, first, mine)
        for number in range(3):
            await second.publish("work", Message(b"full-%d" % number))
        way.is_away = True
        assert (await first.publish(mine, Message(b"it is away"))).buffered
        assert (await first.publish("work", Message(b"one"))).buffered
        way.is_away = False
        await come(lambda: not spooled(first))
        assert len(await world.disk.outbox(0, 10, [SLOT])) == 1
        await world.move(SLOT, "second", "first")
        await asyncio.sleep(0.01)  # the outbox has seen that it is full, and looks again only later
        claim = await first.claim("work", max=3)
        await first.ack(claim)
        assert (await first.publish("work", Message(b"two"))).buffered, "it would overtake"
        await come(lambda: not spooled(first))
        assert (await world.log(first, "work"))[3:] == [b"one", b"two"]

    play(story)


def test_records_in_a_commit_under_way_to_the_outbox_go_before_later_ones() -> None:
    """The node becomes the queue's owner while its commit for another owner is on its way: the outbox is empty yet."""

    async def story(world: World) -> None:
        first, second, way = await two_nodes(world)
        names = homed(world.clusters["first"])
        early, mine = next(names), next(names)
        await declared(world, second, "work")
        for queue in (early, mine):
            await declared(world, first, queue)
        await second.publish("work", Message(b"zero"))
        way.is_away = True
        for queue, payload in ((early, b"it is away"), ("work", b"one"), (mine, b"between"), ("work", b"two")):
            assert (await first.publish(queue, Message(payload))).buffered
        way.holds = lambda commit: bool(commit.outbox)
        [way.holds_position_of] = node_of(first).catalog.queue("default", mine).lanes
        way.is_away = False
        await come(lambda: bool(way.held))  # `one` is on its way, and `between` waits
        await world.move(SLOT, "second", "first")
        assert await world.disk.outbox(0, 10, [SLOT]) == []
        way.positions_go_on.set()
        await asyncio.sleep(0.01)  # nothing else is due: all that can be done is done
        way.holds = lambda _: False
        way.goes_on.set()
        await come(lambda: not spooled(first))
        assert await world.log(first, "work") == [b"zero", b"one", b"two"]
        assert await world.log(first, mine) == [b"between"]

    play(story)


def test_a_commit_that_fails_while_an_owner_takes_records_leaves_no_gap() -> None:
    """Those behind a record that was in it must not be appended: it would be taken for one that is there."""

    async def story(world: World) -> None:
        first, second, way = await two_nodes(world)
        mine, other = next(homed(world.clusters["first"])), next(homed(world.clusters["second"]))
        for queue in ("work", other):
            await declared(world, second, queue)
        await declared(world, first, mine)
        way.is_away = True
        for queue, payload in ((mine, b"it is away"), ("work", b"one"), (other, b"between"), ("work", b"two")):
            assert (await first.publish(queue, Message(payload))).buffered
        owner = world.ways["second"]
        [owner.holds_position_of] = node_of(second).catalog.queue("default", other).lanes
        owner.refuses = lambda commit: any(change.batches for change in commit.lanes)
        way.is_away = False
        await come(lambda: owner.refused > 0)  # that of `one`, while `between` waits
        owner.refuses = lambda _: False
        owner.positions_go_on.set()
        await come(lambda: not spooled(first))
        assert await world.log(first, "work") == [b"one", b"two"]
        assert await world.log(first, other) == [b"between"]

    play(story)


def test_nobody_is_told_where_something_landed_before_that_is_durable() -> None:
    """Another pass of the owner may have appended it already: whoever asks then waits for the commit too."""

    async def story(world: World) -> None:
        first, second, _ = await two_nodes(world)
        mine = next(homed(world.clusters["first"]))
        await declared(world, second, "work")
        await declared(world, first, mine)
        await first.declare_exchange("all", kind="fanout")
        for queue in ("work", mine):
            await first.bind("all", queue)
        owner = world.ways["second"]
        owner.holds = lambda commit: any(change.batches for change in commit.lanes)
        owner.refuses = lambda _: owner.refused == 0
        publishing = asyncio.ensure_future(first.publish_to("all", Message(b"m"), publish_id="p"))
        await come(lambda: bool(owner.held))  # it is in a commit under way, which will fail
        [row] = await world.disk.outbox(0, 10, [SLOT])
        asking = asyncio.ensure_future(world.clusters["second"].landed([Landing(row.id, row.lane, 1, "p")]))
        await asyncio.sleep(0.01)
        assert not asking.done()
        assert not publishing.done()
        owner.holds = lambda _: False
        owner.goes_on.set()
        places = {place.queue: place.offset for place in await publishing}
        assert places == {mine: 0, "work": 0}
        assert await world.log(first, "work") == [b"m"]
        assert [one.base for one in await asking] in ([], [0])

    play(story)


def test_publishers_who_never_pause_are_not_buffered_for_ever() -> None:
    """Before the other node has what was buffered, more would be buffered behind it, and so on."""

    async def story(world: World) -> None:
        first, second, way = await two_nodes(world)
        mine = next(homed(world.clusters["first"]))
        await declared(world, second, "work")
        await declared(world, first, mine)
        world.delay_s = 0.02
        numbers = {f"p{index}": 0 for index in range(3)}
        direct: set[str] = set()

        async def publisher(name: str) -> None:
            while len(direct) < len(numbers):
                message = Message(b"%s %d" % (name.encode(), numbers[name]), partition=name)
                try:
                    await first.publish("work", message)
                except NotOwner:  # it sends clients to the owner, as it does when nothing is in its spool
                    await second.publish("work", message)
                    if not way.is_away:
                        direct.add(name)
                numbers[name] += 1
                await asyncio.sleep(0.001)

        way.is_away = True
        assert (await first.publish(mine, Message(b"it is away"))).buffered
        publishers = [asyncio.ensure_future(publisher(name)) for name in numbers]
        await come(lambda: spooled(first) > 30)
        way.is_away = False
        async with asyncio.timeout(5):
            await asyncio.gather(*publishers)
        found: dict[str, list[int]] = {name: [] for name in numbers}
        for payload in await world.log(first, "work"):
            name, _, number = payload.decode().partition(" ")
            found[name].append(int(number))
        assert found == {name: list(range(count)) for name, count in numbers.items()}

    play(story)


@pytest.mark.parametrize("arrives", [False, True])
def test_a_commit_of_a_dead_process_is_decided_before_its_publishes_are_replayed(
    arrives: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be on its way for as long as nobody else has the slot: what the store says before that is no answer."""
    caplog.set_level(logging.INFO, "penstock.spool")

    async def story(world: World) -> None:
        folder = MemoryFolder()
        first, way = await world.join("first", folder)
        await first.declare_queue("work", keep_done_ms=3_600_000)
        await first.publish("work", Message(b"zero"))
        sent: list[Commit] = []

        @in_task
        async def lost(commit: Commit) -> None:
            sent.append(commit)
            way.is_away = True
            raise Unavailable("the connection ended")

        way.apply = lost  # type: ignore[method-assign]
        assert (await first.publish("work", Message(b"one"))).buffered
        await kill(first, folder)
        again, _ = await world.join("again", folder.again())
        await come(lambda: "was not taken yet since" in caplog.text)
        assert spooled(again) == 1
        if arrives:
            await world.disk.apply(sent[0])
        await world.disk.leave(world.clusters["first"].ownership.incarnation)  # its lease is over
        await world.clusters["again"].beat()
        assert SLOT in world.clusters["again"].ownership.owned
        await come(lambda: not spooled(again))
        assert await world.log(again, "work") == [b"zero", b"one"]

    play(story)


async def kill(broker: LocalBroker, folder: MemoryFolder) -> None:
    """The process dies where it stands."""
    node = node_of(broker)
    node.lifecycle.closed = True
    folder.sever()
    await node.spool.replay.stop()
    node.timers.close()
    assert node.cluster is not None
    assert node.cluster._task is not None
    node.cluster._task.cancel()


def test_an_ordered_queue_is_not_buffered_for_where_another_node_may_take_what_comes_later() -> None:
    async def story(world: World) -> None:
        first, second, way = await two_nodes(world)
        await declared(world, second, "work", ordered=True)
        await first.declare_exchange("x", kind="fanout")
        for cluster in world.clusters.values():
            await cluster.beat()
        await first.bind("x", "work")
        mine = next(homed(world.clusters["first"]))
        await declared(world, first, mine, ordered=True)
        way.is_away = True
        with pytest.raises(Unavailable, match="nobody answers"):
            await first.publish(mine, Message(b"1", partition="p"))  # its commit fails, and is not rescued
        with pytest.raises(Unavailable, match=f"{mine!r} is ordered"):
            await first.publish(mine, Message(b"2", partition="p"))
        assert spooled(first) == 0
        with pytest.raises(Unavailable, match="'work' is ordered"):
            await first.publish_to("x", Message(b"2", partition="p"))
        way.is_away = False
        await second.publish("work", Message(b"3", partition="p"))
        assert await world.log(second, "work") == [b"3"]
        assert spooled(first) == 0

    play(story)


async def refuses_ordered(broker: LocalBroker, way: Way) -> None:
    """Its store goes away, and publishes to an ordered queue are refused."""
    await broker.declare_queue("alone", ordered=True)
    way.is_away = True
    with pytest.raises(Unavailable, match="nobody answers"):
        await broker.publish("alone", Message(b"1", partition="p"))
    with pytest.raises(Unavailable, match="'alone' is ordered"):
        await broker.publish("alone", Message(b"2", partition="p"))
    assert spooled(broker) == 0


async def buffers_ordered(broker: LocalBroker, way: Way) -> None:
    await broker.declare_queue("alone", ordered=True)
    way.is_away = True
    assert (await broker.publish("alone", Message(b"1", partition="p"))).buffered
    assert (await broker.publish("alone", Message(b"2", partition="p"))).buffered
    assert spooled(broker) == 2


async def met(world: World, folder: MemoryFolder) -> None:
    """The first node meets a second one and notes it; then both leave in good order."""
    first, _ = await world.join("first", folder)
    second, _ = await world.join("second")
    for _ in range(2):
        for cluster in world.clusters.values():
            await cluster.beat()
        await asyncio.sleep(0.01)
    await come(lambda: any(name.startswith("company-") for name in folder.files))
    await second.close()
    await first.close()
    world.clusters.clear()


def test_a_node_that_starts_again_alone_still_does_not_buffer_for_an_ordered_queue() -> None:
    """The others may be back any moment, and take what comes later."""

    async def story(world: World) -> None:
        folder = MemoryFolder()
        await met(world, folder)
        await refuses_ordered(*await world.join("first", folder))

    play(story)


def test_company_that_could_not_be_noted_is_noted_later() -> None:
    async def story(world: World) -> None:
        folder = MemoryFolder()
        folder.fail_appends = 1
        await met(world, folder)
        await refuses_ordered(*await world.join("first", folder))

    play(story)


def test_company_on_another_store_does_not_count() -> None:
    async def story(world: World) -> None:
        folder = MemoryFolder()
        await met(world, folder)
        world.disk = MemoryStore(world.clock.now_ms)
        await buffers_ordered(*await world.join("first", folder))

    play(story)


def test_company_is_forgotten_when_its_file_is_removed() -> None:
    async def story(world: World) -> None:
        folder = MemoryFolder()
        await met(world, folder)
        folder.files.clear()
        await buffers_ordered(*await world.join("first", folder))

    play(story)


def test_a_node_that_was_killed_is_no_company_for_itself() -> None:
    """Its row of before is there until its lease is over, and its slots belong to that."""

    async def story(world: World) -> None:
        folder = MemoryFolder()
        first, _ = await world.join("first", folder)
        await kill(first, folder)
        again, way = await world.join("first", folder.again())
        assert not world.clusters["first"].ownership.owned
        await asyncio.sleep(LEASE_S + 1)
        await world.clusters["first"].beat()
        await buffers_ordered(again, way)

    play(story)


@pytest.mark.parametrize("waits_s", [0, LEASE_S + 1])
def test_a_node_that_was_killed_is_company_for_one_on_a_new_folder(waits_s: float) -> None:
    """Also when it counts as dead: it may be started again."""

    async def story(world: World) -> None:
        folder = MemoryFolder()
        second, _ = await world.join("second", folder)
        await kill(second, folder)
        del world.clusters["second"]
        await asyncio.sleep(waits_s)
        first, way = await world.join("first")
        await asyncio.sleep(LEASE_S + 1)
        await world.clusters["first"].beat()
        await refuses_ordered(first, way)

    play(story)
