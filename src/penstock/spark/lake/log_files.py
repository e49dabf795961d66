"""The files of a Delta log on a local disk: made durable after a commit, mended after a power cut.

`deltalake` writes a log entry and links it into place, but never fsyncs. Until we did, a power cut may leave the newest
entry empty or cut short under its final name; nothing was promised on it yet, so it is put aside. Everything here is
nothing at all for an object store (`root` is None).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from penstock.spark.lake.errors import LakeDamaged
from penstock.spark.lake.storage import sync

LOG: Final = "_delta_log"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PARQUET_END: Final = b"PAR1"
NEWEST: Final = 3
"""Checkpoints that are never spare: a reader may just have opened one."""
DAY_S: Final = 86_400


def settle(root: Path | None, after: int, version: int) -> None:
    """Entries of versions in (after, version] and their names are on the disk; a checkpoint's were before it."""
    if root is None or after >= version:
        return
    folder = root / LOG
    checkpoint = max(_numbers(folder, _CHECKPOINT), default=-1)
    for number in _numbers(folder, _ENTRY):
        if max(after, checkpoint) < number <= version:
            sync(folder / f"{number:020}.json")
    sync(folder)


def settle_new_table(root: Path | None) -> None:
    """The folders above a new log: any of them may have been made for the lake."""
    if root is None:
        return
    settle(root, -1, 0)
    near, far = list(root.parents)[:2], list(root.parents)[2:]
    for folder in (root, *near):
        sync(folder)
    for folder in far:
        with suppress(OSError):  # one that may not be opened, or cannot be synced, was there before
            sync(folder)


def settle_checkpoint(root: Path | None, version: int) -> None:
    """A checkpoint and the hint that points to it."""
    if root is None:
        return
    folder = root / LOG
    for path in (folder / f"{version:020}.checkpoint.parquet", folder / "_last_checkpoint", folder):
        if path.exists():
            sync(path)


def spare_checkpoints(files: Iterable[tuple[str, float]]) -> list[str]:
    """Of the log's files, by name and time of the last change: checkpoints that no reader needs.

    The newest are for readers of now. Of the others one a day is enough to read any version in a moment: what lies
    between is in the entries themselves.
    """
    checkpoints = sorted((name, changed) for name, changed in files if _CHECKPOINT.fullmatch(name))[:-NEWEST]
    spare = []
    for before, (name, changed) in pairwise([("", -DAY_S), *checkpoints]):
        if before[1] // DAY_S == changed // DAY_S:
            spare.append(name)
    return spare


def mend(root: Path | None) -> list[Path]:
    """Put aside what a power cut left unfinished at the end of the log; what was put aside."""
    if root is None or not (root / LOG).is_dir():
        return []
    folder = root / LOG
    aside = []
    for number in sorted(_numbers(folder, _CHECKPOINT), reverse=True):
        path = folder / f"{number:020}.checkpoint.parquet"
        if _ends_well(path):
            break
        # Only shortens the way: without it the entries themselves are read.
        aside.append(_put_aside(path))
    hint = folder / "_last_checkpoint"
    if aside or (hint.exists() and not _is_json(hint.read_bytes())):
        hint.unlink(missing_ok=True)
    aside += _mend_entries(folder)
    return aside


def _mend_entries(folder: Path) -> list[Path]:
    checkpoint = max(_numbers(folder, _CHECKPOINT), default=-1)
    numbers = sorted(number for number in _numbers(folder, _ENTRY) if number > checkpoint)
    torn = [number for number in numbers if not _is_json((folder / f"{number:020}.json").read_bytes())]
    if not torn:
        return []
    if torn != numbers[-1:]:
        raise LakeDamaged(
            f"the Delta log entry {folder / f'{torn[0]:020}.json'} is not readable, and newer ones follow it: this is "
            "no power cut but a damaged disk. Bring the file back from a backup, or begin a new lake"
        )
    return [_put_aside(folder / f"{torn[0]:020}.json")]


def _put_aside(path: Path) -> Path:
    place = path.with_name(path.name + ".torn")
    path.rename(place)
    sync(path.parent)
    return place


def _is_json(content: bytes) -> bool:
    """One or more lines, each a JSON document."""
    try:
        return bool([json.loads(line) for line in content.splitlines()])
    except ValueError:
        return False


def _ends_well(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == _PARQUET_END and file.seek(-4, 2) > 4 and file.read() == _PARQUET_END


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    found = (pattern.fullmatch(path.name) for path in folder.iterdir())
    return [int(match[1]) for match in found if match]
