"""The columns of a write: which are allowed, of which type, and how rows become what the batch encoder takes.

`ColumnPlan` is made once on the driver, from names and Spark's types, and refuses what cannot be written before a row
is read; the tasks apply it to Arrow batches. Knows options and Arrow; no server, no Spark session. Next stops:
`identity.py` for the source's columns, `staging.py` for the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import SPAN_MS_MAX
from penstock.model.errors import InvalidArgument
from penstock.spark.sink.options import WriteOptions

TEXT: Final = r"string\b.*|char\(.*|varchar\(.*"
WHOLE: Final = r"tinyint|smallint|int|bigint"
SPAN: Final = rf"{WHOLE}|float|double|decimal\(.*|interval (day|hour|minute|second).*"
TYPED: Final = "map<string,struct<kind:string,text:string,integer:bigint,float:double>>"

MESSAGE_COLUMNS: Final = {
    "payload": (rf"binary|{TEXT}", "binary or string"),
    "partition": (TEXT, "string"),
    "key": (TEXT, "string"),
    "headers": (r"map<string,string>", "map<string,string>"),
    "typed_headers": (re.escape(TYPED), TYPED),
    "priority": (WHOLE, "int"),
    "delay": (SPAN, "seconds as a number, or an interval"),
    "delay_ms": (WHOLE, "bigint"),
    "not_before": (r"timestamp", "timestamp"),
    "ttl": (SPAN, "seconds as a number, or an interval"),
    "ttl_ms": (WHOLE, "bigint"),
    "dedup_id": (TEXT, "string"),
    "content_type": (TEXT, "string"),
    "correlation_id": (TEXT, "string"),
    "trace_id": (TEXT, "string"),
}
"""What a message is made of: a pattern of Spark's type names, and the type in words."""
TARGET_COLUMNS: Final = {"queue": (TEXT, "string"), "exchange": (TEXT, "string"), "routing_key": (TEXT, "string")}
SOURCE_COLUMNS: Final = {
    "lane": (WHOLE, "int"),
    "offset": (WHOLE, "bigint"),
    "queue_id": (WHOLE, "bigint"),
    "source_queue": (TEXT, "string"),
    "source_lane": (WHOLE, "int"),
    "source_offset": (WHOLE, "bigint"),
}
"""Where a row came from: for its identity, never written."""
LEFT_OUT: Final = ("published_at", "expires_at", "state", "attempts", "reason")
"""The source's columns that only a queue itself decides: accepted, so that its rows need no select, but not written."""
ALLOWED: Final = {**MESSAGE_COLUMNS, **TARGET_COLUMNS, **SOURCE_COLUMNS}

_ENCODED: Final = ("partition", "priority", "dedup_id", "content_type", "correlation_id", "trace_id", "not_before")
_MICROSECONDS: Final = 1_000


class SourceColumns(msgspec.Struct, frozen=True):
    """Which columns say where a row came from; `queue_id` None: the server is asked by the queue's name."""

    queue: str | None
    lane: str
    offset: str
    queue_id: str | None


class ColumnPlan(msgspec.Struct, frozen=True):
    """How rows with these columns are written."""

    columns: tuple[str, ...]
    """Of the rows, without those of NULL alone."""
    queue: str | None
    """The target of all rows; without it and `exchange`, the columns of the same name say it for each row."""
    exchange: str | None
    routing_key: str | None
    source: SourceColumns | None
    """None where the rows do not say where they came from."""


Target = tuple[str, str]
"""("queue" or "exchange", its name)."""


# On the driver -------------------------------------------------------------------------------------------


def column_plan(fields: Sequence[tuple[str, str]], options: WriteOptions) -> ColumnPlan:
    """How rows of these (name, Spark type) are written, or an error that names the column and what is allowed."""
    for name, kind in fields:
        _check_column(name, kind)
    present = tuple(name for name, kind in fields if kind != "void")
    if len(set(present)) < len(present):
        raise InvalidArgument(f"a column is there twice: {', '.join(present)}")
    if "payload" not in present:
        raise InvalidArgument(
            f"the rows have no column payload (binary or string), only {', '.join(present) or 'columns of NULL'}; "
            "to_json(struct(*)) AS payload makes one of any columns"
        )
    for one, other in (("delay", "delay_ms"), ("ttl", "ttl_ms")):
        if one in present and other in present:
            raise InvalidArgument(f"the rows have both {one} (seconds) and {other} (milliseconds): drop one of them")
    has_target = options.queue is not None or options.exchange is not None
    source = _source_columns(present, has_target)
    if not has_target:
        _check_target_columns(present)
    if options.exchange is None and options.routing_key is not None and "exchange" not in present:
        raise InvalidArgument(f"option routingKey is {options.routing_key!r}, but no row goes to an exchange")
    return ColumnPlan(present, options.queue, options.exchange, options.routing_key, source)


def _check_column(name: str, kind: str) -> None:
    if name in LEFT_OUT:
        return
    if name not in ALLOWED:
        near = get_close_matches(name, ALLOWED, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidArgument(
            f"a penstock write has no column {name!r}: {hint}it takes {', '.join(MESSAGE_COLUMNS)}; for the target "
            f"{', '.join(TARGET_COLUMNS)}; of the source's also {', '.join((*SOURCE_COLUMNS, *LEFT_OUT))}"
        )
    pattern, words = ALLOWED[name]
    if kind != "void" and re.fullmatch(pattern, kind) is None:
        raise InvalidArgument(f"column {name} is of type {kind}; it must be {words}: cast it, or drop it")


def _source_columns(present: Sequence[str], has_target: bool) -> SourceColumns | None:
    """`source_…` columns say it for certain; the source's own names do where `queue` is not the target's."""
    queue_id = "queue_id" if "queue_id" in present else None
    for prefix in ("source_", ""):
        queue = f"{prefix}queue" if f"{prefix}queue" in present else None
        if f"{prefix}lane" not in present or f"{prefix}offset" not in present or (queue is None and queue_id is None):
            continue
        if not prefix and not has_target:
            raise InvalidArgument(
                "the rows carry the source's columns queue, lane and offset, so column queue may be where they come "
                "from or where they shall go. Set option queue or exchange; or, where column queue is the target, drop "
                "lane and offset or rename the source's columns to source_queue, source_lane and source_offset"
            )
        return SourceColumns(queue, f"{prefix}lane", f"{prefix}offset", queue_id)
    return None


def _check_target_columns(present: Sequence[str]) -> None:
    if "queue" not in present and "exchange" not in present:
        raise InvalidArgument(
            "nothing says where the rows shall go: set option queue or exchange, or give the rows a column of that name"
        )


# In the tasks --------------------------------------------------------------------------------------------


def by_target(batch: pa.RecordBatch, plan: ColumnPlan) -> Iterator[tuple[Target, pa.RecordBatch]]:
    """The rows of each target, in their order; raises where a row has none, or two."""
    if plan.queue is not None:
        yield ("queue", plan.queue), batch
        return
    if plan.exchange is not None:
        yield ("exchange", plan.exchange), batch
        return
    named = [(kind, batch.column(kind)) for kind in ("queue", "exchange") if kind in plan.columns]
    _check_targets(batch, named)
    for kind, values in named:
        for name in pc.unique(values).to_pylist():
            if name is not None:
                chosen = pc.equal(values, name)
                yield (kind, name), batch if pc.all(chosen, skip_nulls=False).as_py() else batch.filter(chosen)


def _check_targets(batch: pa.RecordBatch, named: Sequence[tuple[str, pa.Array]]) -> None:
    counts = [pc.and_(pc.is_valid(values), pc.not_equal(values, "").fill_null(False)) for _, values in named]
    without = pc.invert(counts[0]) if len(counts) == 1 else pc.invert(pc.or_(*counts))
    place = pc.index(without, True).as_py()
    if place >= 0:
        kinds = " and ".join(kind for kind, _ in named)
        raise InvalidArgument(
            f"a row has no target: its {kinds} is NULL or empty. Its payload begins with {_begin(batch, place)}; "
            "nothing was published. Filter such rows out, or set option queue"
        )
    if len(counts) == 2 and (place := pc.index(pc.and_(*counts), True).as_py()) >= 0:
        queue, exchange = (values[place].as_py() for _, values in named)
        raise InvalidArgument(
            f"a row has two targets: queue {queue!r} and exchange {exchange!r}. Its payload begins with "
            f"{_begin(batch, place)}; nothing was published. Set one of the two to NULL"
        )


def _begin(batch: pa.RecordBatch, place: int) -> str:
    payload = batch.column("payload")[place].as_py()
    return repr(payload if payload is None else payload[:60])


def message_columns(batch: pa.RecordBatch, plan: ColumnPlan) -> pa.RecordBatch:
    """The rows as the encoder takes them: payloads in bytes, spans in milliseconds, a key, one column of headers."""
    columns: dict[str, pa.Array] = {name: batch.column(name) for name in _ENCODED if name in plan.columns}
    columns["payload"] = _payloads(batch)
    if "typed_headers" in plan.columns:
        columns["typed_headers"] = batch.column("typed_headers")
    elif "headers" in plan.columns:
        columns["headers"] = batch.column("headers")
    for name in ("delay", "ttl"):
        if name in plan.columns:
            columns[f"{name}_ms"] = _milliseconds(batch.column(name), name)
        elif f"{name}_ms" in plan.columns:
            columns[f"{name}_ms"] = batch.column(f"{name}_ms")
    key = _key(batch, plan)
    if key is not None:
        columns["key"] = key
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _payloads(batch: pa.RecordBatch) -> pa.Array:
    payload = batch.column("payload")
    if payload.null_count:
        raise InvalidArgument(
            f"the payload of {payload.null_count} of {batch.num_rows} rows is NULL; nothing was published. Filter them "
            "out, or give them one: coalesce(payload, ''). (A read with includePayload=false has no payloads.)"
        )
    return payload if pa.types.is_binary(payload.type) else payload.cast(pa.binary())


def _key(batch: pa.RecordBatch, plan: ColumnPlan) -> pa.Array | None:
    """A message's key is what an exchange routes by: the option, else the column routing_key, else the column key."""
    if plan.routing_key is not None:
        return pa.repeat(pa.scalar(plan.routing_key, pa.string()), batch.num_rows)
    found = [batch.column(name) for name in ("routing_key", "key") if name in plan.columns]
    if not found:
        return None
    return found[0] if len(found) == 1 else pc.coalesce(*found)


def _milliseconds(values: pa.Array, name: str) -> pa.Array:
    """Seconds or an interval as whole milliseconds, rounded; NULL is none."""
    if pa.types.is_duration(values.type):
        microseconds = values.cast(pa.duration("us")).cast(pa.int64())
        spans = pc.divide(pc.cast(microseconds, pa.float64()), float(_MICROSECONDS))
    else:
        spans = pc.multiply(values.cast(pa.float64()), 1_000.0)
    low, high = (pc.min_max(spans)[end].as_py() for end in ("min", "max"))
    is_nan = pc.any(pc.is_nan(spans)).as_py()
    if is_nan or (low is not None and not (low >= 0 and high <= SPAN_MS_MAX)):
        wrong = "NaN" if is_nan else f"{(low if low < 0 else high) / 1_000} s"
        raise InvalidArgument(f"column {name} has a span of {wrong}; it must be 0 to {SPAN_MS_MAX // 1_000} seconds")
    return pc.round(spans).cast(pa.int64())
