"""A reader of Delta tables that follows the published protocol and shares no code with what writes ours.

The newest checkpoint at or below the wanted version, found by `_last_checkpoint` or by listing, then the entries after
it: `add` and `remove` by path. Rows come from the Parquet files that are left.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq


def active_files(table: Path, version: int | None = None) -> set[str]:
    """The paths of the files that a version of the table has."""
    log = table / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json"))
    wanted = newest if version is None else version
    base = _checkpoint(log, wanted, use_hint=version is None)
    files: set[str] = set()
    if base is not None:
        rows = pq.read_table(log / f"{base:020}.checkpoint.parquet", columns=["add"]).to_pylist()
        files |= {row["add"]["path"] for row in rows if row["add"] is not None}
    for number in range(0 if base is None else base + 1, wanted + 1):
        for action in map(json.loads, (log / f"{number:020}.json").read_text().splitlines()):
            _apply(action, files)
    return {unquote(path) for path in files}


def _checkpoint(log: Path, wanted: int, *, use_hint: bool) -> int | None:
    hint = log / "_last_checkpoint"
    if use_hint and hint.exists():
        return int(json.loads(hint.read_text())["version"])
    found = [
        int(match[1]) for path in log.iterdir() if (match := re.fullmatch(r"(\d{20})\.checkpoint\.parquet", path.name))
    ]
    return max((number for number in found if number <= wanted), default=None)


def _apply(action: dict[str, Any], files: set[str]) -> None:
    if "add" in action:
        files.add(action["add"]["path"])
    if "remove" in action:
        files.discard(action["remove"]["path"])


def identities(table: Path, version: int | None = None) -> list[tuple[int, int, int]]:
    """(queue id, lane, offset) of every row of a version, those that are there twice twice."""
    names = ["queue_id", "lane", "offset"]
    found: list[tuple[int, int, int]] = []
    for path in active_files(table, version):
        rows = pq.ParquetFile(table / path).read(columns=names)
        found += zip(*(rows[name].to_pylist() for name in names), strict=True)
    return sorted(found)
