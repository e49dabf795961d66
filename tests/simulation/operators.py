"""The operator: pauses, resumes, redrives, seeks, purges, looks around, declares groups late, deletes a queue."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from penstock.model import Message
from penstock.model.errors import InvalidArgument, NotFound, PenstockError
from tests.simulation.plan import GRAVEYARD, SCRATCH, GroupPlan, QueuePlan
from tests.simulation.world import Process, World


class Operator:
    """One client that administers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"operator {world.plan.seed}")

    async def run(self) -> None:
        world, random = self._world, self._random
        actions = [
            random.choice((self._redrive, self._seek, self._pause, self._look, self._purge_dead))
            for _ in range(world.plan.operations)
        ]
        late = [(queue, group) for queue in world.plan.queues for group in queue.groups if group.late]
        for queue, group in late:
            await self._sleep()
            await self._declare(queue, group)
        for action in actions:
            await self._sleep()
            if world.finishing:
                return
            process = await world.process()
            try:
                await action(process)
            except PenstockError as error:
                world.trace(f"operator: {type(error).__name__} {error}")
                if not isinstance(error, NotFound | InvalidArgument):
                    world.unexpected(process, "operation", error)
        if world.plan.scratch:
            await self._scratch()

    async def _sleep(self) -> None:
        await asyncio.sleep(self._random.randrange(self._world.plan.span_ms // 2 + 1) / 1000)

    def _choose(self) -> tuple[QueuePlan, GroupPlan]:
        queues = [queue for queue in self._world.plan.queues if queue.name != GRAVEYARD]
        queue = self._random.choice(queues)
        return queue, self._random.choice([group for group in queue.groups if not group.is_stream])

    async def _declare(self, queue: QueuePlan, group: GroupPlan) -> None:
        process = await self._world.process()
        self._world.trace(f"operator declares {queue.name}/{group.name}")
        try:
            await self._world.call(process, process.broker.declare_group(queue.name, group.name, **group.options))
        except PenstockError as error:
            self._world.unexpected(process, "declare", error)

    async def _redrive(self, process: Process) -> None:
        queue, group = self._choose()
        world, checker = self._world, self._world.checker
        view = checker.court.view(queue.name, group.name, process.index)
        checker.deaths.revived.add((queue.name, group.name))
        checker.deliveries.redrive_begins(view)
        world.trace(f"operator redrives {queue.name}/{group.name}")
        options: dict[str, Any] = self._random.choice(({}, {"reason": "rejected"}, {"filter": "color = 'red'"}))
        try:
            await world.call(process, process.broker.redrive(queue.name, group.name, **options))
        finally:
            checker.deliveries.redrive_ended(view)

    async def _purge_dead(self, process: Process) -> None:
        queue, group = self._choose()
        view = self._world.checker.court.view(queue.name, group.name, process.index)
        view.dead_purged = True
        self._world.checker.deaths.revived.add((queue.name, group.name))
        self._world.trace(f"operator purges the dead of {queue.name}/{group.name}")
        await self._world.call(process, process.broker.purge_dead(queue.name, group.name, reason="rejected"))

    async def _seek(self, process: Process) -> None:
        queue, group = self._choose()
        world, checker = self._world, self._world.checker
        view = checker.court.view(queue.name, group.name, process.index)
        lanes = checker.court.lanes_of(queue.name, process.index)
        if not lanes:
            return
        lane = self._random.choice(lanes)
        place = self._random.randint(lane.first, lane.end)
        checker.deaths.revived.add((queue.name, group.name))
        checker.deliveries.seek_begins(view, {lane.id: place})
        world.trace(f"operator seeks {queue.name}/{group.name} to {lane.id}:{place}")
        try:
            index = checker.court.mirror.index_of(lane.id)
            await world.call(process, process.broker.seek(queue.name, group.name, offset=place, lane=index))
        finally:
            checker.deliveries.seek_ended(view)

    async def _pause(self, process: Process) -> None:
        queue, group = self._choose()
        checker = self._world.checker
        view = checker.court.view(queue.name, group.name, process.index)
        for paused in (True, False):
            checker.deliveries.pause_begins(view)
            known = False
            work = process.broker.pause if paused else process.broker.resume
            try:
                self._world.trace(f"operator {'pauses' if paused else 'resumes'} {queue.name}/{group.name}")
                await self._world.call(process, work(queue.name, group.name))
                known = True
            finally:
                checker.deliveries.pause_ended(view, paused=paused, known=known)
            await self._sleep()

    async def _look(self, process: Process) -> None:
        """Reading must disturb nothing."""
        queue, group = self._choose()
        world, broker = self._world, process.broker
        await world.call(process, broker.stats(queue.name))
        await world.call(process, broker.browse(queue.name, group=group.name, max=5))
        await world.call(process, broker.dead(queue.name, group.name, max=5))

    async def _scratch(self) -> None:
        """A queue that comes and goes while it is used."""
        world, random = self._world, self._random
        for _ in range(3):
            process = await world.process()
            broker = process.broker
            try:
                await world.call(process, broker.declare_queue(SCRATCH, ephemeral=random.random() < 0.3))
                calls = [
                    broker.publish(SCRATCH, Message(b"scratch")),
                    broker.claim(SCRATCH, wait=0.5, consumer="scratch", lease_seconds=0.1),
                    broker.delete_queue(SCRATCH),
                ]
                random.shuffle(calls)
                await asyncio.gather(*(world.call(process, work) for work in calls), return_exceptions=True)
            except PenstockError as error:
                world.trace(f"operator: {type(error).__name__} {error}")
                world.unexpected(process, "scratch", error)
