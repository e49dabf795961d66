"""The shape of a commit, described once: which kind of row lies in which table, and under which key.

The engines derive their statements from it. A field that is added to a row in `model/rows.py` is a column of its table,
in the same place: what is left to write is a migration of each engine. It may not know any engine's SQL. Next stop:
`writes.py`, `apply.py` and `commit.py` of the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from msgspec.structs import astuple

from penstock.model.rows import (
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)

if TYPE_CHECKING:
    from msgspec import Struct

Row = tuple[Any, ...]

# A word of SQL and one that says too little.
_COLUMNS: Final = {"group": "group_id", "lease": "lease_id"}


class Table:
    """One table of rows. Its name is also the name of its puts in a `LaneChange`, or in a `Commit` itself."""

    def __init__(self, name: str, row: type[Struct], key: int, *, of_lane: bool) -> None:
        self.name = name
        self.row = row
        self.of_lane = of_lane
        """Whether its first column is the lane; otherwise its rows belong to no lane."""
        lane = ("lane",) if of_lane else ()
        fields = row.__struct_fields__
        self.columns = (*lane, *(_COLUMNS.get(field, field) for field in fields))
        self.key = self.columns[:key]
        self.rest = self.columns[key:]
        types = get_type_hints(row)
        self.texts = tuple(
            number for number, field in enumerate(fields, len(lane)) if types[field] in (str, str | None)
        )
        """The places of columns that hold text."""

        self._put_rows = attrgetter(name)
        self._deleted_keys = attrgetter(f"{name}_deleted")

    def puts(self, commit: Commit) -> list[Row]:
        """The rows that a commit puts, as values of the columns."""
        rows = self._put_rows
        if not self.of_lane:
            return [astuple(row) for row in rows(commit)]
        return [(change.lane, *astuple(row)) for change in commit.lanes for row in rows(change)]

    def deletes(self, commit: Commit) -> list[Row]:
        """The keys of the rows of lanes that a commit deletes."""
        keys = self._deleted_keys
        return [(change.lane, *key) for change in commit.lanes for key in keys(change)]


# | name | row | how many columns are its key |
GROUPS: Final = Table("groups", GroupRow, 2, of_lane=True)
LEASES: Final = Table("leases", LeaseRow, 3, of_lane=True)
WAITING: Final = Table("waiting", WaitingRow, 3, of_lane=True)
DEAD: Final = Table("dead", DeadRow, 3, of_lane=True)
DEDUP: Final = Table("dedup", DedupRow, 2, of_lane=True)
CATALOG: Final = Table("catalog", CatalogRow, 2, of_lane=False)
OUTBOX: Final = Table("outbox", OutboxRow, 1, of_lane=False)
TRACES: Final = Table("traces", TraceRow, 4, of_lane=False)

DELETED_BY_KEY: Final = (LEASES, WAITING, DEAD)
"""Tables whose rows a commit deletes one by one."""
OF_GROUPS: Final = (GROUPS, *DELETED_BY_KEY)
"""Tables whose rows go with their group. They are also what `load` reads whole."""
OF_LANES: Final = (*OF_GROUPS, DEDUP)
"""Tables whose rows go with their lane; dedup rows go when they expire, too."""
OF_NO_LANE: Final = (CATALOG, OUTBOX, TRACES)

LANE_COLUMNS: Final = ("lane", "slot", "first", "end", "bytes_end")
BATCH_COLUMNS: Final = ("lane", "base", "count", "published_ms", "bytes_end", "size", "meta", "body")


def column_lists(quote: Callable[[str], str]) -> dict[str, str]:
    """The columns of tables that queries name, by `catalog_columns` and so on."""
    return {f"{table.name}_columns": ", ".join(map(quote, table.columns)) for table in OF_NO_LANE}


def lane_values(commit: Commit) -> list[Row]:
    """The cursors of the lanes that a commit changes, as values of LANE_COLUMNS."""
    return [(lane.lane, slot_of(lane.lane), lane.first, lane.end, lane.bytes_end) for lane in commit.lanes]


def batch_values(commit: Commit) -> list[Row]:
    """The batches that a commit appends, as values of BATCH_COLUMNS."""
    return [
        (lane.lane, row.base, row.count, row.published_ms, row.bytes_end, row.size, row.meta, row.body)
        for lane in commit.lanes
        for row in lane.batches
    ]


def groups_deleted(commit: Commit) -> list[tuple[int, int]]:
    """(lane, group) of the groups that go, with all of their rows."""
    return [(lane.lane, group) for lane in commit.lanes for group in lane.groups_deleted]


def bounds(commit: Commit, name: str) -> list[tuple[int, int]]:
    """(lane, bound) where a change has a bound of this name, such as `trim_to`."""
    return [(lane.lane, bound) for lane in commit.lanes if (bound := getattr(lane, name)) is not None]


def latest(rows: list[Row], key: int) -> list[Row]:
    """Rows with each key once, the last put: a statement may not touch a row twice."""
    if len(rows) < 2:
        return rows
    found = {row[:key]: row for row in rows}
    return rows if len(found) == len(rows) else list(found.values())


def is_empty(commit: Commit) -> bool:
    """Whether a commit changes nothing, and only asks whether the store can commit."""
    parts: Sequence[object] = [getattr(commit, name) for name in _CHANGES]
    return not any(part is not None and part != [] for part in parts)


_CHANGES: Final = tuple(name for name in Commit.__struct_fields__ if name != "epochs")
