"""What the lake stores and where: tables, columns, partition folders, marks. Data only; opens nothing.

A row's identity is (queue_id, lane, offset): a queue that is deleted and declared again has another id, so its offsets
never meet those of its namesake. Tables are partitioned by `queue` and `date` (of `published_at`, in UTC). The values
are in the Delta log; the folder's name is only a hint for people, and need not be decodable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

import pyarrow as pa

from penstock.arrow.schema import EXTRA_SCHEMA, MESSAGE_SCHEMA, TIME, schema_of
from penstock.model import is_events_queue

MESSAGES: Final = "messages"
EVENTS: Final = "events"
STATS: Final = "stats"

PARTITION_BY: Final = ["queue", "date"]
LAYOUT_VERSION: Final = "1"
LAYOUT_PROPERTY: Final = "penstock.layout"
SERVER_PROPERTY: Final = "penstock.server"
NAMESPACE_PROPERTY: Final = "penstock.namespace"

MESSAGES_SCHEMA: Final = schema_of(["queue", "queue_id", *MESSAGE_SCHEMA.names[1:], *EXTRA_SCHEMA.names[1:]]).insert(
    1, pa.field("date", pa.date32())
)
"""One row a message: what the source gives, and what is needed to publish it again exactly as it was."""

EVENTS_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("date", pa.date32()),
        ("event_queue_id", pa.int64()),
        ("event_lane", pa.int32()),
        ("event_offset", pa.int64()),
        ("event_index", pa.int32()),
        ("range_index", pa.int32()),
        ("namespace", pa.string()),
        ("queue_id", pa.int64()),
        ("lane", pa.int32()),
        ("group", pa.string()),
        ("kind", pa.string()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("messages", pa.int64()),
        ("at", TIME),
        ("consumer", pa.string()),
        ("attempt", pa.int32()),
        ("detail", pa.string()),
    ]
)
"""One row an event and range of offsets, as `penstock.spark.events` has them; `queue` and `date` are those of what
happened, `event_queue_id`, `event_lane` and `event_offset` the place in the events queue that tells of it."""

STATS_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("date", pa.date32()),
        ("queue_id", pa.int64()),
        ("group", pa.string()),
        ("at", TIME),
        ("published", pa.int64()),
        ("bytes", pa.int64()),
        ("delivered", pa.int64()),
        ("acked", pa.int64()),
        ("retried", pa.int64()),
        ("dead", pa.int64()),
        ("waited", pa.int64()),
        ("waited_max_ms", pa.int64()),
        ("waited_sketch", pa.binary()),
        ("worked", pa.int64()),
        ("worked_max_ms", pa.int64()),
        ("worked_sketch", pa.binary()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("died", pa.int64()),
    ]
)
"""Parts of a minute (`at` is its beginning) of a queue and a group: add them up, and merge the sketches. `group` is
null for what concerns the queue alone: `published` and `bytes`. `waited` messages were handed out for the first time,
and `waited_sketch` is a KLL sketch of their milliseconds in the queue; `worked` were acked, with a sketch of the
milliseconds since they were handed out. Rows with a `reason` say how many messages `died` of it, and have no other
numbers."""

SCHEMAS: Final = {MESSAGES: MESSAGES_SCHEMA, EVENTS: EVENTS_SCHEMA, STATS: STATS_SCHEMA}

IDENTITY: Final = ("queue_id", "lane", "offset")
PLAIN_COLUMNS: Final = frozenset({"payload", "offset"})
"""Columns for which a dictionary never pays: their values are different in every row."""

FOLDER_CHARACTERS_MAX: Final = 120


def table_of(queue: str) -> str:
    """In which table a queue's messages land: those of every server's events queue are delivery events."""
    return EVENTS if is_events_queue(queue) else MESSAGES


def time_column(schema: pa.Schema) -> str:
    """The column by whose day a table is partitioned."""
    return "published_at" if "published_at" in schema.names else "at"


def offset_column(schema: pa.Schema) -> str:
    """The column with the place in the lane that was archived."""
    return "offset" if "offset" in schema.names else "event_offset"


def data_schema(schema: pa.Schema) -> pa.Schema:
    """What is inside a Parquet file: the partition's values are in the log alone."""
    return pa.schema([field for field in schema if field.name not in PARTITION_BY])


def chosen(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """The named columns in the table's order; all without names."""
    if columns is None:
        return schema
    wanted = set(columns)
    unknown = wanted - set(schema.names)
    if unknown:
        raise ValueError(f"the lake has no column {sorted(unknown)[0]!r}; it has {', '.join(schema.names)}")
    return pa.schema([field for field in schema if field.name in wanted])


def partition_folder(queue: str, date: str) -> str:
    """Where the files of a partition are, below the table. Any name of a queue makes one plain folder name."""
    name = quote(queue, safe="")
    if len(name) > FOLDER_CHARACTERS_MAX:  # a file system's limit is 255 bytes; a name's 255 characters may need 3,060
        name = name[: FOLDER_CHARACTERS_MAX - 32] + hashlib.sha256(queue.encode()).hexdigest()[:32]
    return f"queue={name}/date={date}"


def mark_id(queue_id: int, lane: int) -> str:
    """The app id under which the Delta log keeps a lane's mark: its version is the first offset not yet in the lake."""
    return f"penstock/{queue_id}/{lane}"


def floor_id(queue_id: int, lane: int) -> str:
    """The app id of a lane's floor: the first offset that the lake promises to have, up to the mark."""
    return f"penstock-floor/{queue_id}/{lane}"
