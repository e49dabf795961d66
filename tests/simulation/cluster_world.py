"""Several nodes over one memory store on the virtual clock: they crash, lose the store, come back and join.

A node reaches the store through a `FaultyStore` of its own, which may also be cut off for a while: what it had sent
then arrives late, as from a process that was stopped. Nodes reach each other through `Wires`, which lose calls. Clients
ask any node and go where that sends them, as the HTTP front does. Everything that was confirmed is compared with what
came out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from penstock.api.results import Claim
from penstock.model import Message
from penstock.model.errors import LeaseLost, NotOwner, PenstockError, Unavailable
from penstock.model.rows import Commit
from penstock.node.broker import LocalBroker
from penstock.node.cluster.membership import Cluster, ClusterOptions
from penstock.node.cluster.remote_publish import Landed, Landing
from penstock.node.node import Node
from penstock.node.spool.spool import SpoolSettings
from penstock.store.memory.engine import MemoryStore
from tests.simulation.faulty_store import CALM, Chances, FaultyStore
from tests.simulation.spool_folder import MemoryFolder
from tests.simulation.virtual_loop import SimulatedClock, VirtualLoop, run

NODES: Final = 3
QUEUES: Final = ("a", "b", "c", "d", "e")
FAN: Final = ("f", "g", "h")
LOOSE: Final = ("u", "v", "w")
"""Queues whose producers name no publish: nothing but the node itself keeps a message from being there twice."""
ALL: Final = (*QUEUES, *FAN, *LOOSE)
ORDERED: Final = frozenset("acf")
"""Worked in the order of their partitions: nothing is buffered for them, and their order is never broken."""
PARTITIONS: Final = 4
SECONDS: Final = 25.0
LEASE_S: Final = 2.0
CALL_S: Final = 5.0
KNOWN_S: Final = 5.0
"""So long after a declaration every node that is there knows of it, also one that was not told."""

Result = TypeVar("Result")


class Gone(Unavailable):
    """The node that was asked is dead: it has done what it was asked for, or it has not."""


class CutStore(FaultyStore):
    """A way to the disk that can be cut: calls wait until it is mended, and then arrive."""

    def __init__(self, host: ClusterWorld, disk: MemoryStore, index: int) -> None:
        super().__init__(host, disk, index, disk.capabilities)
        self.mended = asyncio.Event()
        self.mended.set()

    async def _before(self, step: str) -> None:
        await super()._before(step)
        await self.mended.wait()
        if self.severed:
            await asyncio.get_running_loop().create_future()


class Wires:
    """How one node reaches the others: a call may get lost."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    def _cluster(self, url: str) -> Cluster:
        member = self._world.by_url(url)
        if member is None or self._world.random.random() < self._world.loss:
            raise Unavailable(f"simulated: {url} cannot be reached")
        assert member.node.cluster is not None
        return member.node.cluster

    async def poke(self, url: str) -> None:
        await self._call(self._cluster(url).notify_changed())

    async def end_session(self, url: str, session: str) -> None:
        await self._call(self._cluster(url).end_session(session))

    async def hand_over(self, url: str, slots: list[int], to: int) -> None:
        await self._call(self._cluster(url).give(slots, to))

    async def landed(self, url: str, landings: list[Landing]) -> list[Landed]:
        return await self._call(self._cluster(url).landed(landings))

    async def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await asyncio.wait_for(work, CALL_S)
        except TimeoutError:
            raise Unavailable("simulated: the other node did not answer in time") from None


class Member:
    """One life of one node."""

    def __init__(self, world: ClusterWorld, index: int) -> None:
        self.index = index
        self.url = f"http://node-{index}"
        self.store = CutStore(world, world.disk, index)
        self.folder = world.free_folder(index)
        spool = SpoolSettings(self.folder, 1 << 30, 4_096, world.new_id)
        self.node = Node(self.store, world.clock, cache_bytes=1 << 20, spool=spool)
        self.calls: dict[asyncio.Task[Any], None] = {}
        self.alive = True
        self.broker: LocalBroker

    async def open(self, world: ClusterWorld) -> None:
        cluster = await self.node.open_among(f"{self.folder.place}:{self.index}", ClusterOptions())
        cluster.peers = Wires(world)
        self.broker = LocalBroker(self.node, "default")
        await cluster.join(self.url)

    def sever(self) -> None:
        self.alive = False
        self.store.severed = True
        self.folder.sever()
        self.node.timers.close()
        for call in list(self.calls):
            call.cancel()
        cluster = self.node.cluster
        if cluster is not None and cluster._task is not None:
            cluster._task.cancel()


class ClusterWorld:
    """Everything that one seed brings about."""

    def __init__(self, seed: int, loop: VirtualLoop, kind: type[MemoryStore]) -> None:
        self.random = Random(f"cluster {seed}")
        self.fault_random = Random(f"cluster faults {seed}")
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.disk = kind(self.clock.now_ms)
        self.members: list[Member] = []
        self.violations: list[str] = []
        self.stopping = False
        self.finishing = False
        self.loss = 0.0
        self.faults = 0
        self.is_away = False
        self.buffered = 0
        self._ids = 0
        self.confirmed: dict[str, list[int]] = {queue: [] for queue in ALL}
        self.acked: dict[str, set[int]] = {queue: set() for queue in ALL}
        self.unsure: dict[str, set[int]] = {queue: set() for queue in ALL}
        self.spooled: dict[str, set[int]] = {queue: set() for queue in ALL}
        """What was answered `buffered`: what is published later through other nodes may be before it."""
        self.perhaps: dict[str, set[int]] = {queue: set() for queue in ALL}
        """What failed, and was not tried again: it may be there, once."""
        self.lines: dict[str, list[list[int]]] = {queue: [[]] for queue in LOOSE}
        """What was confirmed on each connection of a producer, one after the other: through one node, in that order."""
        self.last: dict[tuple[str, int], int] = {}
        self.delivered = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:04}"

    def free_folder(self, index: int) -> MemoryFolder:
        """That of a node that is dead, with what it left there; one that is new where there is none."""
        used = [member.folder for member in self.members if member.folder.is_severed]
        held = {id(member.folder.files) for member in self.members if not member.folder.is_severed}
        for folder in used:
            if id(folder.files) not in held:
                return folder.again()
        return MemoryFolder(self, index)

    # The store's host -------------------------------------------------------------------------------------

    @property
    def chances(self) -> Chances:
        return CALM if self.finishing else Chances(delay=0.3, stall=0.001, fail_before=0.003, fail_after=0.003)

    def crash(self, index: int) -> None:
        raise AssertionError("crashes are the world's own")

    def landed(self, index: int, commit: Commit) -> None:
        """The memory store has checked the epochs: nothing lands under an old one."""
        for lane in self.members[index].node.lanes.loaded():
            try:
                lane.check()
            except AssertionError as broken:
                self.odd(f"lane {lane.id} of node {index}: {broken}")

    def failed(self) -> None:
        self.faults += 1

    def acquired(self, index: int) -> None:
        self.odd(f"node {index} took everything by force")

    def odd(self, text: str) -> None:
        self.violations.append(text)

    # Nodes ------------------------------------------------------------------------------------------------

    def by_url(self, url: str) -> Member | None:
        return next((member for member in self.members if member.alive and member.url == url), None)

    def live(self) -> list[Member]:
        return [member for member in self.members if member.alive and hasattr(member, "broker")]

    async def start(self) -> Member:
        while True:
            member = Member(self, len(self.members))
            self.members.append(member)
            try:
                await member.open(self)
            except PenstockError:
                member.sever()
                await asyncio.sleep(0.2)
                continue
            return member

    async def upheavals(self) -> None:
        """Until the end: kill, cut off, stop and start nodes; at least one is there and well."""
        while not self.stopping:
            await asyncio.sleep(self.random.uniform(0.5, 4.0))
            live = self.live()
            if len(live) < 2 or self.stopping:
                continue
            victim = self.random.choice(live)
            what = self.random.choice(("kill", "cut", "stop", "join", "loss", "away"))
            self.faults += 1
            if what == "kill":
                victim.sever()
                await asyncio.sleep(self.random.uniform(0.0, 3.0))
                await self.start()
            elif what == "cut":
                victim.store.mended.clear()
                await asyncio.sleep(self.random.uniform(0.5, 5.0))
                victim.store.mended.set()
            elif what == "stop":
                await victim.node.close()
                victim.sever()
                await self.start()
            elif what == "away":
                self.is_away = True
                await asyncio.sleep(self.random.uniform(0.1, 5.0))
                if self.random.random() < 0.5:
                    self.random.choice(self.live()).sever()  # with what it has in its spool
                self.is_away = False
                await self.start()
            elif what == "join" and len(live) < NODES + 2:
                await self.start()
            else:
                self.loss = self.random.choice((0.0, 0.2, 1.0))
        self.loss = 0.0
        for member in self.members:
            member.store.mended.set()
        while any(not self._is_held(member.folder) and _segments(member.folder) for member in self.members):
            await self.start()  # somebody has to replay what the dead have left
        while self._is_buffering():  # noqa: ASYNC110 - several nodes, which tell nobody
            await asyncio.sleep(0.1)

    def _is_buffering(self) -> bool:
        return any(member.node.spool_state.messages or member.node.spool_state.is_away for member in self.live())

    def _is_held(self, folder: MemoryFolder) -> bool:
        return any(not one.folder.is_severed and one.folder.files is folder.files for one in self.members)

    # Clients' calls ---------------------------------------------------------------------------------------

    async def call(self, work: Callable[[LocalBroker], Awaitable[Result]]) -> Result:
        """Ask some node, and go where it says; as an HTTP front would do it."""
        member = self.random.choice(self.live())
        for _ in range(400):
            try:
                return await self._at(member, work)
            except NotOwner as elsewhere:
                cluster = member.node.cluster
                assert cluster is not None
                row = cluster.ownership.slot(elsewhere.slot)
                owner = None if row is None else cluster.ownership.node_of(row.node)
                following = None if owner is None else self.by_url(owner.url)
                if following is None or following is member:
                    cluster.look()
                    await cluster.changed(0.05)
                    following = member
                member = following if following.alive else self.random.choice(self.live())
                await asyncio.sleep(0.01)
        raise Unavailable("simulated: no owner was found")

    async def call_through(
        self,
        member: Member,
        work: Callable[[LocalBroker], Awaitable[Result]],
        again: Callable[[LocalBroker], Awaitable[Result]],
    ) -> Result:
        """Ask one node, which asks the owner where it is not that, as the broker of a node among others does it.

        What it sends to others is `again`, which is safe to repeat.
        """
        try:
            return await self._at(member, work)
        except NotOwner as elsewhere:
            slot = elsewhere.slot
        cluster = member.node.cluster
        assert cluster is not None
        for _ in range(400):
            owner = cluster.ownership.owner(slot)
            peer = None if owner is None else self.by_url(owner.url)
            if peer is not None and peer is not member:
                with suppress(NotOwner, Gone):
                    return await self._at(peer, again, is_forwarded=True)
            if cluster.ownership.owns(slot) or cluster.is_store_away:
                try:
                    return await self._at(member, again)
                except NotOwner as moved:
                    slot = moved.slot
            if not member.alive:
                break
            cluster.look()
            await cluster.changed(0.05)
            await asyncio.sleep(0.01)
        raise Unavailable("simulated: no owner was found")

    async def _at(
        self, member: Member, work: Callable[[LocalBroker], Awaitable[Result]], *, is_forwarded: bool = False
    ) -> Result:
        if not member.alive:
            raise Gone("simulated: the node is gone")
        broker = member.broker.bound_to("default", None) if is_forwarded else member.broker
        task: asyncio.Task[Result] = self.loop.create_task(_run(work, broker))
        member.calls[task] = None
        try:
            return await task
        except asyncio.CancelledError:
            raise Gone("simulated: the node died, and the outcome is not known") from None
        finally:
            member.calls.pop(task, None)

    async def insist(self, work: Callable[[LocalBroker], Awaitable[Result]]) -> Result:
        """Again and again until it is confirmed: for what is safe to repeat."""
        while True:
            try:
                return await self.call(work)
            except PenstockError:
                await asyncio.sleep(self.random.uniform(0.0, 0.3))

    # Clients ----------------------------------------------------------------------------------------------

    async def declare(self) -> None:
        for queue in ALL:
            options: dict[str, Any] = {
                "ordered": queue in ORDERED,
                "lease_ms": int(LEASE_S * 1000),
                "lanes": 1 + (queue in "be"),
                "max_attempts": 1_000,
                "keep_done_ms": 3_600_000,
            }
            await self.insist(lambda broker, queue=queue, options=options: broker.declare_queue(queue, **options))  # type: ignore[misc]
        await self.insist(lambda broker: broker.declare_exchange("fan", kind="fanout"))
        for queue in FAN:
            await self.insist(lambda broker, queue=queue: broker.bind("fan", queue))  # type: ignore[misc]
        await self.insist(lambda broker: broker.declare_exchange("loose", kind="fanout"))
        for queue in LOOSE[1:]:
            await self.insist(lambda broker, queue=queue: broker.bind("loose", queue))  # type: ignore[misc]

    async def produce(self, queue: str) -> None:
        number = 0
        while not self.stopping:
            is_buffered = await self.insist(partial(_publish, queue, number))
            self.buffered += is_buffered
            for home in FAN if queue == "fan" else (queue,):
                self.confirmed[home].append(number)
                if is_buffered:
                    self.spooled[home].add(number)
            number += 1
            await asyncio.sleep(self.random.uniform(0.0, 0.1))

    async def produce_loosely(self, queue: str) -> None:
        """Each number once, whatever comes of it; over one connection until that ends, then through another node."""
        number = 0
        homes = LOOSE[1:] if queue == "loose" else (queue,)
        member = self.random.choice(self.live())
        while not self.stopping:
            publish = partial(_publish_loosely, queue, number, None)
            again = partial(_publish_loosely, queue, number, f"{queue}-{number}")
            try:
                is_buffered = await self.call_through(member, publish, again)
            except PenstockError:
                for home in homes:
                    self.perhaps[home].add(number)
                    self.lines[home].append([])
                member = self.random.choice(self.live())
            else:
                self.buffered += is_buffered
                for home in homes:
                    self.confirmed[home].append(number)
                    self.lines[home][-1].append(number)
                    if is_buffered:
                        self.spooled[home].add(number)
            number += 1
            await asyncio.sleep(self.random.uniform(0.0, 0.1))

    async def consume(self, queue: str) -> None:
        quiet = 0.0
        while not (self.finishing and quiet > LEASE_S * 2 + 1):
            began = self.loop.time()
            try:
                claim = await self.call(lambda broker: broker.claim(queue, max=5, wait=0.5))
            except PenstockError:
                await asyncio.sleep(0.1)
                continue
            quiet = 0.0 if claim else quiet + self.loop.time() - began + 0.01
            if not claim:
                await asyncio.sleep(0.01)
                continue
            numbers = [int(payload) for payload in claim.payloads()]
            self.delivered += len(numbers)
            for number in numbers:
                if number in self.acked[queue]:
                    self.violations.append(f"{queue}: {number} was handed out after its ack was confirmed")
            try:
                await self.call(partial(_ack, claim))
            except LeaseLost:
                self.unsure[queue].update(numbers)  # it ended before, or an ack whose outcome was unknown was done
                continue
            except PenstockError:
                self.unsure[queue].update(numbers)
                continue
            for number in numbers:
                place = (queue, number % PARTITIONS)
                if queue not in ORDERED or number in self.perhaps[queue]:
                    continue
                if self.last.get(place, -1) > number:
                    self.violations.append(f"{queue}: {number} was acked after {self.last[place]} of its partition")
                self.last[place] = number
            self.acked[queue].update(numbers)

    # The end ----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        for queue, numbers in self.confirmed.items():
            lost = set(numbers) - self.acked[queue] - self.unsure[queue]
            if lost:
                self.violations.append(f"{queue}: {sorted(lost)[:5]} and {len(lost)} in all were lost")
            found = await self._log(queue)
            if sorted({*found} - self.perhaps[queue]) != numbers or len(found) != len({*found}):
                extra = [number for number in found if found.count(number) > 1]
                self.violations.append(
                    f"{queue}: the log has {len(found)} messages, {len(numbers)} were confirmed; twice: {extra[:5]}"
                )
            if queue in ORDERED and self.spooled[queue]:
                self.violations.append(f"{queue} is ordered, and {len(self.spooled[queue])} messages were buffered")
            for partition in range(PARTITIONS):
                loose = self.spooled[queue] | self.perhaps[queue]
                of_it = [number for number in found if number % PARTITIONS == partition and number not in loose]
                if of_it != sorted(of_it):
                    self.violations.append(f"{queue}: partition {partition} is out of order: {of_it}")
            for line in self.lines.get(queue, []):
                of_line = [number for number in found if number in set(line)]
                if of_line != line:
                    self.violations.append(f"{queue}: a connection published {line}, stored as {of_line}")
            stats = await self.insist(lambda broker, queue=queue: broker.stats(queue))  # type: ignore[misc]
            for group in stats.groups:
                if group.lag or group.dead:
                    self.violations.append(f"{queue}: {group.lag} messages are not done, {group.dead} dead")

    async def _log(self, queue: str) -> list[int]:
        """What was ever appended, lane after lane: `keep_done` leaves all of it there."""
        page = await self.insist(lambda broker: broker.browse(queue, max=10_000))
        return [int(received.payload) for received in page.messages]


async def _publish(queue: str, number: int, broker: LocalBroker) -> bool:
    message = Message(b"%d" % number, partition=f"p{number % PARTITIONS}")
    if queue == "fan":
        receipt = await broker.publish_to("fan", message, publish_id=f"fan-{number}")
        return receipt.buffered
    place = await broker.publish(queue, message, publish_id=f"{queue}-{number}")
    return place.buffered


async def _publish_loosely(queue: str, number: int, publish_id: str | None, broker: LocalBroker) -> bool:
    message = Message(b"%d" % number, partition=f"p{number % PARTITIONS}")
    if queue == "loose":
        return (await broker.publish_to("loose", message, publish_id=publish_id)).buffered
    return (await broker.publish(queue, message, publish_id=publish_id)).buffered


def _segments(folder: MemoryFolder) -> list[str]:
    return [name for name in folder.files if name.endswith(".spool")]


async def _ack(claim: Claim, broker: LocalBroker) -> None:
    await broker.ack(claim)


async def _run(work: Callable[[LocalBroker], Awaitable[Result]], broker: LocalBroker) -> Result:
    return await work(broker)


def run_cluster(seed: int, kind: type[MemoryStore] = MemoryStore) -> ClusterWorld:
    """Play one seed to its end, on a store of this kind."""
    loop = VirtualLoop(turns_max=1_000_000)
    worlds: list[ClusterWorld] = []

    async def main() -> None:
        world = ClusterWorld(seed, loop, kind)
        worlds.append(world)
        await asyncio.gather(*(world.start() for _ in range(NODES)))
        await world.declare()
        await asyncio.sleep(KNOWN_S)
        producing = [loop.create_task(world.produce(queue)) for queue in (*QUEUES, "fan")]
        producing += [loop.create_task(world.produce_loosely(queue)) for queue in ("u", "loose")]
        consuming = [loop.create_task(world.consume(queue)) for queue in ALL]
        upheavals = loop.create_task(world.upheavals())
        await asyncio.sleep(SECONDS)
        world.stopping = True
        await upheavals
        await asyncio.gather(*producing)
        world.finishing = True
        await asyncio.gather(*consuming)
        await world.check()

    run(loop, main())
    worlds[0].violations += loop.broken
    return worlds[0]
