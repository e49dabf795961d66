"""Producers: publish singles, many, encoded batches and through the exchange; retry what has a dedup id."""

from __future__ import annotations

import asyncio
from random import Random

from penstock.api.results import Published
from penstock.batch import encode
from penstock.model import Message
from penstock.model.errors import PenstockError, QueueFull
from tests.simulation.mirror import uid_of
from tests.simulation.plan import COLORS, EXCHANGE, GRAVEYARD, PARTITIONS, QueuePlan
from tests.simulation.world import Process, World

TRIES_MAX = 4


class Writer:
    """Makes messages that fit a queue, each with a name of its own."""

    def __init__(self, random: Random, name: str) -> None:
        self._random = random
        self._name = name
        self._count = 0

    def message(self, queue: QueuePlan, now_ms: int) -> Message:
        self._count += 1
        random, uid = self._random, f"{self._name}.{self._count}"
        partition = random.choice((*PARTITIONS, None)) if random.random() < 0.7 else None
        late = random.random() < 0.15
        return Message(
            uid.encode(),
            partition=partition,
            key=random.choice(("a", "b", None)),
            headers={"color": random.choice(COLORS)} if random.random() < 0.7 else None,
            priority=random.choice((0, 0, 1, 3)) if "prioritized" in queue.options else 0,
            delay_ms=random.choice((50, 700, 3_000)) if late else 0,
            not_before_ms=now_ms + random.choice((100, 2_000)) if random.random() < 0.05 else 0,
            ttl_ms=random.choice((0, 300, 2_000, 60_000)) if random.random() < 0.1 else None,
            dedup_id=self._dedup_id(uid) if random.random() < 0.3 else None,
        )

    def _dedup_id(self, uid: str) -> str:
        """Mostly its own; sometimes one that others use as well: then the first payload wins."""
        return f"shared-{self._random.randrange(4)}" if self._random.random() < 0.3 else f"id-{uid}"


class Producer:
    """One client that publishes."""

    def __init__(self, world: World, index: int) -> None:
        self._world = world
        self._random = Random(f"producer {world.plan.seed} {index}")
        self._name = f"p{index}"
        self.writer = Writer(self._random, f"m{index}")
        self._process: Process | None = None
        self._queues = [queue for queue in world.plan.queues if queue.name != GRAVEYARD]

    async def run(self) -> None:
        left = self._world.plan.messages // self._world.plan.producers + 1
        pause_ms = 2 * self._world.plan.span_ms // max(left, 1)
        while left > 0 and not self._world.finishing:
            left -= await self._publish()
            await asyncio.sleep(self._random.randrange(pause_ms + 1) / 1000)

    async def _publish(self) -> int:
        """One call, with its retries; how many messages it was about."""
        random, now_ms = self._random, self._world.clock.now_ms()
        if self._world.plan.bound and random.random() < 0.25:
            queue = self._world.plan.queue(random.choice(self._world.plan.bound))
            targets, form = tuple(self._world.plan.bound), "exchange"
        else:
            queue = random.choice(self._queues)
            targets, form = (queue.name,), random.choice(("one", "many", "batch"))
        count = 1 if form == "one" else random.randint(1, 5)
        messages = [self.writer.message(queue, now_ms) for _ in range(count)]
        for _ in range(TRIES_MAX):
            if await self._call(form, queue, messages, targets):
                break
            messages = [message for message in messages if message.dedup_id is not None]
            if not messages or any("dedup_window_ms" in self._world.plan.queue(name).options for name in targets):
                break
            await asyncio.sleep(random.randrange(500) / 1000)
        return count

    async def _call(self, form: str, queue: QueuePlan, messages: list[Message], targets: tuple[str, ...]) -> bool:
        """Whether it need not be tried again."""
        world, checker = self._world, self._world.checker.publishes
        process = self._process = await world.process(self._process)
        started_ms = checker.begin([(message, targets) for message in messages])
        names = ",".join(uid_of(message) for message in messages)
        world.trace(f"{self._name} publishes {form} {names} to {','.join(targets)} on node {process.index}")
        try:
            places = await self._ask(process, form, queue.name, messages)
        except PenstockError as error:
            world.trace(f"{self._name} {names}: {type(error).__name__} {error}")
            world.unexpected(process, "publish", error)
            checker.failed(messages, error)
            return isinstance(error, QueueFull)
        if places[0] and places[0][0].buffered:
            world.trace(f"{self._name} {names}: buffered")
            checker.buffered(messages)
            return True
        world.trace(
            f"{self._name} {names}: {[(place[0].lane, place[0].offset, place[0].duplicate) for place in places]}"
        )
        for message, where in zip(messages, places, strict=True):
            checker.answered(message, where, process.index, started_ms)
        return True

    async def _ask(self, process: Process, form: str, queue: str, messages: list[Message]) -> list[list[Published]]:
        world, broker = self._world, process.broker
        if form == "one" and len(messages) == 1:
            return [[await world.call(process, broker.publish(queue, messages[0]))]]
        if form == "batch":
            receipt = await world.call(process, broker.publish_batch(queue, encode(messages)))
        elif form == "exchange":
            batch = encode(messages) if self._random.random() < 0.4 else messages
            receipt = await world.call(process, broker.publish_to(EXCHANGE, batch))
        else:
            receipt = await world.call(process, broker.publish_many(queue, messages))
        return [receipt.of(index) for index in range(len(messages))]
