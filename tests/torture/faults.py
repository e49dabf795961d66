"""The faults that a torture run injects, one after the other or together, each undone after a while."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from tests.torture.world import TorturedNode, World

BETWEEN_S: Final = (0.2, 2.5)
"""The pause between two faults."""
PAUSED_S: Final = (0.2, 6.0)
"""How long a node is stopped: from hardly noticed to declared dead."""
SPLIT_S: Final = (0.2, 5.0)
SLOW_S: Final = (0.005, 0.1)
HOUR_S: Final = 3600.0


class Faults:
    """Chooses and injects; at least one node is left alone by what takes nodes away."""

    def __init__(self, world: World, seed: int, say: Callable[[str], None]) -> None:
        self._world = world
        self._chance = random.Random(seed)
        self._say = say
        self.counts: Counter[str] = Counter()
        self._busy: set[str] = set()
        """Nodes that suffer from something now."""

    async def run(self) -> None:
        """Until cancelled."""
        kinds: list[tuple[int, str, Callable[[TorturedNode], Awaitable[None]]]] = [
            (5, "node killed", self._kill), (2, "node stopped in good order", self._stop),
            (4, "node paused", self._pause), (3, "node cut off from the database", self._split_store),
            (3, "connections to the database cut", self._cut_store), (2, "slow database", self._slow_store),
            (3, "node cut off from the others", self._split_node), (2, "connections between nodes cut", self._cut_node),
            (2, "node restarted an hour off", self._wrong_clock), (1, "database killed", self._kill_database),
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._chance.uniform(*BETWEEN_S))
                free = [node for node in self._world.nodes if node.name not in self._busy]
                if len(free) < min(2, len(self._world.nodes)):
                    continue
                node = self._chance.choice(free)
                ((_, name, fault),) = self._chance.choices(kinds, [weight for weight, _, _ in kinds])
                self.counts[name] += 1
                self._say(f"{name}: {node.name}")
                group.create_task(self._suffer(node, fault))

    async def _suffer(self, node: TorturedNode, fault: Callable[[TorturedNode], Awaitable[None]]) -> None:
        self._busy.add(node.name)
        try:
            await fault(node)
        finally:
            self._busy.discard(node.name)

    async def _kill(self, node: TorturedNode) -> None:
        node.kill()
        await asyncio.sleep(self._chance.uniform(0.0, 4.0))
        node.start()
        await node.ready()

    async def _stop(self, node: TorturedNode) -> None:
        await asyncio.to_thread(node.terminate)
        node.start()
        await node.ready()

    async def _pause(self, node: TorturedNode) -> None:
        node.pause()
        await asyncio.sleep(self._chance.uniform(*PAUSED_S))
        node.go_on()

    async def _split_store(self, node: TorturedNode) -> None:
        node.to_store.stall()
        await asyncio.sleep(self._chance.uniform(*SPLIT_S))
        node.to_store.heal()

    async def _cut_store(self, node: TorturedNode) -> None:
        node.to_store.cut()

    async def _slow_store(self, node: TorturedNode) -> None:
        node.to_store.slow(self._chance.uniform(*SLOW_S))
        await asyncio.sleep(self._chance.uniform(*SPLIT_S))
        node.to_store.heal()

    async def _split_node(self, node: TorturedNode) -> None:
        node.to_node.stall()
        await asyncio.sleep(self._chance.uniform(*SPLIT_S))
        node.to_node.heal()

    async def _cut_node(self, node: TorturedNode) -> None:
        node.to_node.cut()

    async def _wrong_clock(self, node: TorturedNode) -> None:
        node.kill()
        node.set_clock(self._chance.choice((-HOUR_S, HOUR_S, 0.0)))
        node.start()
        await node.ready()

    async def _kill_database(self, _: TorturedNode) -> None:
        await asyncio.to_thread(self._world.database.stop, 9)
        await asyncio.sleep(self._chance.uniform(0.0, 3.0))
        await asyncio.to_thread(self._world.database.start)
