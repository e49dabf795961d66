"""Columns and payloads to one batch: the place where meta learns what its body unfolds to."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from penstock.batch.body import unfolded_bytes, write_body
from penstock.batch.columns import write_meta
from penstock.batch.layout import BODY_COMPRESSED, EncodedBatch


def assemble(columns: dict[str, list[Any]], lengths: array[int], pieces: Sequence[bytes | memoryview]) -> EncodedBatch:
    """The batch of payloads of these lengths with these columns; `pieces` may split the payloads anywhere."""
    count = len(lengths)
    body = write_body(lengths, pieces)
    unfolded = unfolded_bytes(body, count) if body[1] & BODY_COMPRESSED else 0
    meta = write_meta(columns, count, unfolded) if columns or unfolded else b""
    return EncodedBatch(count, meta, body)
