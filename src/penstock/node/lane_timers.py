"""What lanes do by themselves: leases end, delays pass, messages outlive their ttl. One timer a lane.

Next stop: `consume/waiters.py`, since what comes back may be what a consumer waits for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.errors import PenstockError
from penstock.model.rows import slot_of
from penstock.model.work import Pause
from penstock.node.catalog import Catalog
from penstock.node.clock import Clock
from penstock.node.commit.commits import Commits
from penstock.node.lanes import LaneSet
from penstock.node.timers import Tasks, Timers
from penstock.store.contract import Log

READ_AGAIN_MS: Final = 1_000


@dataclass(eq=False, repr=False)
class LaneTimers:
    """Ticks a lane when it has something to do."""

    _store: Log
    _catalog: Catalog
    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _timers: Timers
    _tasks: Tasks

    def __post_init__(self) -> None:
        self.on_ticked: list[Callable[[Lane], None]] = []
        """Told of a lane after its tick."""
        self.missing_body: Callable[[Lane], int | None]
        """An offset whose body should be in memory when the lane ticks: `DeadCopies`."""
        self.read_body: Callable[[int, int], Awaitable[None]]

    def arm(self, lane: Lane) -> None:
        """Tick the lane when it is due next; the only timer that it has for this."""
        due_ms, id = lane.next_due_ms(), lane.id
        if due_ms is None:
            self._timers.cancel(("lane", id))
        else:
            self._timers.at(due_ms, ("lane", id), lambda: self._tick_by_id(id))

    async def slots_served(self, slots: Set[int]) -> None:
        """Load every lane of these slots in which something may fall due: loaded, it is armed."""
        queues = self._catalog.in_slots(slots)
        timed = {lane for queue in queues if queue.config.retain_ms or queue.config.ttl_ms for lane in queue.lanes}
        for lane in {*await self._store.lanes_in_use(), *timed}:
            if slot_of(lane) in slots and lane in self._catalog.by_lane:
                self._tasks.spawn(self._lanes.load(lane))

    def slots_lost(self, slots: Set[int]) -> None:
        for lane in self._lanes.loaded():
            if slot_of(lane.id) in slots:
                self.disarm(lane.id)

    def disarm(self, id: int) -> None:
        self._timers.cancel(("lane", id))

    def _tick_by_id(self, id: int) -> None:
        lane = self._lanes.get(id)
        if lane is None:
            return
        offset = self.missing_body(lane)
        if offset is None:
            self._tick(lane)
        else:
            self._tasks.spawn(self._read_and_tick(id, offset))

    async def _read_and_tick(self, id: int, offset: int) -> None:
        with suppress(PenstockError):  # its copy is then made later
            await self.read_body(id, offset)
        lane = self._lanes.get(id)
        if lane is not None:
            self._tick(lane)

    def _tick(self, lane: Lane) -> None:
        try:
            lane.tick(self._clock.now_ms())
        except Missing as missing:
            self._tasks.spawn(self._feed_and_tick(lane.id, missing.start))
            return
        except Pause:
            self._timers.at(self._clock.now_ms(), ("lane", lane.id), lambda: self._tick_by_id(lane.id))
            return
        except AssertionError as failure:
            self._commits.broken(lane, failure)
            return
        finally:
            if lane.dirty:
                self._commits.touch(lane)
        for tell in self.on_ticked:
            tell(lane)
        self.arm(lane)

    async def _feed_and_tick(self, id: int, start: int) -> None:
        try:
            await self._lanes.feed(id, start)
        except PenstockError:
            again_ms = self._clock.now_ms() + READ_AGAIN_MS
            self._timers.at(again_ms, ("lane", id), lambda: self._tick_by_id(id))
            raise
        self._tick_by_id(id)
