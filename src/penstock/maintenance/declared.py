"""What must be true of the catalog: every document can be read, and what belongs together is there.

Next stop: `verify.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError
from penstock.model.rows import SLOTS, CatalogRow
from penstock.node.catalog import Catalog, Queue
from penstock.node.spool.positions import SPOOL_LANES
from penstock.node.staging.ledger import LEDGER_LANE
from penstock.node.staging.records import StoredTransaction
from penstock.store.damage import Damage

_ORDER: Final = {"queue": 0, "group": 1, "exchange": 2, "binding": 3, "schedule": 4, "mark": 5, "staged": 6, "chunk": 7}
_OWN_LANES: Final = {
    LEDGER_LANE: "(transactions that are done)",
    **{SPOOL_LANES + slot: "(what spools have replayed)" for slot in range(SLOTS)},
}
"""Lanes that no queue has: they hold ids alone."""


class Declared(NamedTuple):
    """What is declared, as far as it can be read."""

    catalog: Catalog
    staged: dict[int, StoredTransaction]
    """Staged transactions by their lanes."""
    damage: list[Damage]

    def queue_of(self, lane: int) -> Queue | None:
        return self.catalog.by_lane.get(lane)

    def name_of(self, lane: int) -> str | None:
        """Whose lane it is, for people."""
        queue = self.queue_of(lane)
        if queue is not None:
            return f"{queue.namespace}/{queue.name}"
        staged = self.staged.get(lane)
        if staged is not None:
            return f"{staged.namespace}/{staged.name} (staged)"
        return _OWN_LANES.get(lane)


def read_declared(rows: Sequence[CatalogRow]) -> Declared:
    """Take in what can be read, and tell what cannot."""
    catalog = Catalog()
    damage: list[Damage] = []
    for row in sorted(rows, key=lambda row: (_ORDER.get(row.kind, 9), row.id)):
        try:
            catalog.put([row])
        except PenstockError as error:
            damage.append(Damage("catalog", str(error)))
    damage += _twice(rows)
    damage += _shared_lanes(catalog.by_id.values())
    staged = {one.lane: one for one in catalog.stages.by_key.values()}
    return Declared(catalog, staged, damage)


def _twice(rows: Iterable[CatalogRow]) -> Iterator[Damage]:
    """Two queues, groups of a queue, exchanges, schedules or marks of one name."""
    seen: dict[tuple[str, int, str, str], int] = {}
    for row in rows:
        if row.kind in ("binding", "chunk"):
            continue
        key = (row.kind, row.parent, row.namespace, row.name)
        if key in seen:
            yield Damage(
                "catalog", f"the {row.kind} {row.name!r} is there twice, with the ids {seen[key]} and {row.id}"
            )
        seen[key] = row.id


def _shared_lanes(queues: Iterable[Queue]) -> Iterator[Damage]:
    owners: dict[int, Queue] = {}
    for queue in queues:
        for lane in queue.lanes:
            other = owners.setdefault(lane, queue)
            if other is not queue:
                yield Damage("catalog", f"the queues {other.name!r} and {queue.name!r} have the same lane", lane)
