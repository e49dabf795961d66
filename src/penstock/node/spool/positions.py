"""How far spools have come, lane by lane: what makes a record that is sent twice enter a lane once.

The commit that appends a record of a spool to a lane says so in a row beside it, on a lane that no queue has, in the
same slot: it is the owner of the slot who reads the position and who writes it, and a commit of whoever owned it
before is refused. So it does not matter how often a record comes, nor by which way: replayed by the owner itself, or
through the outbox from a node that does not own the lane (`node/cluster/remote_publish.py`), also out of a commit
that was thought to be lost. For that the records of one spool must come to a lane in their order; `replay.py` and the
outbox see to it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import Unavailable
from penstock.model.rows import DedupRow, slot_of
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.publish.parts import Origin
from penstock.store.contract import Log

SPOOL_LANES: Final = 1 << 47
"""Lanes from here on, one a slot, hold the rows of spools: no queue ever has them."""
DAY_MS: Final = 24 * 3600 * 1000
ROWS_KEPT_MS: Final = 400 * DAY_MS


@dataclass(eq=False, repr=False)
class Positions:
    """What the store says of lanes of this node, and what is on its way there."""

    _store: Log
    _commits: Commits
    _clock: Clock
    _ownership: Ownership

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}
        self._forgets = 0

    def slots_lost(self, _slots: Set[int]) -> None:
        self.forget()

    def forget(self) -> None:
        """A commit failed, or slots are gone: what is known may not be so."""
        self._known.clear()
        self._forgets += 1

    async def read(self, spool: str, lane: int) -> int:
        """The number of the last record of a spool that is in a lane of this node, or on its way there."""
        while (known := self._known.get((spool, lane))) is None:
            forgets = self._forgets
            self._ownership.check_taken(slot_of(lane))
            found = await self._store.find_dedup(SPOOL_LANES + slot_of(lane), [_key(spool, lane)])
            if forgets == self._forgets:
                self._known.setdefault((spool, lane), found[0].offset if found else 0)
        return known

    def check(self, origin: Origin, lane: int) -> None:
        """Raise unless it is known that a record is not in a lane; asked in the step that appends it."""
        known = self._known.get((origin.spool, lane))
        if known is None or known >= origin.sequence:
            raise Unavailable("how far a spool has come was read again meanwhile; it is tried again")

    def write(self, origin: Origin, lane: int) -> None:
        """A record was appended: its position goes into the same commit."""
        self._known[origin.spool, lane] = origin.sequence
        key = _key(origin.spool, lane)
        row = DedupRow(key, origin.sequence, self._clock.now_ms() + ROWS_KEPT_MS)
        change = self._commits.amend(slot_of(lane)).change_of(SPOOL_LANES + slot_of(lane))
        change.dedup = [*(other for other in change.dedup if other.key != key), row]


def _key(spool: str, lane: int) -> bytes:
    return b"spool:%b:%d" % (spool.encode(), lane)
