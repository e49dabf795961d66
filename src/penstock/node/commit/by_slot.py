"""Commits of an engine that commits one slot at a time: a commit loop for each slot, which take turns.

Slots are to each other what nodes are: what is changed of one commits and fails by itself, and what crosses goes
through the outbox. What each loop does is in `loop.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from penstock.api.ticket import Ticket
from penstock.core.lane import Lane
from penstock.model.errors import PenstockError
from penstock.model.rows import slot_of
from penstock.node.commit.commits import PENDING_BYTES_MAX, Commits
from penstock.node.commit.host import CommitHost
from penstock.node.commit.loop import CommitLoop, Ground
from penstock.node.commit.pending import Pending
from penstock.node.publish.parts import Unit


class Turns:
    """Which loops may have a commit under way: as many as the engine can do, those that waited longest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loops: list[SlotLoop] = []
        self._waiting: dict[SlotLoop, None] = {}

    def join(self, loop: SlotLoop) -> None:
        self._loops.append(loop)

    def may_begin(self, loop: SlotLoop) -> bool:
        """Whether it is the loop's turn; where it is not, it is told when it may be."""
        if sum(one.under_way for one in self._loops) < self._most:
            self._waiting.pop(loop, None)
            return True
        self._waiting[loop] = None
        return False

    def ended(self) -> None:
        """A commit is over: the loops that wait ask again, in their order."""
        waiting, self._waiting = self._waiting, {}
        for loop in waiting:
            loop.resume()


class SlotLoop(CommitLoop):
    """The commits of one slot, one at a time."""

    def __init__(self, ground: Ground, slot: int, turns: Turns) -> None:
        super().__init__(ground, slot)
        self._turns = turns
        turns.join(self)

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way, or waits to be committed."""
        return not self.is_idle or self._pending.is_wanted

    def resume(self) -> None:
        """It may be this loop's turn."""
        self._schedule()

    def _may_begin(self) -> bool:
        return not self._rounds and self._turns.may_begin(self)

    def _next(self) -> None:
        self._turns.ended()  # those who waited before this loop's next round
        super()._next()


class SlotCommits(Commits):
    """Sends each change to the loop of its slot."""

    spans_slots = False

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._epochs = ground.epochs
        self._turns = Turns(ground.store.capabilities.commits_under_way)
        self._loops: dict[int, SlotLoop] = {}

    def attach(self, host: CommitHost) -> None:
        self._host = host

    def _of(self, slot: int | None) -> SlotLoop:
        """The loop of a slot; of any that this node has for what is about none."""
        if slot is None:
            slot = min(self._epochs, default=0)
        loop = self._loops.get(slot)
        if loop is None:
            loop = self._loops[slot] = SlotLoop(self._ground, slot, self._turns)
            loop.attach(self._host)
        return loop

    @property
    def count(self) -> int:  # type: ignore[override]
        return sum(loop.count for loop in self._loops.values())

    @property
    def failed(self) -> int:  # type: ignore[override]
        return sum(loop.failed for loop in self._loops.values())

    # What callers do --------------------------------------------------------------------------------------

    def commit(
        self,
        lane: Lane | None = None,
        *,
        slot: int | None = None,
        result: Any = None,
        unit: Unit | None = None,
        deferred: bool = False,
    ) -> Ticket[Any]:
        if lane is None and slot is None and result is None:
            return _together([loop.commit() for loop in self._busy()] or [self._of(None).commit()])
        loop = self._of(slot if lane is None else slot_of(lane.id))
        if deferred:
            return loop.commit(lane, deferred=True)
        return loop.commit(lane, result=result, unit=unit)

    def touch(self, lane: Lane) -> None:
        self._of(slot_of(lane.id)).touch(lane)

    def amend(self, slot: int | None) -> Pending:
        return self._of(slot).amend(slot)

    def broken(self, lane: Lane, failure: AssertionError) -> PenstockError:
        return self._of(slot_of(lane.id)).broken(lane, failure)

    def flush(self) -> None:
        for loop in self._busy():
            loop.flush()

    def probe(self) -> Ticket[None]:
        return self._of(None).probe()

    # What is pending --------------------------------------------------------------------------------------

    def _busy(self) -> list[SlotLoop]:
        return [loop for loop in self._loops.values() if loop.is_busy]

    @property
    def pending_bytes(self) -> int:
        return sum(loop.pending_bytes for loop in self._loops.values())

    def holds(self, lane: Lane) -> bool:
        return self._of(slot_of(lane.id)).holds(lane)

    def concerns_slots(self, slots: set[int]) -> bool:
        return any(self._of(slot).concerns_slots({slot}) for slot in slots)

    def give_up(self, slots: set[int], error: PenstockError) -> None:
        for slot in slots:
            self._of(slot).give_up({slot}, error)

    def has_room(self, size: int) -> bool:
        pending = self.pending_bytes
        return not pending or pending + size <= PENDING_BYTES_MAX

    def take_room(self, size: int, slot: int | None) -> None:
        self._of(slot).take_room(size, slot)

    async def room(self, size: int, slot: int | None) -> None:
        while not self.has_room(size):
            await max(self._loops.values(), key=lambda loop: loop.pending_bytes).sealed()
        self.take_room(size, slot)

    async def publishes_settled(self) -> None:
        for loop in self._busy():
            await loop.publishes_settled()

    async def catalog_settled(self) -> None:
        """Wait for every loop: when one that changes the catalog fails, others go on."""
        with suppress(PenstockError):
            await self.commit()

    async def close(self) -> None:
        while not all(loop.is_idle for loop in self._loops.values()):
            for loop in self._busy():
                await loop.rest()
        for loop in self._loops.values():
            await loop.close()


def _together(tickets: Iterable[Ticket[None]]) -> Ticket[None]:
    """Done when all are, each of them to its end; failed where one has failed."""
    left = list(tickets)
    ticket: Ticket[None] = Ticket()
    errors: list[BaseException] = []
    count = len(left)

    def ended(one: Ticket[None]) -> None:
        nonlocal count
        count -= 1
        if one.error is not None:
            errors.append(one.error)
        if not count:
            ticket.fail(errors[0]) if errors else ticket.end()

    for one in left:
        one.then(ended)
    return ticket
