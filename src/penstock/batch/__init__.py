"""The batch codec: messages to two byte strings, `meta` (metadata by column) and `body` (payloads), and back.

A batch is what a lane stores and what travels whole between producer, node, store, consumer and Spark. `meta` can
be read, cut and checked without touching `body`. All work is done by column, so that a thousand messages cost a few
C-level passes. The layout is in `docs/batch-format.md`.

This package knows `model` and `errors` only: no lane, offset, store, socket or clock. Whatever bytes it is given, it
answers with data or with `InvalidBatch`, in bounded memory. Fields of messages handed to `encode` were checked by
`model.check_message`; bytes from an untrusted producer go through `check`. The next stop of a message is
`core/lane/append.py`, where its batch gets offsets.

`layout` and `guards` are below `body` and `columns`; on these two stand `messages`, `reader`, `reshape` and `checks`,
and `frame` beside them. All others import from the package, which is this list of names and nothing else.
"""

from penstock.batch.body import COMPRESS_BYTES_MIN, is_intact, is_large, payloads
from penstock.batch.checks import check
from penstock.batch.columns import meta_column, meta_columns, read_columns
from penstock.batch.frame import from_bytes, from_parts, to_bytes, to_parts
from penstock.batch.layout import (
    BODY_COMPRESSED,
    BODY_EQUAL_LENGTHS,
    COLUMN_CONTENT_TYPE,
    COLUMN_CORRELATION_ID,
    COLUMN_DEDUP_ID,
    COLUMN_DELAY_MS,
    COLUMN_HEADERS,
    COLUMN_KEY,
    COLUMN_NOT_BEFORE_MS,
    COLUMN_PARTITION,
    COLUMN_PRIORITY,
    COLUMN_TRACE_ID,
    COLUMN_TTL_MS,
    MAGIC,
    META_BYTES_MAX,
    VERSION,
    EncodedBatch,
    Meta,
)
from penstock.batch.messages import decode, decode_meta, decode_single, encode, encode_alike
from penstock.batch.reader import Reader
from penstock.batch.reshape import cut, join, select, with_key

__all__ = [
    "BODY_COMPRESSED",
    "BODY_EQUAL_LENGTHS",
    "COLUMN_CONTENT_TYPE",
    "COLUMN_CORRELATION_ID",
    "COLUMN_DEDUP_ID",
    "COLUMN_DELAY_MS",
    "COLUMN_HEADERS",
    "COLUMN_KEY",
    "COLUMN_NOT_BEFORE_MS",
    "COLUMN_PARTITION",
    "COLUMN_PRIORITY",
    "COLUMN_TRACE_ID",
    "COLUMN_TTL_MS",
    "COMPRESS_BYTES_MIN",
    "MAGIC",
    "META_BYTES_MAX",
    "VERSION",
    "EncodedBatch",
    "Meta",
    "Reader",
    "check",
    "cut",
    "decode",
    "decode_meta",
    "decode_single",
    "encode",
    "encode_alike",
    "from_bytes",
    "from_parts",
    "is_intact",
    "is_large",
    "join",
    "meta_column",
    "meta_columns",
    "payloads",
    "read_columns",
    "select",
    "to_bytes",
    "to_parts",
    "with_key",
]
