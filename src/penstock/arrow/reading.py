"""What a scan gives, as record batches: columns are made of whole batches, never of one message after the other.

A payload column points into the unfolded block of its batch; metadata columns are lists as the codec decodes them, or
one value that is repeated. Small batches are put together first, so that a queue that stores one message a row is not
read a record batch a row. Knows slices; not where they came from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from io import RawIOBase
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.results import Scan, ScanSlice, ScanState
from penstock.api.scan import META_COLUMNS, STATE_COLUMNS
from penstock.arrow.headers import header_map, typed_header_map
from penstock.arrow.schema import FIELDS, TIME, schema_of
from penstock.batch import read_columns
from penstock.batch.body import open_body, open_single
from penstock.model.errors import InvalidArgument, InvalidBatch, StoreCorrupt

ROWS_TO_JOIN: Final = 8_192
"""Batches are combined up to this many messages; a larger one stays as it is."""
BYTES_TO_JOIN: Final = 8 * 1024 * 1024

_META_NAMES: Final = {"expires_at": "ttl_ms", "not_before": "not_before_ms", "typed_headers": "headers"}
"""The codec's names of columns that have another here."""
_DEFAULTS: Final[dict[str, int]] = {"priority": 0, "delay_ms": 0, "not_before_ms": 0}
"""What a message without the column has, where that is not null."""

Integers = npt.NDArray[np.int64]


def record_batches(scan: Scan, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a scan, in order, with these columns; small batches together. None for slices without rows."""
    run: list[ScanSlice] = []
    rows = size = 0
    for part in scan.slices:
        count = part.stop - part.start
        if run and (rows + count > ROWS_TO_JOIN or size + part.unfolded > BYTES_TO_JOIN):
            yield from _some(run, scan, columns)
            run, rows, size = [], 0, 0
        if part.rows != b"":
            run.append(part)
            rows += count
            size += part.unfolded
    yield from _some(run, scan, columns)


def write_stream(scan: Scan, columns: Sequence[str], parts: list[bytes]) -> None:
    """The rows of a scan as an Arrow IPC stream, in parts; the schema's metadata says where the next scan goes on, and
    what was passed over because it is damaged in the store.

    A record batch at a time is in memory beside them.
    """
    about = {"queue": scan.queue, "lane": str(scan.lane), "next_offset": str(scan.next_offset)}
    if scan.damaged:
        about["damaged"] = msgspec.json.encode(scan.damaged).decode()
    schema = schema_of(columns).with_metadata({f"penstock.{name}": value for name, value in about.items()})
    with pa.ipc.new_stream(pa.PythonFile(_Parts(parts), "w"), schema) as writer:
        for batch in record_batches(scan, columns):
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


class _Parts(RawIOBase):
    """A file whose content is a list of what was written."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])


def _some(run: Sequence[ScanSlice], scan: Scan, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if run:
        yield _record_batch(run, scan, columns)


def _record_batch(run: Sequence[ScanSlice], scan: Scan, columns: Sequence[str]) -> pa.RecordBatch:
    schema = schema_of(columns)
    try:
        rows = _Rows(run, scan, columns)
        arrays = [rows.column(name) for name in columns]
    except InvalidBatch as error:
        place = f"offsets {run[0].offset} to {run[-1].end - 1} of lane {scan.lane} of queue {scan.queue!r}"
        raise StoreCorrupt(f"{place} cannot be read: {error}") from error
    if not columns:
        # Without a column there is nothing that could say how many rows there are.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.count, pa.struct([])))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if rows.taken is None else batch.take(rows.taken)


class _Rows:
    """Consecutive slices as one block of rows, of which the columns are made one by one."""

    def __init__(self, run: Sequence[ScanSlice], scan: Scan, columns: Sequence[str]) -> None:
        self.run = run
        self.scan = scan
        self.counts = [part.stop - part.start for part in run]
        self.count = sum(self.counts)
        self.taken = _taken(run, self.counts)
        """Which rows match the condition; None where all do. Columns have all rows; the others go at the end."""
        self._meta = _meta(
            run, self.counts, frozenset(_META_NAMES.get(name, name) for name in columns if name in META_COLUMNS)
        )

    def column(self, name: str) -> pa.Array:
        make = _MAKERS.get(name)
        if make is not None:
            return make(self)
        if name in STATE_COLUMNS:
            return self.state(name)
        return self.meta(name, FIELDS[name].type)

    # Places -----------------------------------------------------------------------------------------------

    def offsets(self) -> Integers:
        if len(self.run) == 1:
            return np.arange(self.run[0].offset, self.run[0].end, dtype=np.int64)
        if self.run[-1].end - self.run[0].offset == self.count:
            return np.arange(self.run[0].offset, self.run[-1].end, dtype=np.int64)
        return np.concatenate([np.arange(part.offset, part.end, dtype=np.int64) for part in self.run])

    def published_us(self) -> Integers:
        times = np.array([part.published_ms for part in self.run], np.int64) * 1000
        return np.repeat(times, self.counts)

    def payload(self) -> pa.Array:
        lengths = array("I")
        pieces: list[memoryview] = []
        for part in self.run:
            if part.body is None:
                raise InvalidArgument("the scan left out payloads; scan with payload, or leave out the column payload")
            single = open_single(part.body) if part.count == 1 else None
            if single is not None:
                lengths.append(len(single))
                pieces.append(single)
                continue
            held, block, begin = open_body(part.body, part.count)
            low = begin + (sum(held[: part.start]) if part.start else 0)
            if len(self.run) == 1:
                return _binary(held[part.start : part.stop], low, block)
            taken = held[part.start : part.stop]
            lengths += taken
            pieces.append(memoryview(block)[low : low + sum(taken)])
        return _binary(lengths, 0, b"".join(pieces))

    # Metadata ---------------------------------------------------------------------------------------------

    def values(self, name: str) -> tuple[list[Any], bool]:
        """(a value for each row, False), or (one value for all rows, True)."""
        return self._meta.get(name) or ([_DEFAULTS.get(name)], True)

    def meta(self, name: str, kind: pa.DataType) -> pa.Array:
        values, is_constant = self.values(name)
        if not is_constant:
            return pa.array(values, kind)
        if values[0] is None:
            return pa.nulls(self.count, kind)
        return pa.repeat(pa.scalar(values[0], kind), self.count)

    def headers(self, make: Callable[[list[Any]], pa.Array], kind: pa.DataType) -> pa.Array:
        values, is_constant = self.values("headers")
        if not is_constant:
            return make(values)
        if values[0] is None:
            return pa.nulls(self.count, kind)
        return make(values).take(pa.repeat(pa.scalar(0, pa.int32()), self.count))

    def expires_at(self) -> pa.Array:
        """Of messages with a ttl of their own; a queue's or group's may end them earlier."""
        values, is_constant = self.values("ttl_ms")
        if is_constant and values[0] is None:
            return pa.nulls(self.count, TIME)
        ttl_us = pc.multiply(self.meta("ttl_ms", pa.int64()), pa.scalar(1000, pa.int64()))
        return pc.add(pa.array(self.published_us()), ttl_us).view(TIME)

    def not_before(self) -> pa.Array:
        values, is_constant = self.values("not_before_ms")
        if is_constant and not values[0]:
            return pa.nulls(self.count, TIME)
        times = self.meta("not_before_ms", pa.int64())
        named = pc.if_else(pc.equal(times, 0), pa.scalar(None, pa.int64()), times)
        return pc.multiply(named, pa.scalar(1000, pa.int64())).view(TIME)

    # States -----------------------------------------------------------------------------------------------

    def state(self, name: str) -> pa.Array:
        """One value a range, repeated: rows between ranges are done."""
        spans = list(chain.from_iterable(map(_spans, self.run)))
        values = [_STATE_VALUES[name](state) for _, state in spans]
        indexes = np.repeat(np.arange(len(spans), dtype=np.int32), [length for length, _ in spans])
        return pa.array(values, FIELDS[name].type).take(pa.array(indexes))


def _spans(part: ScanSlice) -> Iterator[tuple[int, ScanState | None]]:
    """(messages, what they are) from the beginning of a slice to its end; None is done."""
    if part.states is None:
        raise InvalidArgument("the scan named no group; scan with group, or leave out state, attempts and reason")
    offset = part.offset
    for state in part.states:
        if state.start > offset:
            yield state.start - offset, None
        yield state.end - state.start, state
        offset = state.end
    if offset < part.end:
        yield part.end - offset, None


_STATE_VALUES: Final[dict[str, Callable[[ScanState | None], Any]]] = {
    "state": lambda state: "done" if state is None else state.state,
    "attempts": lambda state: None if state is None else state.attempts,
    "reason": lambda state: None if state is None else state.reason,
}
_MAKERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "queue": lambda rows: pa.repeat(pa.scalar(rows.scan.queue, pa.string()), rows.count),
    "queue_id": lambda rows: pa.repeat(pa.scalar(rows.scan.queue_id, pa.int64()), rows.count),
    "lane": lambda rows: pa.repeat(pa.scalar(rows.scan.lane, pa.int32()), rows.count),
    "offset": lambda rows: pa.array(rows.offsets()),
    "payload": _Rows.payload,
    "published_at": lambda rows: pa.array(rows.published_us()).view(TIME),
    "expires_at": _Rows.expires_at,
    "not_before": _Rows.not_before,
    "headers": lambda rows: rows.headers(header_map, FIELDS["headers"].type),
    "typed_headers": lambda rows: rows.headers(typed_header_map, FIELDS["typed_headers"].type),
}


def _taken(run: Sequence[ScanSlice], counts: Sequence[int]) -> pa.Array | None:
    if all(part.rows is None for part in run):
        return None
    found: list[Integers] = []
    before = 0
    for part, count in zip(run, counts, strict=True):
        if part.rows is None:
            found.append(np.arange(before, before + count, dtype=np.int64))
        else:
            found.append(np.frombuffer(part.rows, "<u4").astype(np.int64) + (before - part.start))
        before += count
    return pa.array(np.concatenate(found))


def _binary(lengths: array[int], begin: int, block: bytes) -> pa.Array:
    """An array of the pieces of a block that follow each other from `begin` on; it is pointed at, not copied."""
    offsets = np.empty(len(lengths) + 1, np.int32)
    offsets[0] = begin
    np.cumsum(np.frombuffer(lengths, np.uint32), out=offsets[1:])
    offsets[1:] += begin
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(block)])


def _meta(run: Sequence[ScanSlice], counts: Sequence[int], names: frozenset[str]) -> dict[str, tuple[list[Any], bool]]:
    """The columns of these names that are there, over all slices: values and whether it is one for all."""
    if not names:
        return {}
    if any(part.meta is None for part in run):
        raise InvalidArgument("the scan left out metadata; name the columns that you want of it with columns")
    read = [read_columns(part.meta, part.count, names) if part.meta else {} for part in run]
    if len(run) == 1:
        part = run[0]
        return {
            name: (values, True) if len(values) == 1 else (values[part.start : part.stop], False)
            for name, values in read[0].items()
        }
    joined: dict[str, tuple[list[Any], bool]] = {}
    for name in set(chain.from_iterable(read)):
        default = [_DEFAULTS.get(name)]
        values: list[Any] = []
        for part, count, held in zip(run, counts, read, strict=True):
            own = held.get(name, default)
            # A list of one is a constant, or of a batch of one message: the same either way.
            values += own * count if len(own) == 1 else own[part.start : part.stop]
        joined[name] = (values, False)
    return joined
