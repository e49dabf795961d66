"""Whether batches match their checksums: what every engine's `check` says of what it has read.

It may not know where they were read from. On a thread: it looks at every byte. Next stop: `node/background/scrub.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.batch import is_intact, read_columns
from penstock.model.errors import PenstockError
from penstock.model.rows import BatchRow, CheckedBatch


def check_batches(rows: Iterable[BatchRow]) -> list[CheckedBatch]:
    return [CheckedBatch(row.base, row.end, row.published_ms, row.size, _is_whole(row)) for row in rows]


def _is_whole(row: BatchRow) -> bool:
    try:
        read_columns(row.meta, row.count, frozenset())
    except PenstockError:
        return False
    return row.is_intact or is_intact(row.body)
