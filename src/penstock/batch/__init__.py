"""The batch codec: messages to two byte strings, `meta` (metadata by column) and `body` (payloads), and back.

A batch is what a lane stores, and what travels whole between producer, node, store, consumer and Spark. `meta` is read,
cut and checked without touching `body`. All work is by column, so that a thousand messages cost a few C-level passes.
The layout is in `docs/batch-format.md`.

The package knows `model` only: no lane, offset, store, socket or clock. Any bytes give data or `InvalidBatch`, in
bounded memory. Messages given to `encode` were checked by `model.check_message`; a batch from an untrusted producer
goes through `check`. Next stop: `core/lane/append.py`, where a batch gets its offsets.

Inside, `layout` and `guards` are below `body` (payloads) and `columns` (metadata); `assemble` puts both together; above
these are `messages` (encode, decode), `reader` (also cuts), `reshape` (select, join) and `checks`; `frame` wraps a
batch for files and HTTP. Others import the names below from here.
"""

from penstock.batch.body import block_bytes, is_compressed, is_intact, is_large, payloads
from penstock.batch.checks import check
from penstock.batch.columns import is_meta_intact, meta_column, meta_columns, read_columns, unfolded_of
from penstock.batch.frame import from_bytes, from_parts, to_bytes, to_parts
from penstock.batch.layout import (
    COLUMN_DELAY_MS,
    COLUMN_NOT_BEFORE_MS,
    COLUMN_PARTITION,
    COLUMN_PRIORITY,
    COLUMN_TTL_MS,
    COLUMN_UNFOLDED,
    EncodedBatch,
    Meta,
)
from penstock.batch.messages import decode, decode_meta, decode_single, encode, encode_alike
from penstock.batch.reader import Reader
from penstock.batch.reshape import join, measured, select, with_key

__all__ = [
    "COLUMN_DELAY_MS",
    "COLUMN_NOT_BEFORE_MS",
    "COLUMN_PARTITION",
    "COLUMN_PRIORITY",
    "COLUMN_TTL_MS",
    "COLUMN_UNFOLDED",
    "EncodedBatch",
    "Meta",
    "Reader",
    "block_bytes",
    "check",
    "decode",
    "decode_meta",
    "decode_single",
    "encode",
    "encode_alike",
    "from_bytes",
    "from_parts",
    "is_compressed",
    "is_intact",
    "is_large",
    "is_meta_intact",
    "join",
    "measured",
    "meta_column",
    "meta_columns",
    "payloads",
    "read_columns",
    "select",
    "to_bytes",
    "to_parts",
    "unfolded_of",
    "with_key",
]
