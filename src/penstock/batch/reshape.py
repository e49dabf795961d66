"""Batch to batch, by column: select and join without making messages. Headers are copied undecoded."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from penstock.batch.assemble import assemble
from penstock.batch.body import open_body, payloads, unfolded_bytes
from penstock.batch.columns import OPAQUE_HEADERS, expand, read_meta, unfolded_of, write_meta
from penstock.batch.guards import limit_bytes, limit_count
from penstock.batch.layout import EncodedBatch
from penstock.model.errors import InvalidArgument


def select(batch: EncodedBatch, indexes: Sequence[int]) -> EncodedBatch:
    """The messages at `indexes`, in that order, as a batch of their own."""
    if indexes and not (min(indexes) >= 0 and max(indexes) < batch.count):
        raise InvalidArgument(f"indexes are {min(indexes)} to {max(indexes)}; the batch has {batch.count} messages")
    limit_count(len(indexes))
    whole = payloads(batch.body, batch.count)
    taken = [whole[index] for index in indexes]
    columns = read_meta(batch.meta, batch.count, OPAQUE_HEADERS)
    kept = {
        name: [values[index] for index in indexes] if len(values) == batch.count else values
        for name, values in columns.items()
    }
    return assemble(kept, array("I", list(map(len, taken))), taken)


def with_key(batch: EncodedBatch, key: str) -> EncodedBatch:
    """The same messages, each with this key; the body is shared."""
    columns = read_meta(batch.meta, batch.count, OPAQUE_HEADERS) | {"key": [key]}
    ordered = {name: columns[name] for name in OPAQUE_HEADERS if name in columns}
    return EncodedBatch(batch.count, write_meta(ordered, batch.count, unfolded_of(batch.meta)), batch.body)


def measured(batch: EncodedBatch) -> EncodedBatch:
    """The same batch, of which meta says how far its body unfolds where that matters, as `encode` makes it."""
    unfolded = unfolded_bytes(batch.body, batch.count)
    if not unfolded or unfolded_of(batch.meta):
        return batch
    columns = read_meta(batch.meta, batch.count, OPAQUE_HEADERS)
    return EncodedBatch(batch.count, write_meta(columns, batch.count, unfolded), batch.body)


def join(batches: Sequence[EncodedBatch]) -> EncodedBatch:
    """The messages of all batches, in order, as one; `MessageTooLarge` past a batch's limits."""
    if len(batches) == 1:
        return batches[0]
    count = sum(batch.count for batch in batches)
    limit_count(count)
    return assemble(_join_columns(batches), *_join_bodies(batches))


def _join_columns(batches: Sequence[EncodedBatch]) -> dict[str, list[Any]]:
    read = [read_meta(batch.meta, batch.count, OPAQUE_HEADERS) for batch in batches]
    names = set(chain.from_iterable(read))
    joined: dict[str, list[Any]] = {}
    for name, column in OPAQUE_HEADERS.items():
        if name in names:
            parts = [
                expand(columns.get(name, [column.default]), batch.count)
                for columns, batch in zip(read, batches, strict=True)
            ]
            joined[name] = list(chain.from_iterable(parts))
    return joined


def _join_bodies(batches: Sequence[EncodedBatch]) -> tuple[array[int], list[memoryview]]:
    lengths = array("I")
    pieces: list[memoryview] = []
    total = 0
    for batch in batches:
        held, block, data_start = open_body(batch.body, batch.count)
        total += len(block) - data_start
        # Here and not only when written: small compressed bodies may unfold into far more than the limit.
        limit_bytes(total)
        lengths += held
        pieces.append(memoryview(block)[data_start:])
    return lengths, pieces
