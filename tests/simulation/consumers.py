"""Consumers of work groups and readers of streams: they do everything that clients do, and sometimes just stop."""

from __future__ import annotations

import asyncio
from random import Random

from penstock.api.results import Claim
from penstock.model import Message
from penstock.model.errors import LeaseLost, NotFound, OffsetGone, PenstockError
from penstock.model.verdict import Action, Verdict
from tests.simulation.mirror import scoped, uid_of
from tests.simulation.plan import GRAVEYARD, PARTITIONS, GroupPlan, QueuePlan
from tests.simulation.producers import Writer
from tests.simulation.world import BrokenOff, Process, World

LONG_WAIT_MS = 30_000


class Consumer:
    """One client that claims and settles."""

    def __init__(self, world: World, queue: QueuePlan, group: GroupPlan, name: str, *, tidy: bool = False) -> None:
        self._world = world
        self._queue = queue
        self._group = group
        self._name = name
        self._tidy = tidy
        """Acknowledges everything: the one that comes at the end."""
        self._random = Random(f"{name} {world.plan.seed}")
        self._writer = Writer(self._random, name.replace("/", "."))
        self._process: Process | None = None
        self._lives = 0

    @property
    def _called(self) -> str:
        return f"{self._name}#{self._lives}"

    async def run(self) -> None:
        while not self._world.finishing or self._tidy:
            claim, process = await self._claim()
            if claim is None:
                await asyncio.sleep(0.2)
            while claim is not None and claim.lease is not None:
                claim = await self._work(claim, process)
            if not self._tidy:
                await asyncio.sleep(self._random.choice((0, 10, 300)) / 1000)

    # Claims -----------------------------------------------------------------------------------------------

    async def _claim(self) -> tuple[Claim | None, Process]:
        world, random = self._world, self._random
        process = self._process = await world.process(self._process)
        view = world.checker.court.view(self._queue.name, self._group.name, process.index)
        settle = self._queue.at_most_once and random.random() < 0.5 and not self._tidy
        lease_ms = random.choice((200, 1_500)) if random.random() < 0.3 and not self._tidy else None
        wait_ms = LONG_WAIT_MS if self._tidy or world.plan.long_polls else random.choice((0, 100, 1_000, 5_000))
        most = 10 if self._tidy else random.randint(1, 5)
        least = 2 if most > 1 and random.random() < 0.05 and not self._tidy else 1
        ordered = view.settings.ordered
        partition = random.choice(PARTITIONS) if ordered and random.random() < 0.1 and not self._tidy else None
        hang_up_ms = random.randrange(2_000) if random.random() < world.plan.cancels and not self._tidy else None
        claiming = world.checker.deliveries.claim_begins(view, process.index, lease_ms, settle=settle)
        where = f"{self._queue.name}/{self._group.name}"
        world.trace(f"{self._called} claims {most} of {where} for {wait_ms} ms on node {process.index}")
        work = process.broker.claim(
            self._queue.name,
            group=self._group.name,
            max=most,
            min=least,
            wait=wait_ms / 1000,
            lease_seconds=None if lease_ms is None else lease_ms / 1000,
            partition=partition,
            consumer=self._called,
            ack=settle,
        )
        try:
            claim = await world.call(process, work, hang_up_ms)
        except PenstockError as error:
            world.trace(f"{self._called} claim: {type(error).__name__} {error}")
            if not isinstance(error, NotFound):
                world.unexpected(process, "claim", error)
            world.checker.deliveries.claim_failed(claiming)
            return None, process
        found = [(message.offset, message.attempt) for message in claim.messages]
        world.trace(f"{self._called} got {claim.lease or claim.lane}:{found} until {claim.deadline_ms}")
        world.checker.deliveries.claim_answered(claiming, claim, self._called)
        if not found and partition is None and least == 1 and process.index == world.owner:
            world.checker.waited(view, process.index, world.clock.now_ms() - claiming.started_ms)
        return claim, process

    # Work -------------------------------------------------------------------------------------------------

    async def _work(self, claim: Claim, process: Process) -> Claim | None:
        """What was claimed by settling this, if anything was."""
        random = self._random
        if self._tidy or self._world.finishing:
            await self._settle(claim, process, dict.fromkeys(claim.offsets(), Verdict("ack")))
            return None
        lease_ms = max(1, claim.deadline_ms - self._world.clock.now_ms())
        await asyncio.sleep(random.choice((0, 0, 0.1, 0.5, 0.9, 1.2)) * lease_ms / 1000)
        what = random.random()
        if what < 0.06:
            return None  # forgotten: the lease runs out
        if what < 0.10:
            await self._leave(process)
            return None
        if what < 0.16:
            await self._extend(claim, process)
        if what < 0.26:
            await self._transact(claim, process)
            return None
        if what < 0.46:
            return await self._settle_and_claim(claim, process, self._verdicts(claim))
        await self._settle(claim, process, self._verdicts(claim))
        if random.random() < 0.1:
            # Once more, offset by offset: a verdict on a whole lease would mean what is left of it.
            await self._settle(claim, process, dict.fromkeys(claim.offsets(), Verdict("ack")), again=True)
        return None

    def _verdicts(self, claim: Claim) -> dict[int, Verdict]:
        """One for all, or each its own, or for some only."""
        random, offsets = self._random, claim.offsets()
        if random.random() < 0.6:
            return dict.fromkeys(offsets, self._verdict())
        if random.random() < 0.3:
            offsets = sorted(random.sample(offsets, random.randint(1, len(offsets))))
        return {offset: self._verdict() for offset in offsets}

    def _verdict(self) -> Verdict:
        random = self._random
        actions: tuple[Action, ...] = ("ack", "ack", "ack", "nack", "nack", "reject", "postpone", "release")
        action = random.choice(actions)
        delay_ms = random.choice((0, 200, 1_500)) if action == "postpone" or random.random() < 0.3 else None
        return Verdict(action, None, 0, delay_ms if action in ("nack", "postpone") else None, f"because of {action}")

    async def _settle(
        self, claim: Claim, process: Process, verdicts: dict[int, Verdict], *, again: bool = False
    ) -> None:
        world, broker = self._world, process.broker
        view = world.checker.court.view(self._queue.name, self._group.name, process.index)
        settling = world.checker.deliveries.settle_begins(view, process.index, claim, verdicts)
        world.trace(f"{self._called} settles {claim.lease}:{[(at, item.action) for at, item in verdicts.items()]}")
        try:
            await world.call(process, broker.settle(claim, self._listed(claim, verdicts, again=again)))
        except PenstockError as error:
            world.trace(f"{self._called} settle: {type(error).__name__} {error}")
            world.unexpected(process, "settle", error)
            world.checker.deliveries.settle_failed(settling, error)
            return
        world.trace(f"{self._called} settled")
        world.checker.deliveries.settle_answered(settling)

    def _listed(self, claim: Claim, verdicts: dict[int, Verdict], *, again: bool = False) -> list[Verdict]:
        """Verdicts as they are said: one for all of a lease, where that can be, or one for each offset."""
        alike = len({*verdicts.values()}) == 1 and list(verdicts) == claim.offsets()
        if alike and not again and self._random.random() < 0.7:
            return [next(iter(verdicts.values()))]
        return [
            Verdict(verdict.action, offset, offset + 1, verdict.delay_ms, verdict.error)
            for offset, verdict in verdicts.items()
        ]

    async def _settle_and_claim(self, claim: Claim, process: Process, verdicts: dict[int, Verdict]) -> Claim | None:
        """Settle, and claim what comes next with the same call."""
        world, deliveries = self._world, self._world.checker.deliveries
        view = world.checker.court.view(self._queue.name, self._group.name, process.index)
        settling = deliveries.settle_begins(view, process.index, claim, verdicts)
        claiming = deliveries.claim_begins(view, process.index, None, settle=False)
        most = self._random.randint(1, 5)
        said = [(at, item.action) for at, item in verdicts.items()]
        world.trace(f"{self._called} settles {claim.lease}:{said} and claims {most} more")
        work = process.broker.settle_and_claim(claim, self._listed(claim, verdicts), max=most, consumer=self._called)
        try:
            following = await world.call(process, work)
        except PenstockError as error:
            world.trace(f"{self._called} settle and claim: {type(error).__name__} {error}")
            world.unexpected(process, "settle", error)
            deliveries.settle_failed(settling, error)
            deliveries.claim_failed(claiming)
            return None
        found = [(message.offset, message.attempt) for message in following.messages]
        world.trace(f"{self._called} settled and got {following.lease}:{found} until {following.deadline_ms}")
        deliveries.settle_answered(settling)
        if following:
            deliveries.claim_answered(claiming, following, self._called)
        else:  # what it took may have been unreadable, and be on its way back
            deliveries.claim_failed(claiming)
        return following

    async def _transact(self, claim: Claim, process: Process) -> None:
        """Acknowledge what was claimed and publish something else, in one commit."""
        world, random = self._world, self._random
        assert claim.lease is not None
        view = world.checker.court.view(self._queue.name, self._group.name, process.index)
        verdicts = dict.fromkeys(claim.offsets(), Verdict("ack"))
        targets = [queue for queue in world.plan.queues if queue.name != GRAVEYARD]
        sent: list[tuple[Message, tuple[str, ...]]] = []
        try:
            transaction = process.broker.transaction().ack(claim)
            for _ in range(random.randint(1, 2)):
                target = random.choice(targets)
                message = self._writer.message(target, world.clock.now_ms())
                transaction.publish(target.name, message)
                sent.append((message, (target.name,)))
        except PenstockError as error:
            world.unexpected(process, "transaction", error)
            return  # nothing has begun
        lane = scoped(claim.lease.lane, process.index)
        settling = world.checker.deliveries.settle_begins(view, process.index, claim, verdicts)
        started_ms = world.checker.publishes.begin(sent, (lane, claim.lease.group, claim.lease.id, tuple(verdicts)))
        world.trace(f"{self._called} transacts {claim.lease}:{list(verdicts)} and {[uid_of(m) for m, _ in sent]}")
        try:
            receipt = await world.call(process, transaction.commit())
        except PenstockError as error:
            world.trace(f"{self._called} transaction: {type(error).__name__} {error}")
            world.unexpected(process, "transaction", error)
            world.checker.publishes.failed([message for message, _ in sent], error)
            if isinstance(error, LeaseLost):
                world.checker.deliveries.settle_failed(settling, error)
            return
        world.trace(f"{self._called} transaction done")
        world.checker.deliveries.settle_answered(settling)
        for index, (message, _) in enumerate(sent):
            world.checker.publishes.answered(message, receipt.of(index), process.index, started_ms)

    async def _extend(self, claim: Claim, process: Process) -> None:
        world, span_ms = self._world, self._random.choice((100, 2_000))
        view = world.checker.court.view(self._queue.name, self._group.name, process.index)
        world.checker.deliveries.extend_begins(view, process.index, claim, span_ms)
        try:
            deadline_ms = await world.call(process, process.broker.extend(claim, span_ms / 1000))
        except PenstockError as error:
            world.unexpected(process, "extend", error)
            return
        world.trace(f"{self._called} extended {claim.lease} to {deadline_ms}")
        world.checker.deliveries.extend_answered(view, process.index, claim, deadline_ms)

    async def _leave(self, process: Process) -> None:
        """Go for good, politely or not; another comes in its place."""
        world = self._world
        if self._random.random() < 0.6:
            view = world.checker.court.view(self._queue.name, self._group.name, process.index)
            world.checker.deliveries.detach_begins(view, self._called)
            world.trace(f"{self._called} detaches")
            try:
                work = process.broker.detach(self._queue.name, self._group.name, consumer=self._called)
                await world.call(process, work)
            except PenstockError as error:
                world.unexpected(process, "detach", error)
        self._lives += 1


class StreamReader:
    """One client that reads a stream group."""

    def __init__(self, world: World, queue: QueuePlan, group: GroupPlan, name: str) -> None:
        self._world = world
        self._queue = queue
        self._group = group
        self._name = name
        self._random = Random(f"{name} {world.plan.seed}")
        self._process: Process | None = None

    async def run(self) -> None:
        while True:
            await self._read()
            pause_ms = 1_000 if self._world.finishing else self._random.choice((0, 50, 1_000))
            await asyncio.sleep(pause_ms / 1000)

    async def _read(self) -> None:
        world, random = self._world, self._random
        process = self._process = await world.process(self._process)
        view = world.checker.court.view(self._queue.name, self._group.name, process.index)
        wait_ms = LONG_WAIT_MS if world.plan.long_polls else random.choice((0, 100, 3_000))
        started_ms = world.clock.now_ms()
        view.reads_open += 1
        work = process.broker.read(
            self._queue.name, self._group.name, max=random.randint(1, 4), wait=wait_ms / 1000, consumer=self._name
        )
        try:
            found = await world.call(process, work)
        except PenstockError as error:
            world.trace(f"{self._name} read: {type(error).__name__} {error}")
            if not isinstance(error, NotFound):
                world.unexpected(process, "read", error)
            return
        finally:
            view.reads_open -= 1
        world.trace(f"{self._name} read {found.lane}:{[message.offset for message in found.messages]}")
        if not found.messages:
            if process.index == world.owner:
                world.checker.streams.waited(view, process.index, world.clock.now_ms() - started_ms)
            return
        lane = world.checker.court.lane_id(found.queue, found.lane, process.index)
        world.checker.streams.read(view, lane, found.messages)
        if not view.settings.auto_commit and random.random() < 0.8:
            await self._commit(process, found.lane, found.messages[-1].offset + 1)

    async def _commit(self, process: Process, lane: int, offset: int) -> None:
        """Commit what all readers have seen; a lone reader has seen all that came before."""
        if self._group.consumers > 1:
            return
        try:
            work = process.broker.commit(self._queue.name, self._group.name, offset, lane=lane)
            await self._world.call(process, work)
        except (BrokenOff, OffsetGone):
            return
        except PenstockError as error:
            self._world.unexpected(process, "commit", error)
