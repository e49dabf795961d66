"""Small files become large ones, old partitions go: what to merge, the merge of one group, and the commit of many.

Merged files are written and fsynced before the commit that puts them in the place of the small ones, and the small ones
stay until a vacuum: a reader that began before goes on as if nothing had happened. Rows do not change, nor do marks.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from penstock.spark.lake.errors import LakeConflict, LakeDamaged
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.reading import Choice, read_file
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable, LaneKey
from penstock.spark.lake.writing import PartitionFiles

TRIES: Final = 20
"""An archive that commits at the same moment is met again and again; this bounds the retries."""

TIER: Final = 8
"""How many files of one size are merged, and how much larger the next size is."""
TIER_BYTES: Final = 16 * 1024
"""The smallest size: files below it count as equal."""


class Merged(msgspec.Struct, frozen=True):
    removed: list[DataFile]
    added: list[DataFile]


def merges(files: Iterable[DataFile], before: str, target_bytes: int) -> list[list[DataFile]]:
    """Groups of at least two small neighbours in partitions of days before `before` (a date in ISO 8601)."""
    partitions: dict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.date < before and file.size < target_bytes * 3 // 4:
            partitions[file.queue, file.date].append(file)
    found: list[list[DataFile]] = []
    for _, small in sorted(partitions.items()):
        found += _cut(small, target_bytes)
    return [group for group in found if len(group) > 1]


def tiers(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Groups of many small neighbours of about one size in one partition, of whichever day.

    For partitions that still grow: what is merged is `TIER` times as large and waits for others of its size, so each
    row is rewritten once a size, and a partition has fewer than `TIER` small files of each size.
    """
    sizes: dict[tuple[str, str, int], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.size < target_bytes * 3 // 4:
            sizes[file.queue, file.date, _tier(file.size)].append(file)
    found: list[list[DataFile]] = []
    for _, small in sorted(sizes.items()):
        if len(small) >= TIER:
            found += _cut(small, target_bytes)
    return [group for group in found if len(group) > 1]


def _tier(size: int) -> int:
    tier = 0
    while size >= TIER_BYTES * TIER**tier:
        tier += 1
    return tier


def _cut(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Neighbours together, as many as make a file of the wanted size."""
    groups: list[list[DataFile]] = [[]]
    for file in files:
        if groups[-1] and sum(one.size for one in groups[-1]) + file.size > target_bytes:
            groups.append([])
        groups[-1].append(file)
    return groups


def merge(storage: Storage, schema: pa.Schema, group: list[DataFile]) -> Merged:
    """Rewrite the rows of a group; durable and invisible when this returns."""
    files = PartitionFiles(storage, schema)
    try:
        for file in group:
            for rows in read_file(storage, file, schema, Choice()):
                files.add(file.queue, file.date, rows)
        added = files.finish()
        expected, written = (sum(file.rows or 0 for file in some) for some in (group, added))
        if expected != written:
            names = ", ".join(file.path for file in group)
            raise LakeDamaged(
                f"{names} should have {expected} rows in all and have {written}: they were left as they are"
            )
    except BaseException:
        files.abandon()
        raise
    return Merged(group, added)


def replace(table: LakeTable, done: Sequence[Merged]) -> tuple[LakeTable, int]:
    """Put merged files in place. Groups of which another compaction took a file are left out; how many were not."""
    for _ in range(TRIES):
        active = {file.path for file in table.files()}
        if done and all(file.path in active for one in done for file in one.added):
            return table, len(done)  # an earlier try came through, and only its answer did not
        valid = [one for one in done if all(file.path in active for file in one.removed)]
        for lost in (one for one in done if one not in valid):
            for file in lost.added:
                table.storage.remove(file.path)
        done = valid
        if not done:
            return table, 0
        try:
            removed = [file for one in done for file in one.removed]
            return table.replace(removed, [file for one in done for file in one.added]), len(done)
        except LakeConflict:
            table = table.reopened()
    raise LakeConflict(
        f"{table.storage.url} changed {TRIES} times while merged files were put in place: try again later"
    )


def expired(files: Iterable[DataFile], before: str, queues: Sequence[str] | None = None) -> list[DataFile]:
    """Files of days before `before`, of these queues or of all."""
    return [file for file in files if file.date < before and (queues is None or file.queue in queues)]


def expire(table: LakeTable, old: Sequence[DataFile], floors: Mapping[LaneKey, int]) -> LakeTable:
    """Take files out of the table and raise the floors of their lanes; a vacuum frees the space later."""
    for _ in range(TRIES):
        active = {file.path for file in table.files()}
        if any(file.path not in active for file in old):
            raise LakeConflict(f"files of {table.storage.url} that were to expire are gone: run the job again")
        higher = {lane: floor for lane, floor in floors.items() if floor > (table.floor(*lane) or 0)}
        try:
            return table.replace(old, [], higher)
        except LakeConflict:
            table = table.reopened()
    raise LakeConflict(f"{table.storage.url} changed {TRIES} times while old files were to expire: try again later")


def day_before(days: int, today: dt.date) -> str:
    """The date `days` before today: earlier dates are older than that."""
    return (today - dt.timedelta(days=days)).isoformat()
