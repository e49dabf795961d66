"""A scan as an Arrow IPC stream. Knows the format, no server."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.api.results import Scan
from penstock.arrow.reading import record_batches
from penstock.arrow.schema import schema_of


def stream_of(scan: Scan, columns: Sequence[str]) -> bytes:
    """The rows with these columns; the schema's metadata says where the next scan goes on."""
    about = {"queue": scan.queue, "lane": str(scan.lane), "next_offset": str(scan.next_offset)}
    schema = schema_of(columns).with_metadata({f"penstock.{name}": value for name, value in about.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in record_batches(scan, columns):
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    data: bytes = sink.getvalue().to_pybytes()
    return data
