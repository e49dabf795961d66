"""A commit as the arguments of `apply_commit`, and that function with the columns of the tables filled in.

Which rows a commit has is in `store/sql/tables.py`; here is which argument takes which of them. Arguments go by name,
so that their order exists once, below. It may not know connections. Next stop: `functions.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.model.rows import Commit
from penstock.store.sql import tables
from penstock.store.sql.queries import Queries, fill, load_queries, quoted, statements
from penstock.store.sql.sweeping import SLICE, SMALL_SLICE
from penstock.store.sql.tables import Row, Table

Value = Callable[[Commit], object]


def _deletes(table: Table) -> Value:
    return lambda commit: _pairs(table.deletes(commit))


def _puts(table: Table, *, more: Row = ()) -> Value:
    """The rows that are put, with values of more columns behind them."""

    def value(commit: Commit) -> object:
        rows = table.puts(commit)
        if not rows:
            return None
        rows = tables.latest(_kept(rows, texts), key)
        return [(*row, *more) for row in rows] if more else rows

    key, texts = len(table.key), table.texts
    return value


def _bounds(name: str) -> Value:
    return lambda commit: _pairs(tables.bounds(commit, name))


def _pairs(rows: Sequence[Row]) -> object:
    """Lists in lists are arrays of two dimensions, tuples in lists are rows."""
    return [list(row) for row in rows] if rows else None


ARGUMENTS: Final[Sequence[tuple[str, Value]]] = (
    ("gone_lanes", lambda commit: commit.lanes_deleted or None),
    ("gone_groups", lambda commit: _pairs(tables.groups_deleted(commit))),
    *((f"gone_{table.name}", _deletes(table)) for table in tables.DELETED_BY_KEY),
    ("expired_dedup", _bounds("dedup_expired_ms")),
    ("new_lanes", lambda commit: tables.lane_values(commit) or None),
    *((f"new_{table.name}", _puts(table)) for table in tables.OF_LANES),
    ("new_batches", lambda commit: tables.latest(tables.batch_values(commit), 2) or None),
    ("trims", _bounds("trim_to")),
    ("gone_catalog_kinds", lambda commit: [kind for kind, _ in commit.catalog_deleted] or None),
    ("gone_catalog_ids", lambda commit: [id for _, id in commit.catalog_deleted] or None),
    ("new_catalog", _puts(tables.CATALOG, more=(0,))),  # the version is given by the database
    ("gone_outbox", lambda commit: commit.outbox_deleted or None),
    ("new_outbox", _puts(tables.OUTBOX)),
    ("expired_traces", lambda commit: commit.traces_expired_ms),
    ("new_traces", _puts(tables.TRACES)),
)
"""What `apply_commit` takes behind the fence."""
_FENCE: Final = ("writer", "generation", "fence_slots", "fence_epochs")
_UPDATED_FIRST: Final = ("lanes", "groups")
"""Tables whose rows are almost always there already."""
_SETTLED: Final = ("gone", "failed", "errors", "failed_ms", "retried")
_MARK: Final = "\x01"
"""The first character of text that is escaped."""


def commit_values(commit: Commit) -> Row:
    """The values of ARGUMENTS. None where there is nothing to do: driver and database would look at an empty array."""
    return tuple([value(commit) for _, value in ARGUMENTS])


def settle_values(commit: Commit) -> Row:
    """The arguments of `settle_enqueued`."""
    failed = {failure.id: failure for failure in commit.enqueued_failed}.values()
    return (
        commit.enqueued_deleted,
        [failure.id for failure in failed],
        [kept(failure.error) for failure in failed],
        [failure.failed_ms for failure in failed],
        commit.enqueued_retried,
    )


def _kept(rows: list[Row], texts: Sequence[int]) -> list[Row]:
    """The rows with text as PostgreSQL can keep it."""
    if not texts:
        return rows
    found = []
    for row in rows:
        values = list(row)
        for place in texts:
            if values[place] is not None:
                values[place] = kept(values[place])
        found.append(tuple(values))
    return found


def row_of(table: Table, values: Sequence[Any]) -> Any:
    """The row that a table's values stand for, without the lane."""
    found = list(values)
    for place in table.texts:
        if found[place] is not None:
            found[place] = restored(found[place])
    return table.row(*(found[1:] if table.of_lane else found))


def kept(text: str) -> str:
    """What PostgreSQL keeps for a text. Its text has no NUL: what has one is marked and escaped."""
    if "\0" not in text and not text.startswith(_MARK):
        return text
    return _MARK + text.replace("\\", "\\\\").replace("\0", "\\0")


def restored(text: str) -> str:
    """The text that was kept."""
    if not text.startswith(_MARK):
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text[1:].split("\\\\"))


# Statements ----------------------------------------------------------------------------------------------


def _columns(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _named(names: Sequence[str], first: int = 1) -> str:
    return ", ".join(f"{name} => ${number}" for number, name in enumerate(names, first))


def _set(names: Sequence[str], source: str) -> str:
    return ", ".join(f"{quoted(name)} = {source}.{quoted(name)}" for name in names)


def _filled_queries() -> Queries:
    raw = load_queries(__package__)
    arguments = (*_FENCE, *(name for name, _ in ARGUMENTS))
    settled = _named(_SETTLED, len(arguments) + 1)
    queries = raw.filled(arguments=_named(arguments), settled=settled, **tables.column_lists(quoted))
    for table in tables.OF_GROUPS:
        queries[f"load_{table.name}"] = fill(
            raw.load_rows, table=table.name, columns=_columns(table.columns), key=_columns(table.key)
        )
    return Queries(queries)


def _functions() -> Sequence[str]:
    raw = load_queries(__package__, "functions.sql")
    parts = {"slice": str(SLICE), "small_slice": str(SMALL_SLICE), **tables.column_lists(quoted)}
    parts["catalog_changes"] = _set(tables.CATALOG.rest, "excluded")
    for table in tables.DELETED_BY_KEY:
        match = " AND ".join(f"t.{quoted(column)} = k.{name}" for column, name in zip(table.key, "abc", strict=True))
        parts[f"delete_{table.name}"] = fill(raw.delete_rows, table=table.name, key=match)
    for table in (*tables.OF_LANES, tables.OUTBOX, tables.TRACES):
        parts[f"put_{table.name}"] = _put(raw, table.name, table.columns, len(table.key))
    parts["put_lanes"] = _put(raw, "lanes", tables.LANE_COLUMNS, 1)
    parts["put_batches"] = _put(raw, "batches", tables.BATCH_COLUMNS, 2)
    made = [text for text in raw.filled(**parts).values() if text.startswith("CREATE FUNCTION")]
    return (*statements(raw.drop_functions), *made)


def _put(raw: Queries, name: str, columns: Sequence[str], key: int) -> str:
    keys, rest = columns[:key], columns[key:]
    if name in _UPDATED_FIRST:
        match = " AND ".join(f"t.{quoted(column)} = n.{quoted(column)}" for column in keys)
        return fill(raw.update_rows, table=name, key=_columns(keys), columns=_set(rest, "n"), match=match)
    return fill(raw.put_rows, table=name, key=_columns(keys), columns=_set(rest, "excluded"))


QUERIES: Final = _filled_queries()
FUNCTIONS: Final = _functions()
"""Made again after any migration: they are always those of the newest version."""
