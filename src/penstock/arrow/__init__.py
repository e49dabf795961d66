"""Encoded batches as Arrow columns, and columns as encoded batches: how Spark, DuckDB and Polars see a queue.

All work is done by column: a batch of a thousand messages costs a few C-level passes, and payloads are not copied but
pointed at. Needs pyarrow and numpy (`pip install 'penstock[spark]'`), so nothing imports it before it is used. Knows
the batch codec and what a scan gives; no client, no server, no Spark.

`schema` has the columns, `reading` makes them, `headers` both ways of the two header columns, `writing` the way back.
"""

from penstock.arrow.reading import record_batches
from penstock.arrow.schema import EXTRA_SCHEMA, MESSAGE_SCHEMA, STATE_SCHEMA, schema_of
from penstock.arrow.writing import encoded_batch

__all__ = [
    "EXTRA_SCHEMA",
    "MESSAGE_SCHEMA",
    "STATE_SCHEMA",
    "encoded_batch",
    "record_batches",
    "schema_of",
]
