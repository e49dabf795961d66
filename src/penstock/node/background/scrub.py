"""The scrub: every batch that is kept is read again once a day, slowly: damage is found before a consumer meets it.

What was published of late is in memory, and was checked when it came: it has its turn later. Lanes go one after the
other, from a random one on, so that a server that is often started again leaves none out. It may not know how
damage is told, nor what a store reads from. Next stop: `node/observe/damage.py`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Final

from penstock.api.measures import ScrubNumbers
from penstock.model.errors import PenstockError, StoreCorrupt
from penstock.model.rows import slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.observe.damage import Damage
from penstock.node.timers import Tasks
from penstock.store.contract import Log

PASS_EVERY_S: Final = 24 * 3600.0
"""From the beginning of one pass to that of the next, at least."""
COLD_MS: Final = 600_000
"""A batch is read once it is as old as this."""
READ_BYTES: Final = 256 << 10
"""Of one look: no reader of the store waits longer for it than for another consumer."""
LOOK_BYTES: Final = 64 << 10
"""A look counts as this much at least: there may be many empty lanes, and each costs a query."""
AWAY_S: Final = 10.0
"""After the store did not answer."""

log = logging.getLogger("penstock.node")


@dataclass(eq=False, repr=False)
class Scrub:
    """One pass after the other over the lanes that this node owns."""

    _store: Log
    _catalog: Catalog
    _ownership: Ownership
    _damage: Damage
    _clock: Clock
    _tasks: Tasks
    _bytes_per_second: int
    """0: none at all."""

    def __post_init__(self) -> None:
        self._numbers = ScrubNumbers()

    def numbers(self) -> ScrubNumbers | None:
        """How far it is; None where it is off."""
        return self._numbers if self._bytes_per_second else None

    def start(self) -> None:
        if self._bytes_per_second:
            self._tasks.spawn(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began, pause = loop.time(), AWAY_S
            if self._ownership.owned:  # it has joined the others, or is alone
                await self._pass()
                self._numbers.passes += 1
                self._numbers.passed_ms = self._clock.now_ms()
                pause = PASS_EVERY_S
            await self.rest(max(1.0, began + pause - loop.time()))

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _pass(self) -> None:
        numbers = self._numbers
        lanes = sorted(lane for lane in self._catalog.by_lane if lane < EPHEMERAL_FROM)
        turn = random.randrange(len(lanes)) if lanes else 0
        numbers.lanes, numbers.lanes_done = len(lanes), 0
        for lane in (*lanes[turn:], *lanes[:turn]):
            if self._ownership.owns(slot_of(lane)):
                await self._lane(lane)
            numbers.lanes_done += 1

    async def _lane(self, lane: int) -> None:
        """Every batch of a lane that is cold."""
        offset = 0
        while True:
            try:
                checked = await self._store.check(lane, offset, READ_BYTES)
            except StoreCorrupt as error:
                # Rows that cannot be read say nothing of their messages: whoever needs them is told the same.
                log.error("the scrub cannot read lane %d on from offset %d: %s", lane, offset, error)
                return
            except PenstockError:
                await self.rest(AWAY_S)
                continue
            cold = [one for one in checked if one.published_ms <= self._clock.now_ms() - COLD_MS]
            for one in cold:
                if one.damaged is not None:
                    self._damage.found(lane, one.base, one.end, one.damaged)
            size = sum(one.size for one in checked)
            self._numbers.bytes += size
            self._numbers.batches += len(checked)
            await self.rest(max(size, LOOK_BYTES) / self._bytes_per_second)
            if not cold or len(cold) < len(checked):
                return
            offset = cold[-1].end
