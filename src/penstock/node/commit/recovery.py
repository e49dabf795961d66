"""After a failed commit: nothing in memory of what it changed can be trusted, so it is read again from the store.

Lanes are dropped and loaded again, the catalog too where it was to be changed. A node that was refused because another
owns its slots asks who owns what; one that had the store for itself never recovers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.errors import Fenced, PenstockError
from penstock.model.rows import slot_of
from penstock.node.cache import BatchCache
from penstock.node.catalog import Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.consume.waiters import Waiters
from penstock.node.lane_timers import LaneTimers
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.spool.positions import Positions
from penstock.node.spool.spool import Spool
from penstock.node.tasks import Tasks

log = logging.getLogger("penstock.node")


@dataclass(eq=False, repr=False)
class Recovery:
    """Brings back what a failed commit left in doubt."""

    _catalog: Catalog
    _writer: CatalogWriter
    _lanes: LaneSet
    _cache: BatchCache
    _lane_timers: LaneTimers
    _waiters: Waiters
    _outbox: Outbox
    _positions: Positions
    _spool: Spool
    _tasks: Tasks
    _lifecycle: Lifecycle
    _ownership: Ownership

    def __post_init__(self) -> None:
        self.ask_owners: Callable[[], None] | None = None
        """Asks the store which slots are still this node's; None where it has the store for itself."""

    def lost(self, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        """A commit failed: these lanes (and the catalog) must be loaded again."""
        log.warning("a commit failed, %d lanes are loaded again: %s", len(lanes), error)
        if isinstance(error, Fenced):
            self._fenced(error)
        self._lanes.give_up(lanes)
        self._cache.forget_lanes(lanes)  # another node may store else than this one did
        for id in lanes:
            self._lane_timers.disarm(id)
        self._positions.forget()
        self._spool.lost(error)
        if catalog:
            self._writer.reload()  # also at a close: until it is read, no lane may be loaded
        if self._lifecycle.closed:
            return
        self._outbox.wake_later()  # the commit may have happened all the same, with new rows in the outbox
        # All of them: they may have leases to end, delays that pass and consumers that wait.
        for id in lanes:
            self._tasks.spawn(self._reload(id))

    def _fenced(self, error: PenstockError) -> None:
        if self.ask_owners is not None:
            self.ask_owners()
        else:
            self._lifecycle.fenced = error
            self._waiters.close(error)

    async def _reload(self, id: int) -> None:
        """Bring a lane back that has waiting consumers, as soon as the store answers."""
        pause_s = 0.05
        while not self._lifecycle.is_over and self._lanes.get(id) is None and id in self._catalog.by_lane:
            if not self._ownership.owns(slot_of(id)):
                return
            try:
                await self._lanes.load(id)
            except PenstockError as error:
                log.warning("lane %d cannot be loaded yet: %s", id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)
