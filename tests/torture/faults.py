"""The faults that a torture run injects, one after the other or together, each undone after a while."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from tests.torture.ledger import Ledger
from tests.torture.network import HOME, STORE, Network, Pair, both
from tests.torture.world import TorturedNode, World

BETWEEN_S: Final = (0.2, 2.5)
"""The pause between two faults."""
DELIVERED: Final = 200
PATIENCE_S: Final = 20.0
"""The next fault waits until so much was delivered since the last, but no longer: a busy machine recovers slowly."""
PAUSED_S: Final = (0.2, 6.0)
"""How long a node is stopped: from hardly noticed to declared dead."""
SPLIT_S: Final = (0.2, 5.0)
SLOW_S: Final = (0.005, 0.1)
DOWN_S: Final = (0.0, 3.0)
"""How long there is no database, beside the time that it takes to start or to be promoted."""
FLAPS_S: Final = (0.01, 0.3)
"""How long a bad cable is broken, and whole, in turns."""
HOUR_S: Final = 3600.0
DATABASE_SHARE: Final = 0.07
"""Of all faults, those of the database."""
PROMOTED_SHARE: Final = 0.6
"""Of those of the database that come long enough after a promotion, those that are one."""
PROMOTIONS_S: Final = 60.0
"""Between two promotions at least: there is other trouble to be in with a leader that stays."""

NodeFault = Callable[[TorturedNode], Awaitable[None]]


class Faults:
    """Chooses and injects; at least one node is left alone by what takes nodes away."""

    def __init__(self, world: World, ledger: Ledger, seed: int, say: Callable[[str], None]) -> None:
        self._world = world
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._say = say
        self.counts: Counter[str] = Counter()
        self._busy: set[str] = set()
        """Nodes that suffer from something now."""
        self._promote_from = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        kinds: list[tuple[int, str, NodeFault]] = [
            (5, "node killed", self._kill),
            (2, "node stopped in good order", self._stop),
            (4, "node paused", self._pause),
            (3, "node cut off from the database", self._split_store),
            (3, "connections to the database cut", self._cut_store),
            (2, "slow database", self._slow_store),
            (2, "node restarted an hour off", self._wrong_clock),
            (2, "clock of a node jumped", self._jump),
        ]
        if self._world.network is None:
            kinds += [
                (3, "node cut off from the others", self._split_node),
                (2, "connections between nodes cut", self._cut_node),
            ]
        else:
            kinds += [
                (3, "packets between a node and the database swallowed", self._swallow_store),
                (3, "packets between nodes swallowed", self._swallow_nodes),
                (2, "packets of a node to and from everybody swallowed", self._swallow_all),
                (2, "a node's cable flapping", self._flap),
            ]
        async with asyncio.TaskGroup() as group:
            while True:
                await self._pause_between()
                if self._chance.random() < DATABASE_SHARE:
                    self._trouble_database(group)
                else:
                    self._trouble_node(group, kinds)

    async def _pause_between(self) -> None:
        wanted, until = self._ledger.deliveries + DELIVERED, time.monotonic() + PATIENCE_S
        await asyncio.sleep(self._chance.uniform(*BETWEEN_S))
        while self._ledger.deliveries < wanted and time.monotonic() < until:  # noqa: ASYNC110 - a hundred places count
            await asyncio.sleep(BETWEEN_S[0])

    def _trouble_database(self, group: asyncio.TaskGroup) -> None:
        """One thing at a time happens to it, until it has a standby again."""
        if self._world.database.is_busy:
            return
        if time.monotonic() >= self._promote_from and self._chance.random() < PROMOTED_SHARE:
            self._count("replica promoted")
            group.create_task(self._promote())
        else:
            self._count("database killed")
            group.create_task(self._kill_database())

    def _trouble_node(self, group: asyncio.TaskGroup, kinds: list[tuple[int, str, NodeFault]]) -> None:
        free = [node for node in self._world.nodes if node.name not in self._busy]
        if len(free) < min(2, len(self._world.nodes)):
            return
        node = self._chance.choice(free)
        ((_, name, fault),) = self._chance.choices(kinds, [weight for weight, _, _ in kinds])
        self._count(name, node.name)
        group.create_task(self._suffer(node, fault))

    def _count(self, name: str, node: str = "") -> None:
        self.counts[name] += 1
        self._say(f"{name}: {node}" if node else name)

    async def _suffer(self, node: TorturedNode, fault: NodeFault) -> None:
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

    # Packets that nobody is told of -------------------------------------------------------------------------

    @property
    def _network(self) -> Network:
        assert self._world.network is not None
        return self._world.network

    async def _swallow_store(self, node: TorturedNode) -> None:
        await self._swallow(self._some_ways(both(node.host, STORE)))

    async def _swallow_nodes(self, node: TorturedNode) -> None:
        """From one other or all of them."""
        others = [one.host for one in self._world.nodes if one is not node]
        chosen = others if self._chance.random() < 0.5 else self._chance.sample(others, min(1, len(others)))
        await self._swallow([pair for other in chosen for pair in self._some_ways(both(node.host, other))])

    async def _swallow_all(self, node: TorturedNode) -> None:
        await self._swallow(self._ways(node))

    async def _flap(self, node: TorturedNode) -> None:
        until = time.monotonic() + self._chance.uniform(*SPLIT_S)
        while time.monotonic() < until:
            await self._swallow(self._ways(node), FLAPS_S)
            await asyncio.sleep(self._chance.uniform(*FLAPS_S))

    def _ways(self, node: TorturedNode) -> list[Pair]:
        others = [one.host for one in self._world.nodes if one is not node]
        return [pair for other in (HOME, STORE, *others) for pair in both(node.host, other)]

    def _some_ways(self, pairs: list[Pair]) -> list[Pair]:
        """Both directions, or one of them: requests arrive and no answers, or the reverse."""
        return pairs if self._chance.random() < 0.5 else [self._chance.choice(pairs)]

    async def _swallow(self, pairs: list[Pair], seconds: tuple[float, float] = SPLIT_S) -> None:
        self._network.cut(pairs)
        try:
            await asyncio.sleep(self._chance.uniform(*seconds))
        finally:
            self._network.mend(pairs)

    async def _wrong_clock(self, node: TorturedNode) -> None:
        node.kill()
        node.set_clock(self._chance.choice((-HOUR_S, HOUR_S, 0.0)))
        node.start()
        await node.ready()

    async def _jump(self, node: TorturedNode) -> None:
        """It goes on, at another time of the day."""
        node.set_clock(self._chance.choice((-HOUR_S, HOUR_S, 0.0)))

    async def _kill_database(self) -> None:
        await asyncio.to_thread(self._world.database.crash, self._chance.uniform(*DOWN_S))

    async def _promote(self) -> None:
        await asyncio.to_thread(self._world.database.fail_over, self._chance.uniform(*DOWN_S))
        self._promote_from = time.monotonic() + PROMOTIONS_S
