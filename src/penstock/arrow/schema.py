"""The columns of a message in Arrow, exactly as Spark wants them: names, order, types, all nullable.

Declarations only. `api/scan.py` has the same names for code that must not import Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.model import suggestion
from penstock.model.errors import InvalidArgument

TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())
TYPED_VALUE: Final = pa.struct(
    [("kind", pa.string()), ("text", pa.string()), ("integer", pa.int64()), ("float", pa.float64())]
)
TYPED_HEADERS: Final = pa.map_(pa.string(), TYPED_VALUE)

MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("lane", pa.int32()),
        ("offset", pa.int64()),
        ("partition", pa.string()),
        ("payload", pa.binary()),
        ("headers", HEADERS),
        ("content_type", pa.string()),
        ("priority", pa.int32()),
        ("published_at", TIME),
        ("expires_at", TIME),
        ("dedup_id", pa.string()),
        ("trace_id", pa.string()),
        ("correlation_id", pa.string()),
    ]
)
"""What a reader gets that asks for nothing in particular."""

EXTRA_SCHEMA: Final = pa.schema(
    [
        ("queue_id", pa.int64()),
        ("key", pa.string()),
        ("delay_ms", pa.int64()),
        ("not_before", TIME),
        ("ttl_ms", pa.int64()),
        ("typed_headers", TYPED_HEADERS),
    ]
)
"""Columns that a read has only where it names them."""

STATE_SCHEMA: Final = pa.schema([("state", pa.string()), ("attempts", pa.int32()), ("reason", pa.string())])
"""What a group makes of a message: only where the scan named one."""

FIELDS: Final = {field.name: field for schema in (MESSAGE_SCHEMA, EXTRA_SCHEMA, STATE_SCHEMA) for field in schema}


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in their order."""
    for name in columns:
        if name not in FIELDS:
            raise InvalidArgument(f"there is no column {name!r}; {suggestion(name, FIELDS)}")
    if len(set(columns)) != len(columns):
        raise InvalidArgument(f"a column is named twice in {', '.join(columns)}")
    return pa.schema([FIELDS[name] for name in columns])
