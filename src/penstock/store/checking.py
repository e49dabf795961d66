"""Whether batches match their checksums: what every engine's `check` says of what it has read.

It may not know where they were read from. On a thread: it looks at every byte. Next stop: `node/background/scrub.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from penstock.batch import is_intact, is_meta_intact
from penstock.model.rows import BatchRow, CheckedBatch


def check_batches(rows: Iterable[BatchRow]) -> list[CheckedBatch]:
    return [CheckedBatch(row.base, row.end, row.published_ms, row.size, _damaged_part(row)) for row in rows]


def _damaged_part(row: BatchRow) -> Literal["body", "meta"] | None:
    if not is_meta_intact(row.meta, row.count):
        return "meta"
    return None if row.is_intact or is_intact(row.body) else "body"
