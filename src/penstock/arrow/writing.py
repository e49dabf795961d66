"""Columns as an encoded batch: the way of a DataFrame's rows into a queue.

Takes the columns that a message has, by the names of `schema`, and leaves all others to the caller. Payloads are not
touched one by one: their bytes are one piece of a buffer already. What is within the limits of a message is checked by
the server that takes the batch; here only that there is a message at all.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.headers import headers_of
from penstock.batch import EncodedBatch
from penstock.batch.assemble import assemble
from penstock.batch.guards import limit_count
from penstock.model import Message
from penstock.model.errors import InvalidArgument
from penstock.model.message import TEXT_LIMITS

_TEXTS: Final = tuple(TEXT_LIMITS)
_NUMBERS: Final = {"priority": 0, "delay_ms": 0, "ttl_ms": None}
"""Columns of whole numbers, and what null stands for."""
WRITTEN_COLUMNS: Final = ("payload", "headers", "typed_headers", "not_before", *_TEXTS, *_NUMBERS)
"""The columns that a message is made of; those of a source that only say where it was are not among them."""
_META_ORDER: Final = Message.__struct_fields__[1:]


def encoded_batch(rows: pa.RecordBatch) -> EncodedBatch:
    """The rows as one batch; `MessageTooLarge` past a batch's limits: then encode parts of them.

    `payload` (binary or string) must be there and not null. Where both `typed_headers` and `headers` are, the typed
    ones hold. Columns of other names are an error.
    """
    unknown = [name for name in rows.schema.names if name not in WRITTEN_COLUMNS]
    if unknown:
        raise InvalidArgument(f"{unknown[0]!r} is no column of a message; there are {', '.join(WRITTEN_COLUMNS)}")
    if "payload" not in rows.schema.names:
        raise InvalidArgument("there is no column payload: a message needs one, of binary or string")
    limit_count(rows.num_rows)
    columns = {name: _column(rows, name) for name in _META_ORDER}
    given = {name: values for name, values in columns.items() if values is not None}
    return assemble(given, *_payloads(rows.column("payload")))


def _column(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    """A metadata column as the codec takes it, a list of one being a constant; None where every message has none."""
    names = rows.schema.names
    if name == "headers":
        source = "typed_headers" if "typed_headers" in names else "headers"
        if source not in names or rows.column(source).null_count == rows.num_rows:
            return None
        return headers_of(rows.column(source))
    if name == "not_before_ms":
        return _milliseconds(rows.column("not_before")) if "not_before" in names else None
    if name not in names:
        return None
    column = rows.column(name)
    return _texts(column, name) if name in _TEXTS else _numbers(column, name, _NUMBERS[name])


def _texts(column: pa.Array, name: str) -> list[Any] | None:
    if column.null_count == len(column):
        return None
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise InvalidArgument(f"{name} is of type {column.type}; it must be string")
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _numbers(column: pa.Array, name: str, default: int | None) -> list[Any] | None:
    if column.null_count == len(column):
        return None
    if not pa.types.is_integer(column.type):
        raise InvalidArgument(f"{name} is of type {column.type}; it must be a whole number")
    if column.null_count and default is None:
        return list(column.to_pylist())
    values: list[Any] = column.fill_null(0 if default is None else default).to_numpy().tolist()
    return values


def _milliseconds(column: pa.Array) -> list[Any] | None:
    """Times as numbers; null is no time. A part of a millisecond counts as a whole: never before the time."""
    if column.null_count == len(column):
        return None
    if not pa.types.is_timestamp(column.type):
        raise InvalidArgument(f"not_before is of type {column.type}; it must be a timestamp")
    micros = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).view(pa.int64()).fill_null(0)
    return [-(-micro // 1000) for micro in micros.to_numpy().tolist()]


def _payloads(column: pa.Array) -> tuple[array[int], list[memoryview]]:
    """The lengths of the payloads, and their bytes."""
    if column.null_count:
        index = int(pc.index(column.is_null(), True).as_py())
        raise InvalidArgument(f"payload of row {index} is null; a message has one, empty (b'') where it says nothing")
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_binary_view(kind)
        if not (wide or pa.types.is_string_view(kind) or pa.types.is_fixed_size_binary(kind)):
            raise InvalidArgument(f"payload is of type {kind}; it must be binary or string")
        column = column.cast(pa.binary())
    _, offsets_buffer, data = column.buffers()
    if not len(column) or data is None:
        return array("I", bytes(4 * len(column))), []
    offsets = np.frombuffer(offsets_buffer, np.int32, len(column) + 1, column.offset * 4)
    lengths = array("I")
    lengths.frombytes(np.diff(offsets).astype(np.uint32).tobytes())
    return lengths, [memoryview(data)[int(offsets[0]) : int(offsets[-1])]]
