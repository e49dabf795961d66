"""Merges small files of a lake table in tasks, some of them a commit: what `compact` and `archive --watch` share.

May not know: which files are worth merging, or when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.spark.lake import compaction
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import SCHEMAS
from penstock.spark.lake.table import LakeTable

MERGES_PER_CORE: Final = 4
"""Merges per core and commit: enough that commits are few, few enough that a failure loses little work."""

RunTasks = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Calls a function for each argument, somewhere; results in their order."""


class Merges(NamedTuple):
    """What one commit did."""

    groups: int
    """Of the plan."""
    merged: int
    """Small files that left the table."""
    into: int
    rows: int


def merge_files(
    table: LakeTable, name: str, plan: Sequence[list[DataFile]], cores: int, run_tasks: RunTasks
) -> Iterator[tuple[LakeTable, Merges]]:
    """Merge the groups of a plan; after each commit, the table at its new version and what was done."""
    size = MERGES_PER_CORE * cores
    for first in range(0, len(plan), size):
        part = plan[first : first + size]
        done = run_tasks(partial(compaction.merge, table.storage, SCHEMAS[name]), part)
        table, kept = compaction.replace(table, done)
        removed = sum(len(one.removed) for one in done) if kept else 0
        added = [file for one in done for file in one.added]
        yield table, Merges(len(part), removed, len(added) if kept else 0, sum(file.rows or 0 for file in added))
