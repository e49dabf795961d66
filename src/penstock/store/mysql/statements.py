"""Every statement of the MySQL engine, with the tables' columns filled in, and values as literals of a statement.

The text is in `queries.sql`. A whole commit goes to the server as text in one packet, so values are part of it. Only
for sessions as `pool.py` makes them: text is UTF-8, and a backslash escapes. It may not know connections or commits.
Next stop: `commit.py`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.store.sql import tables
from penstock.store.sql.queries import Queries, fill, load_queries
from penstock.store.sql.queries import quoted as quoted_by
from penstock.store.sql.sweeping import SLICE, SMALL_SLICE

PART_COLUMNS: Final = ("lane", "base", "part", "parts", *tables.BATCH_COLUMNS[2:])
"""Columns of batches here: a body that is longer than a packet lies in several rows."""

_BASE64_PAYS_FROM: Final = 1 << 20
"""Long values in which much has to be escaped are shorter so."""


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
    queries = raw.filled(slice=str(SLICE), small_slice=str(SMALL_SLICE), **tables.column_lists(quoted))
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


# Values -----------------------------------------------------------------------------------------------


class Expression(bytes):
    """SQL instead of a value: it goes into a statement as it is."""


def literal(value: Any) -> bytes:
    """One value as a literal."""
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, str):
        return b"'" + _escaped(value.encode()) + b"'"
    if value is None:
        return b"NULL"
    if isinstance(value, Expression):
        return value
    data = bytes(value)
    escaped = _escaped(data)
    if len(escaped) > _BASE64_PAYS_FROM and len(escaped) * 3 > len(data) * 4:
        return b"from_base64('" + b64encode(data) + b"')"
    return b"_binary'" + escaped + b"'"


def _escaped(data: bytes) -> bytes:
    """No byte of a character of several bytes in UTF-8 is a quote or a backslash."""
    return data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def literals(values: Iterable[Any]) -> bytes:
    return b",".join(map(literal, values))


def filled(statement: str, *values: Any) -> bytes:
    """A statement with its values put in for each %s; a list becomes the values of an IN (…)."""
    parts = [literals(value) if isinstance(value, list) else literal(value) for value in values]
    return statement.encode() % tuple(parts)


def filled_by_name(statement: str, values: Mapping[str, Any]) -> bytes:
    return statement.encode() % {name.encode(): literal(value) for name, value in values.items()}
