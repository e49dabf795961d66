"""Whether a data file is what the log says: there, as long, readable to the last page, with as many rows.

Reads with pyarrow, on any executor; decides nothing about what to do with a file that is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.files import DataFile
from penstock.spark.lake.reading import BATCH_ROWS
from penstock.spark.lake.storage import Storage


def problem(storage: Storage, file: DataFile, columns: Sequence[str] | None = None) -> str | None:
    """What is wrong with a file, in words; None if nothing is. Without `columns` every page of it is read."""
    size = storage.size(file.path)
    if size is None:
        return "it is missing"
    if size != file.size:
        return f"it has {size} bytes; the log says {file.size}"
    try:
        with storage.open(file.path) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            names = None if columns is None else [name for name in parquet.schema_arrow.names if name in columns]
            rows = sum(batch.num_rows for batch in parquet.iter_batches(BATCH_ROWS, columns=names, use_threads=False))
    except (OSError, pa.ArrowException) as error:
        return f"it cannot be read: {error}"
    if file.rows is not None and rows != file.rows:
        return f"it has {rows} rows; the log says {file.rows}"
    return None
