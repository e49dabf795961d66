"""Rows as the source gives them, made from numbers: what the lake's tests write and expect to read again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

import pyarrow as pa

from penstock.spark.lake.layout import MESSAGES_SCHEMA
from penstock.spark.lake.reading import Choice, read_file
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable

DAY = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
SOURCE_SCHEMA = pa.schema([field for field in MESSAGES_SCHEMA if field.name != "date"])


def rows(
    start: int,
    end: int,
    *,
    queue: str = "orders",
    queue_id: int = 7,
    lane: int = 0,
    published: Callable[[int], dt.datetime] = lambda _: DAY,
) -> pa.RecordBatch:
    """Messages of these offsets; every value tells which it belongs to."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "queue": queue,
                "queue_id": queue_id,
                "lane": lane,
                "offset": offset,
                "partition": f"p{offset % 3}",
                "payload": f"{queue_id}/{lane}/{offset}".encode(),
                "headers": [("n", str(offset))],
                "priority": 0,
                "published_at": published(offset),
                "typed_headers": [("n", {"kind": "integer", "integer": offset})],
            }
            for offset in range(start, end)
        ],
        schema=SOURCE_SCHEMA,
    )


def at(moment: dt.datetime) -> Callable[[int], dt.datetime]:
    """All published at one moment."""
    return lambda _: moment


def content(table: LakeTable, choice: Choice | None = None) -> list[dict[str, object]]:
    """All wanted rows of a table, by identity."""
    asked = choice or Choice()
    found = read_rows(table.storage, table, asked)
    return sorted(found, key=lambda row: (row["queue_id"], row["lane"], row["offset"]))


def read_rows(storage: Storage, table: LakeTable, choice: Choice) -> Iterable[dict[str, object]]:
    for file in choice.files(table.files()):
        for batch in read_file(storage, file, MESSAGES_SCHEMA, choice):
            yield from batch.to_pylist()


def identities(table: LakeTable) -> list[tuple[int, int, int]]:
    return [(row["queue_id"], row["lane"], row["offset"]) for row in content(table)]  # type: ignore[misc]
