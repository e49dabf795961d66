"""Validation of a batch that an untrusted producer encoded: intact, and within the limits of `model`.

This module knows what a field may hold, not how columns or payloads are stored. It changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.batch.body import open_body
from penstock.batch.columns import TYPED, expand, meta_columns, read_meta, unfolded_of
from penstock.batch.layout import BODY_COMPRESSED, COLUMN_UNFOLDED, EncodedBatch, Meta
from penstock.model import (
    PAYLOAD_BYTES_MAX,
    SPAN_MS_MAX,
    Headers,
    check_headers,
)
from penstock.model.errors import InvalidArgument, InvalidBatch, MessageTooLarge
from penstock.model.message import NUMBER_LIMITS, TEXT_LIMITS

_NUMBER_LIMITS: Final = NUMBER_LIMITS | {"ttl_ms": SPAN_MS_MAX}


def check(batch: EncodedBatch, payload_bytes_max: int = PAYLOAD_BYTES_MAX, batch_bytes_max: int | None = None) -> Meta:
    """Return a batch's metadata; raise unless the batch is intact and all of it within the limits of `model`."""
    if batch.count == 0:
        raise InvalidBatch("batch has no messages")
    lengths, block, _ = open_body(batch.body, batch.count, most=batch_bytes_max, past_limit=MessageTooLarge)
    longest = max(lengths)
    if longest > payload_bytes_max:
        index = lengths.index(longest)
        raise MessageTooLarge(f"payload of message {index} has {longest} bytes; the limit is {payload_bytes_max}")
    columns = read_meta(batch.meta, batch.count, TYPED)
    if meta_columns(batch.meta) & COLUMN_UNFOLDED:
        _check_unfolded(batch, len(block))
    for name, values in columns.items():
        _check_column(name, values)
    return Meta(batch.count, **{name: expand(values, batch.count) for name, values in columns.items()})


def _check_unfolded(batch: EncodedBatch, size: int) -> None:
    said = unfolded_of(batch.meta)
    if not batch.body[1] & BODY_COMPRESSED or said != size:
        raise InvalidBatch(f"meta says that the body unfolds to {said} bytes; it has {size}")


def _check_column(name: str, values: list[Any]) -> None:
    if name == "headers":
        _check_headers_column(values)
    elif name in TEXT_LIMITS:
        _check_text_column(name, values, TEXT_LIMITS[name])
    else:
        _check_number_column(name, values, _NUMBER_LIMITS[name])


def _check_text_column(name: str, values: list[str | None], most: int) -> None:
    if max(map(len, filter(None, values)), default=0) > most:
        index, text = next((at, text) for at, text in enumerate(values) if text and len(text) > most)
        raise InvalidBatch(f"{name} of message {index} has {len(text)} characters; the limit is {most}")


def _check_number_column(name: str, values: list[int | None], most: int) -> None:
    numbers = [value for value in values if value is not None]
    if numbers and not (min(numbers) >= 0 and max(numbers) <= most):
        wrong = min(numbers) if min(numbers) < 0 else max(numbers)
        raise InvalidBatch(f"{name} of message {values.index(wrong)} is {wrong}; it must be 0 to {most}")


def _check_headers_column(values: list[Headers | None]) -> None:
    for index, headers in enumerate(values):
        if headers is None:
            continue
        try:
            check_headers(headers)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"message {index}: {error}") from None
        except InvalidArgument as error:
            raise InvalidBatch(f"message {index}: {error}") from None
