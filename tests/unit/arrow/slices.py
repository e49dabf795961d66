"""Messages of every kind, and slices and scans made of them without a server."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from penstock.api.results import Scan, ScanSlice
from penstock.arrow import record_batches, schema_of
from penstock.batch import encode
from penstock.model import INTEGER_MAX, SPAN_MS_MAX, TIME_MS_MAX, Message
from penstock.model.limits import PRIORITY_MAX

PUBLISHED_MS: Final = 1_700_000_000_123

characters = st.characters(codec="utf-8")
texts = st.none() | st.sampled_from(["", "a", "b"]) | st.text(characters, max_size=10)
names = st.text(characters, max_size=10)
times = st.datetimes(timezones=st.just(dt.UTC)).map(lambda time: time.replace(fold=0))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX - 1, INTEGER_MAX)
    | st.floats(allow_nan=False)
    | st.text(characters, max_size=10)
    | st.binary(max_size=10)
    | times
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=5
)
headers = st.none() | st.sampled_from([{}, {"a": "x"}]) | st.dictionaries(names, values, max_size=4)


def numbers(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, 0, 1, most]) | st.integers(0, most)


messages = st.builds(
    Message,
    payload=st.sampled_from([b"", b"abc", b"x" * 900]) | st.binary(max_size=50),
    partition=texts,
    key=texts,
    headers=headers,
    priority=numbers(PRIORITY_MAX),
    delay_ms=numbers(SPAN_MS_MAX),
    not_before_ms=numbers(TIME_MS_MAX),
    ttl_ms=st.none() | numbers(SPAN_MS_MAX),
    dedup_id=texts,
    content_type=texts,
    correlation_id=texts,
    trace_id=texts,
)
batches = (
    st.lists(messages, min_size=1, max_size=8)
    | st.lists(st.builds(Message, payload=st.binary(max_size=30)), min_size=1, max_size=8)
    | st.builds(lambda message, count: [message] * count, messages, st.integers(1, 8))
)


def slice_of(
    held: Sequence[Message],
    base: int = 0,
    *,
    start: int = 0,
    stop: int | None = None,
    rows: Sequence[int] | None = None,
    published_ms: int = PUBLISHED_MS,
    **fields: Any,
) -> ScanSlice:
    """A slice of a batch of these messages, as a server gives it."""
    encoded = encode(held)
    places = None if rows is None else struct.pack(f"<{len(rows)}I", *rows)
    stop = len(held) if stop is None else stop
    meta: bytes | None = fields.pop("meta", encoded.meta)
    body: bytes | None = fields.pop("body", encoded.body)
    return ScanSlice(base, len(held), published_ms, start, stop, meta, body, places, **fields)


def scan_of(slices: list[ScanSlice], queue: str = "orders", lane: int = 2) -> Scan:
    start, end = (slices[0].offset, slices[-1].end) if slices else (0, 0)
    return Scan(queue, 7, lane, start, end, end, slices)


def record_batch(part: ScanSlice, columns: list[str]) -> pa.RecordBatch:
    """One slice as one record batch, empty where no message of it matched."""
    return next(record_batches(scan_of([part]), columns), pa.RecordBatch.from_pylist([], schema=schema_of(columns)))
