"""Headers as Arrow maps, and maps as headers: `headers` for people (text), `typed_headers` without loss.

In `headers` a text is as it is and all else is JSON, with bytes and times written as the HTTP API writes them; null
stays null. In `typed_headers` each value says its kind and has it in the field for that. Knows maps, no batch.
"""

from __future__ import annotations

import datetime as dt
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.arrow.schema import HEADERS, TYPED_HEADERS, TYPED_VALUE
from penstock.model import Headers
from penstock.model.errors import InvalidArgument
from penstock.model.typed_headers import json_headers

# Headers to maps -----------------------------------------------------------------------------------------


def header_map(column: Sequence[Headers | None]) -> pa.Array:
    """`headers` of these messages."""
    names, values = _flat(column)
    if not set(map(type, values)) <= {str, type(None)}:
        values = [value if value is None or type(value) is str else _TEXTS[type(value)](value) for value in values]
    return _map(HEADERS, column, pa.array(names, pa.string()), pa.array(values, pa.string()))


def typed_header_map(column: Sequence[Headers | None]) -> pa.Array:
    """`typed_headers` of these messages."""
    names, values = _flat(column)
    typed = [_KINDS[type(value)](value) for value in values]
    kinds, texts, integers, floats = zip(*typed, strict=True) if typed else ((), (), (), ())
    fields = [
        pa.array(kinds, pa.string()),
        pa.array(texts, pa.string()),
        pa.array(integers, pa.int64()),
        pa.array(floats, pa.float64(), from_pandas=False),
    ]
    items = pa.StructArray.from_arrays(fields, fields=list(TYPED_VALUE))
    return _map(TYPED_HEADERS, column, pa.array(names, pa.string()), items)


def _flat(column: Sequence[Headers | None]) -> tuple[list[str], list[Any]]:
    """All names, and all values, one message after the other."""
    present = [headers for headers in column if headers]
    return list(chain.from_iterable(present)), list(chain.from_iterable(map(dict.values, present)))


def _map(kind: pa.DataType, column: Sequence[Headers | None], names: pa.Array, items: pa.Array) -> pa.Array:
    lengths = [0 if headers is None else len(headers) for headers in column]
    offsets = np.fromiter(accumulate(lengths, initial=0), np.int32, len(column) + 1)
    entries = pa.StructArray.from_arrays([names, items], fields=[kind.key_field, kind.item_field])
    validity, nulls = None, 0
    if None in column:
        present = np.fromiter((headers is not None for headers in column), np.bool_, len(column))
        nulls = len(column) - int(present.sum())
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(column), [validity, pa.py_buffer(offsets)], null_count=nulls, children=[entries]
    )


def _json(value: Any) -> str:
    """What JSON cannot say of numbers is said as Spark reads it: NaN, Infinity."""
    return json.dumps(json_headers({"": value})[""], ensure_ascii=False, separators=(",", ":"))


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    bool: lambda value: "true" if value else "false",
    int: str,
    float: json.dumps,
    bytes: _json,
    dt.datetime: _json,
    list: _json,
    dict: _json,
}


class _Typed(NamedTuple):
    kind: str
    text: str | None = None
    integer: int | None = None
    float: float | None = None


def _nested(value: Any) -> _Typed:
    return _Typed("nested", b64encode(msgspec.msgpack.encode(value)).decode())


_KINDS: Final[dict[type, Callable[[Any], _Typed]]] = {
    type(None): lambda _: _Typed("null"),
    bool: lambda value: _Typed("boolean", None, int(value)),
    int: lambda value: _Typed("integer", None, value),
    float: lambda value: _Typed("float", None, None, value),
    str: lambda value: _Typed("text", value),
    bytes: lambda value: _Typed("bytes", b64encode(value).decode()),
    dt.datetime: lambda value: _Typed("time", value.isoformat()),
    list: _nested,
    dict: _nested,
}

# Maps to headers -----------------------------------------------------------------------------------------


def headers_of(column: pa.Array) -> list[Headers | None]:
    """What a map column says, as headers: of `map<string,string>` texts, of `typed_headers` what was there before."""
    if not pa.types.is_map(column.type):
        raise InvalidArgument(f"headers are of type {column.type}; they must be map<string,string> or typed_headers")
    low = column.offsets[0].as_py() if len(column) else 0
    offsets = (column.offsets.to_numpy() - low).tolist()
    used = slice(low, low + (offsets[-1] if offsets else 0))
    # `keys` and `items` are of the whole buffer, whatever part of it the column is.
    names = _texts(column.keys[used], "a header's name")
    items = column.items[used]
    if pa.types.is_struct(column.type.item_type):
        values = _typed_values(items)
    elif pa.types.is_string(column.type.item_type) or pa.types.is_large_string(column.type.item_type):
        values = items.to_numpy(zero_copy_only=False).tolist()
    else:
        raise InvalidArgument(f"headers have values of type {column.type.item_type}; they must be strings")
    found: list[Headers | None] = [
        dict(zip(names[start:stop], values[start:stop], strict=True)) for start, stop in pairwise(offsets)
    ]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[index] = None
    return found


def _texts(column: pa.Array, what: str) -> list[Any]:
    if column.null_count:
        raise InvalidArgument(f"{what} is null")
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _typed_values(items: pa.Array) -> list[Any]:
    for name in ("kind", "text", "integer", "float"):
        if items.type.get_field_index(name) < 0:
            raise InvalidArgument(f"typed_headers have values of type {items.type}, without a field {name!r}")
    fields = [items.field(name).to_pylist() for name in ("kind", "text", "integer", "float")]
    return [_typed_value(*value) for value in zip(*fields, strict=True)]


def _typed_value(kind: str | None, text: str | None, integer: int | None, number: float | None) -> Any:
    if kind is None or kind == "null":
        return None
    given = {"integer": integer, "boolean": integer, "float": number}.get(kind, text)
    if given is None:
        raise InvalidArgument(f"a typed header of kind {kind!r} has no value in the field for it")
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidArgument(f"a typed header is of kind {kind!r}; there are null, {', '.join(_READERS)}")
    try:
        return reader(given)
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"a typed header of kind {kind!r} is {str(given)[:80]!r}: {error}") from None


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "boolean": bool,
    "integer": int,
    "float": float,
    "text": str,
    "bytes": lambda text: b64decode(text, validate=True),
    "time": dt.datetime.fromisoformat,
    "nested": lambda text: msgspec.msgpack.decode(b64decode(text, validate=True)),
}
