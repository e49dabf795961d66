"""Slots that come and go: what a node does when it gets one, hands one on or loses one.

`membership.py` decides which; here is how. A slot is handed on when nothing of it is under way any more: commands that
come meanwhile are `NotOwner`, those that wait are told so, and what was changed is committed first. A slot that is
lost is dropped at once, with everything that was not committed. What that means for each service is the service's
own business: it subscribes to `on_served`, `on_shed` or `on_lost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass

from penstock.model.errors import PenstockError
from penstock.model.rows import Commit, slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.observe.events import EventWriter
from penstock.node.timers import Tasks
from penstock.store.contract import Log


@dataclass(eq=False, repr=False)
class Slots:
    """Takes slots up and gives them away."""

    _catalog: Catalog
    _memory: Log
    """Holds the lanes of ephemeral queues."""
    _commits: Commits
    _outbox: Outbox
    _events: EventWriter
    _tasks: Tasks
    _ownership: Ownership

    def __post_init__(self) -> None:
        self.on_served: list[Callable[[Set[int]], Awaitable[None]]] = []
        """Start what goes by itself in these slots: leases and delays, retention, schedules, what sessions left."""
        self.on_shed: list[Callable[[Set[int]], None]] = []
        """Carry out nothing more in these slots, and end what waits for them."""
        self.on_lost: list[Callable[[Set[int]], None]] = []
        """Forget what is in memory of these slots."""

    # Getting ----------------------------------------------------------------------------------------------

    async def take_up(self, epochs: dict[int, int]) -> None:
        """These slots are this node's, and what their last owner declared is known: serve them."""
        slots = set(epochs)
        self._ownership.take(epochs)
        try:
            await self._outbox.drain(slots)  # before anything newer can overtake what was on its way to them
        except BaseException:
            self._ownership.abandon(slots)
            raise
        self._ownership.serve(slots)
        await self.start(slots)

    async def start(self, slots: Set[int]) -> None:
        """Start everything that goes by itself in these slots. Safe to repeat."""
        for begin in self.on_served:
            await begin(slots)
        self._ownership.started(slots)

    # Giving -----------------------------------------------------------------------------------------------

    async def hand_on(self, slots: set[int]) -> None:
        """Finish what is under way in these slots and forget them; from the first moment on they are `NotOwner`."""
        self._ownership.shed(slots)
        await self._events.move()
        self._tell(self.on_shed, slots)
        while True:
            while self._commits.concerns_slots(slots):
                try:
                    await self._commits.commit()
                except PenstockError:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)  # claims that were committed last are answered before their slot is another's
            if not self._commits.concerns_slots(slots):
                break
        self._forget(slots)

    def lose(self, slots: set[int], error: PenstockError) -> None:
        """These slots are another's already: whatever was not committed of them was not done."""
        self._ownership.shed(slots)
        self._commits.give_up(slots, error)
        self._tell(self.on_shed, slots)
        self._forget(slots)
        self._events.lost(slots)

    def _forget(self, slots: set[int]) -> None:
        self._ownership.lose(slots)
        self._tell(self.on_lost, slots)
        ephemeral = [queue for queue in self._catalog.in_slots(slots) if queue.id >= EPHEMERAL_FROM]
        for queue in ephemeral:  # they are in this node's memory alone
            self._catalog.remove_queue(queue)
        lanes = [lane for queue in ephemeral for lane in queue.lanes]
        if lanes:
            self._tasks.spawn(self._memory.apply(Commit({slot_of(lane): 1 for lane in lanes}, lanes_deleted=lanes)))

    def _tell(self, listeners: list[Callable[[Set[int]], None]], slots: Set[int]) -> None:
        for tell in listeners:
            tell(slots)
