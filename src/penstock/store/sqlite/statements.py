"""Every statement of the SQLite engine, with the tables' columns filled in. The text is in `queries.sql`.

Nothing here knows threads, asyncio or commits. Next stop: `writes.py` and `reads.py`, which run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.store.sql import tables
from penstock.store.sql.queries import Queries, fill, load_queries, quoted
from penstock.store.sql.tables import Table

ROWS_A_STATEMENT: Final = 64
"""Rows that `put_many` puts: with each step Python's lock goes back and forth."""


def _columns(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _match(names: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(name)} = ?" for name in names)


def _put(raw: Queries, table: str, names: Sequence[str]) -> str:
    return fill(raw.put_row, table=table, columns=_columns(names), places=", ".join("?" * len(names)))


def many(statement: str) -> str:
    """A statement that puts one row, for ROWS_A_STATEMENT rows."""
    head, values, places = statement.rpartition("VALUES ")
    return head + values + ", ".join([places] * ROWS_A_STATEMENT)


def _of_table(raw: Queries, table: Table) -> dict[str, str]:
    columns = _columns(table.columns)
    found = {
        f"put_{table.name}": _put(raw, table.name, table.columns),
        f"delete_{table.name}": fill(raw.delete_rows, table=table.name, match=_match(table.key)),
    }
    if table in tables.OF_GROUPS:
        found[f"load_{table.name}"] = fill(raw.load_rows, table=table.name, columns=columns, key=_columns(table.key))
    return found


def _load() -> Queries:
    raw = load_queries(__package__)
    filled = raw.filled(**tables.column_lists(quoted))
    queries = {name: text for name, text in filled.items() if "{" not in text}  # no templates
    for table in (*tables.OF_LANES, *tables.OF_NO_LANE):
        queries |= _of_table(raw, table)
    queries["put_lanes"] = _put(raw, "lanes", tables.LANE_COLUMNS)
    queries |= {f"{name}_in_use": fill(raw.lanes_in_use, table=name) for name in ("leases", "waiting")}
    return Queries(queries)


def _deletes(names: Sequence[str], *columns: str) -> Sequence[str]:
    template = load_queries(__package__).delete_rows
    return [fill(template, table=name, match=_match(columns)) for name in names]


SQL: Final = _load()
LANE_DELETES: Final = _deletes(("lanes", "outbox", *(table.name for table in tables.OF_LANES)), "lane")
"""All rows of a lane but its batches."""
GROUP_DELETES: Final = _deletes([table.name for table in tables.OF_GROUPS], "lane", "group_id")
"""All rows of a group."""
PUT_MANY_DEDUP: Final = many(SQL.put_dedup)
PUT_MANY_BATCHES: Final = many(SQL.put_batch)
