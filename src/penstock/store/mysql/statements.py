"""Every statement of the MySQL engine, with the tables' columns filled in. The text is in `queries.sql`.

It may not know connections or commits. Next stop: `commit.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.store.mysql.literals import Expression, filled_by_name
from penstock.store.sql import tables
from penstock.store.sql.queries import Queries, fill, load_queries
from penstock.store.sql.queries import quoted as quoted_by
from penstock.store.sql.sweeping import SLICE, SMALL_SLICE

_PARTS: Final = (
    "now_ms",
    "begin_snapshot",
    "from_start",
    "near",
    "lock_members",
    "set_name",
    "is_dead",
    "wanted",
    "taken",
)
PART_COLUMNS: Final = ("lane", "base", "part", "parts", *tables.BATCH_COLUMNS[2:])
"""Columns of batches here: a body that is longer than a packet lies in several rows."""


class Put(NamedTuple):
    """A statement that puts rows: its beginning, its end, and how many of the columns are the key."""

    head: bytes
    tail: bytes
    key: int


def quoted(name: str) -> str:
    return quoted_by(name, "`")


def columns(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _load() -> Queries:
    raw = load_queries(__package__)
    parts = {name: raw[name] for name in _PARTS}
    parts |= {"slice": str(SLICE), "small_slice": str(SMALL_SLICE)} | tables.column_lists(quoted)
    queries = {name: fill(raw[name], **parts) for name in raw.names}
    for table in tables.OF_GROUPS:
        queries[f"load_{table.name}"] = fill(
            raw.load_rows, table=quoted(table.name), columns=columns(table.columns), key=columns(table.key)
        )
    for table in (tables.DEAD, tables.DEDUP):
        match = " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in table.key)
        queries[f"sweep_{table.name}"] = fill(
            queries["sweep_rows"], table=table.name, key=columns(table.key), match=match
        )
    return Queries(queries)


SQL: Final = _load()
NUMBERS: Final = tuple(
    fill(SQL.numbers, columns=", ".join(f"{'abc'[place]} bigint PATH '$[{place}]'" for place in range(width)))
    for width in (1, 2, 3)
)


def put(table: str, names: Sequence[str], key: int) -> Put:
    head = fill(SQL.put_rows, table=quoted(table), columns=columns(names))
    changes = ", ".join(f"{quoted(name)} = VALUES({quoted(name)})" for name in names[key:])
    return Put(head.encode() + b" ", b" " + fill(SQL.put_rows_end, changes=changes).encode(), key)


def delete(table: str, names: Sequence[str], index: str = "PRIMARY") -> str:
    """A statement that deletes the rows of %(keys)s: values of these columns, one to three of them."""
    match = " AND ".join(f"t.{quoted(name)} = k.{place}" for name, place in zip(names, "abc", strict=False))
    return fill(SQL.delete_rows, table=quoted(table), index=index, match=match)


def numbers(rows: Iterable[Iterable[int]], width: int) -> Expression:
    """A table of whole numbers as an expression to join with: columns a, b, c."""
    document = msgspec.json.encode([list(row) for row in rows])
    return Expression(filled_by_name(NUMBERS[width - 1], {"document": document.decode()}))


def ids(numbers_of: Iterable[int]) -> Expression:
    """Such a table of one column: each number once, in their order."""
    return numbers([[id] for id in sorted(set(numbers_of))], 1)


def any_of(conditions: Iterable[bytes]) -> Expression:
    """One of these is true."""
    return Expression(b" OR ".join(conditions) or b"false")
