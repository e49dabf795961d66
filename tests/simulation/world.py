"""A world: one disk, the nodes that come and go on it, the clients that use them, and the checker that watches.

A node lives in a `Process`. When it crashes its calls to the disk never return, its timers stop, and its clients see
their calls break off with an unknown outcome. A takeover opens the next node while the last still runs. Clients reach
the newest node they can; `run_world` plays one plan to its end. Next stop: `clients.py`, who use it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from random import Random
from typing import Any, Final, TypeVar

import msgspec

from penstock.api.ticket import Ticket
from penstock.core.lane import Lane
from penstock.model.errors import PenstockError, StoreCorrupt
from penstock.model.rows import Commit
from penstock.node.broker import LocalBroker
from penstock.node.catalog import EPHEMERAL_FROM
from penstock.node.node import Node
from penstock.node.spool.records import DeadRecord, dead_of
from penstock.node.spool.spool import SpoolSettings
from penstock.store.contract import Capabilities
from penstock.store.memory.engine import MemoryStore
from tests.one_slot import OneSlotStore
from tests.simulation.checker import Checker
from tests.simulation.court import Violation
from tests.simulation.faulty_store import CALM, Chances, FaultyStore
from tests.simulation.idle_turns import left_out
from tests.simulation.plan import EXCHANGE, Plan, limits_in_force, make_plan
from tests.simulation.spool_folder import MemoryFolder
from tests.simulation.virtual_loop import SimulatedClock, Stuck, VirtualLoop, run

PLAIN: Final = Capabilities()
SETTLE_MS_MAX: Final = 600_000
"""Virtual time in which everything must be settled once the faults have stopped."""
OPEN_TRIES_MAX: Final = 50
OPENS_FAILED_MAX: Final = 3
CHECK_ALL_EVERY: Final = 8
"""Commits of a node after which lanes are checked that nothing has changed, too."""

Result = TypeVar("Result")


class BrokenOff(PenstockError):
    """The node died, or the client hung up, while a call was under way: its outcome is unknown."""


class Process:
    """One node with its way to the disk, and the calls of clients that it has not answered."""

    def __init__(self, world: World, index: int) -> None:
        self.index = index
        self.store = FaultyStore(world, world.disk, index, world.capabilities)
        cache_bytes = world.plan.limits.get("cache_bytes", 1 << 20)
        self.folder = world.free_folder(index)
        spool = None
        if world.plan.spool is not None:
            spool = SpoolSettings(self.folder, world.plan.spool.bytes, world.plan.spool.segment_bytes, world.new_id)
        self.node = Node(self.store, world.clock, cache_bytes=cache_bytes, events=world.plan.events, spool=spool)
        self.broker = LocalBroker(self.node, "default")
        self.calls: dict[asyncio.Future[Any], None] = {}
        self.alive = True
        self.settled: dict[int, Lane] = {}
        """Lanes that were checked while nothing of them was on its way to the disk."""
        self.checks = 0
        world.watch_memory(self)

    def sever(self) -> None:
        """Cut it off from the disk and from its clients."""
        self.alive = False
        self.store.severed = True
        self.folder.sever()
        self.node.timers.close()
        for call in list(self.calls):
            if not call.done():
                call.set_exception(BrokenOff("the node died"))


def segments_of(disk: dict[str, bytes]) -> int:
    return sum(name.endswith(".spool") for name in disk)


class World:
    """Everything that one seed brings about."""

    def __init__(self, plan: Plan, loop: VirtualLoop, capabilities: Capabilities = PLAIN) -> None:
        self.plan = plan
        self.capabilities = capabilities
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.disk = (MemoryStore if capabilities.spans_slots else OneSlotStore)(self.clock.now_ms)
        self._failed_opens = 0
        self.starting = 0
        """Nodes that are about to open."""
        self.fault_random = Random(f"faults {plan.seed}")
        self.checker = Checker(plan, self.clock.now_ms)
        self.processes: list[Process] = []
        self.newest: Process | None = None
        self.owner = -1
        self.resets = 0
        self.finishing = False
        self.trace_lines: list[str] = []
        self._arrival = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None
        self.disks: list[dict[str, bytes]] = []
        """Of each machine, what its spool has written: it outlives the processes there."""
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:016x}"

    def free_folder(self, index: int) -> MemoryFolder:
        """On a machine where no process lives, one with something to replay first; else on a new one."""
        used = [id(process.folder.files) for process in self.processes if process.alive]
        free = [disk for disk in self.disks if id(disk) not in used]
        folder = MemoryFolder(self, index)
        folder.files = max(free, key=segments_of) if free else {}
        if not free:
            self.disks.append(folder.files)
        return folder

    def letters(self) -> list[DeadRecord]:
        """The spools' dead letters."""
        return [dead_of(data, name) for disk in self.disks for name, data in disk.items() if name.endswith(".letter")]

    def away_ms(self) -> int:
        """How long the disk will be out of reach from now on."""
        if self.plan.spool is None or self.finishing:
            return 0
        now_ms = int(self.loop.time() * 1000)
        return max((end - now_ms for start, end in self.plan.spool.outages if start <= now_ms < end), default=0)

    @property
    def is_away(self) -> bool:
        return self.away_ms() > 0

    @property
    def chances(self) -> Chances:
        """Faults stop at the end, and rest when they have kept every node from opening for some time."""
        return CALM if self.finishing or self._failed_opens > OPENS_FAILED_MAX else self.plan.chances

    # Trace ------------------------------------------------------------------------------------------------

    def trace(self, text: str) -> None:
        self.trace_lines.append(f"{self.loop.time():9.3f} {text}")

    def trace_hash(self) -> str:
        return hashlib.blake2b("".join(self.trace_lines).encode(), digest_size=16).hexdigest()

    # The disk's host --------------------------------------------------------------------------------------

    def crash(self, index: int) -> None:
        process = self.processes[index]
        if not process.alive:
            return
        self.trace(f"node {index} crashes")
        self.resets += 1
        process.sever()
        if self.newest is process:
            self._down()

    def _down(self) -> None:
        """Nobody serves: the next node comes after a while."""
        self.newest = None
        self._arrival.clear()
        if self._restarting is None or self._restarting.done():
            self._restarting = self.loop.create_task(self.start_node(self.plan.downtime_ms))

    def landed(self, index: int, commit: Commit) -> None:
        if index != self.owner:
            self.odd(f"a commit of node {index} landed, but node {self.owner} owns the disk")
        self.trace(f"node {index} commits {_summary(commit)}")
        self.checker.landed(commit, index)
        self._check_lanes(self.processes[index], commit)

    def _check_lanes(self, process: Process, commit: Commit) -> None:
        """The invariants of lanes in a node's memory, at a moment at which no command is under way.

        A lane that has nothing to commit, had nothing when it was checked last and is not in this commit was not
        changed in between: it is passed over. Every so often none is, should a change have gone unmarked.
        """
        process.checks += 1
        written = {change.lane for change in commit.lanes}
        passed, process.settled = process.settled if process.checks % CHECK_ALL_EVERY else {}, {}
        for lane in process.node.lanes.loaded():
            is_settled = not lane.dirty and lane.id not in written
            if not is_settled or passed.get(lane.id) is not lane:
                self._check_lane(process, lane)
            if is_settled:
                process.settled[lane.id] = lane

    def check_all_lanes(self) -> None:
        """The same of all lanes of all nodes that live, at the end."""
        for process in self.processes:
            if process.alive:
                for lane in process.node.lanes.loaded():
                    self._check_lane(process, lane)

    def _check_lane(self, process: Process, lane: Lane) -> None:
        try:
            lane.check()
        except AssertionError as broken:
            self.checker.court.report("invariant", f"lane {lane.id} of node {process.index}: {broken}")

    def failed(self) -> None:
        self.checker.commit_failed()
        self.resets += 1

    def acquired(self, index: int) -> None:
        self.owner = index

    def odd(self, text: str) -> None:
        self.checker.court.report("odd", text)

    def unexpected(self, process: Process, what: str, error: BaseException) -> None:
        """Report an error that no fault explains. A node that lost the disk unawares may miss what is gone from it."""
        if not isinstance(error, StoreCorrupt) or process.index == self.owner:
            self.checker.court.unexpected(what, error)

    def watch_memory(self, process: Process) -> None:
        """See the commits of ephemeral queues too."""
        memory = process.node.memory
        apply = memory.apply

        def watched(commit: Commit) -> Ticket[None]:
            ticket = apply(commit)
            if ticket.error is not None:
                self.odd(f"the memory store refused a commit: {ticket.error}")
                return ticket
            for change in commit.lanes:
                queue = process.node.catalog.by_lane.get(change.lane)
                if queue is not None:
                    self.checker.court.mirror.declare_ephemeral(process.index, queue)
            self.checker.landed(commit, process.index)
            self._check_lanes(process, commit)
            return ticket

        setattr(memory, "apply", watched)  # noqa: B010 - mypy knows that methods are not assigned to

    # Nodes ------------------------------------------------------------------------------------------------

    async def start_node(self, downtime_ms: int = 0) -> None:
        """Open the next node, however often it takes, and make it the one that clients find."""
        self.starting += 1
        try:
            await asyncio.sleep(downtime_ms / 1000)
            await self._start_node()
        finally:
            self.starting -= 1

    async def _start_node(self) -> None:
        for _ in range(OPEN_TRIES_MAX):
            await asyncio.sleep(self.away_ms() / 1000)
            process = Process(self, len(self.processes))
            self.processes.append(process)
            try:
                await self.call(process, process.node.open(f"node-{process.index}"))
                await self._declare(process)
            except PenstockError as error:
                self.trace(f"node {process.index} cannot open: {error}")
                self.unexpected(process, "open", error)
                process.sever()
                self._failed_opens += 1
                await asyncio.sleep(0.1)
                continue
            if process.index != self.owner:
                process.sever()  # another took the disk while this one was still opening
                if self.newest is not None:
                    return
                continue  # and has died since
            if process.alive:
                self._failed_opens = 0
                self.trace(f"node {process.index} is open")
                self.newest = process
                self._arrival.set()
                return
        self.odd(f"no node could be opened in {OPEN_TRIES_MAX} tries")

    async def _declare(self, process: Process) -> None:
        """Queues and groups are declared anew at each start, as programs do."""
        broker = process.broker
        for queue in self.plan.queues:
            await self.call(process, broker.declare_queue(queue.name, **queue.options))
            for group in queue.groups:
                if not group.late and (group.options or group.name != "default"):
                    await self.call(process, broker.declare_group(queue.name, group.name, **group.options))
        if self.plan.bound:
            await self.call(process, broker.declare_exchange(EXCHANGE, kind="fanout"))
            for name in self.plan.bound:
                await self.call(process, broker.bind(EXCHANGE, name))

    async def take_over(self) -> None:
        """Open a second node while the first still runs and still has clients."""
        self.trace("takeover")
        self.resets += 1
        await self.start_node()

    async def restart(self) -> None:
        """Close the node in an orderly way, then open the next."""
        process = self.newest
        if process is None:
            return
        self.trace(f"node {process.index} closes")
        self.resets += 1
        self.newest = None
        self._arrival.clear()
        try:
            await self.call(process, process.node.close())
        except PenstockError as error:
            self.unexpected(process, "close", error)
        process.sever()
        if self._restarting is None or self._restarting.done():
            await self.start_node()

    async def process(self, last: Process | None = None) -> Process:
        """The node to talk to: the last one while it works, else the newest."""
        usable = last is not None and last.alive and not last.node.lifecycle.is_over
        if last is not None and usable and not self.finishing:
            return last
        while self.newest is None:
            await self._arrival.wait()
        return self.newest

    async def call(self, process: Process, work: Coroutine[Any, Any, Result], hang_up_ms: int | None = None) -> Result:
        """A client's call: breaks off when the node dies, or when the client hangs up."""
        answer: asyncio.Future[Result] = self.loop.create_future()
        if not process.alive:
            work.close()
            raise BrokenOff("the node is dead")
        task = self.loop.create_task(work)
        task.add_done_callback(lambda done: _hand_over(done, answer))
        process.calls[answer] = None
        timer = None if hang_up_ms is None else self.loop.call_later(hang_up_ms / 1000, _hang_up, task, answer)
        try:
            return await answer
        finally:
            process.calls.pop(answer, None)
            if timer is not None:
                timer.cancel()


def _hand_over(done: asyncio.Task[Any], answer: asyncio.Future[Any]) -> None:
    error = None if done.cancelled() else done.exception()
    if answer.done():
        return
    if done.cancelled():
        answer.set_exception(BrokenOff("the call was cancelled"))
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def _hang_up(task: asyncio.Task[Any], answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(BrokenOff("the client hung up"))
        task.cancel()


def _summary(commit: Commit) -> str:
    parts = [
        f"{change.lane}:{change.first}-{change.end}"
        f"+{sum(row.count for row in change.batches)}m{len(change.leases)}l{len(change.leases_deleted)}x"
        f"{len(change.waiting)}w{len(change.dead)}d"
        for change in commit.lanes
        if change.lane < EPHEMERAL_FROM
    ]
    if commit.catalog or commit.catalog_deleted:
        parts.append(f"catalog {[row.name for row in commit.catalog]} -{commit.catalog_deleted}")
    if commit.outbox or commit.outbox_deleted:
        parts.append(f"outbox +{[row.id for row in commit.outbox]} -{commit.outbox_deleted}")
    return " ".join(parts)


class Outcome(msgspec.Struct):
    """How a seed's world ended."""

    seed: int
    violations: list[Violation]
    trace_hash: str
    trace: list[str]
    confirmed: int
    delivered: int
    commits: int
    crashes: int
    virtual_ms: int


def run_world(seed: int, *, keep_trace: bool = False, capabilities: Capabilities = PLAIN) -> Outcome:
    """Play one seed to its end, on a store that can do this."""
    from tests.simulation.clients import play

    plan = make_plan(seed)
    loop = VirtualLoop()
    worlds: list[World] = []

    async def main() -> None:
        world = World(plan, loop, capabilities)
        worlds.append(world)
        await play(world)

    with limits_in_force(plan.limits), left_out(loop):
        try:
            run(loop, main())
        except Stuck as stuck:
            worlds[0].odd(str(stuck))
    for broken in loop.broken:
        worlds[0].odd(broken)
    return _outcome(worlds[0], keep_trace=keep_trace)


def _outcome(world: World, *, keep_trace: bool) -> Outcome:
    checker = world.checker
    return Outcome(
        seed=world.plan.seed,
        violations=checker.court.violations,
        trace_hash=world.trace_hash(),
        trace=world.trace_lines if keep_trace else [],
        confirmed=checker.publishes.confirmed,
        delivered=checker.deliveries.count,
        commits=checker.court.mirror.commits,
        crashes=world.resets,
        virtual_ms=int(world.loop.time() * 1000),
    )
