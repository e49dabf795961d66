"""The recorded baseline, `bench/instructions.json`, and whether what was counted is worse.

Opcodes are recorded for each minor version of Python, machine instructions for one build of it. Knows only numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.instructions_lib.counting import Counted

FILE: Final = Path(__file__).resolve().parents[1] / "instructions.json"
WORSE: Final = 1.08
"""More than this times the baseline fails."""
RECORDED_SHARE: Final = 0.005
"""Functions that take this part of a path are recorded."""
GREW_SHOWN: Final = 6
COMMITS: Final = "commits"
SERVER: Final = "server opcodes"
CLIENT: Final = "client opcodes"
SERVER_MACHINE: Final = "server instructions"
CLIENT_MACHINE: Final = "client instructions"
OF_ONE_BUILD: Final = frozenset({SERVER_MACHINE, CLIENT_MACHINE})
"""Figures that only compare with those of the same build of Python."""

Row = Mapping[str, Counted]
"""What was counted of a path, by figure."""
Baseline = dict[str, Any]
"""Of one version of Python: `build`, and `paths` with the figures of each."""


class Change(NamedTuple):
    """A figure of a path beside the baseline."""

    path: str
    figure: str
    before: float
    now: float
    grew: list[tuple[str, float]]
    """Functions that take more than they did, and how much; the most first."""

    @property
    def percent(self) -> float:
        return (self.now / self.before - 1) * 100

    @property
    def is_worse(self) -> bool:
        return self.now > self.before * WORSE

    def __str__(self) -> str:
        grew = ", ".join(f"{name} +{more:,.1f}" for name, more in self.grew[:GREW_SHOWN])
        said = f"{self.path}: {self.percent:.1f} % more {self.figure} ({amount(self.before)} → {amount(self.now)})"
        return f"{said}; grew: {grew}" if grew else said


def amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:,.1f}" if number >= 10 else f"{number:,.3g}"


def version() -> str:
    """The minor version of this Python."""
    return ".".join(map(str, sys.version_info[:2]))


def load(file: Path = FILE) -> Baseline | None:
    """The baseline of this Python, if there is one."""
    found: Baseline | None = json.loads(file.read_text()).get(version()) if file.exists() else None
    return found


def record(rows: Mapping[str, Row], file: Path = FILE) -> None:
    """Make what was counted the baseline of this Python; figures that were not counted stay."""
    versions = json.loads(file.read_text()) if file.exists() else {}
    old = versions.get(version(), {"paths": {}})
    paths = old["paths"]
    if old.get("build") != sys.version:
        paths = {
            path: {name: figure for name, figure in figures.items() if name not in OF_ONE_BUILD}
            for path, figures in paths.items()
        }
    for path, row in rows.items():
        paths[path] = paths.get(path, {}) | _as_data(row)
    versions[version()] = {"build": sys.version, "paths": paths}
    file.write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")


def _as_data(row: Row) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for figure, counted in row.items():
        functions = sorted(counted.functions.items(), key=lambda each: -each[1])
        shown = {name: _round(n) for name, n in functions if n >= counted.instructions * RECORDED_SHARE}
        data[figure] = {"a message": _round(counted.instructions), "functions": shown}
    if SERVER in row:
        data[COMMITS] = round(row[SERVER].commits, 5)
    return data


def _round(number: float) -> float:
    return float(f"{number:.5g}")


def compare(path: str, row: Row, baseline: Baseline) -> list[Change]:
    """Every figure that the baseline has too."""
    known = baseline["paths"].get(path, {})
    changes = []
    for figure, counted in row.items():
        if figure in known and (figure not in OF_ONE_BUILD or baseline["build"] == sys.version):
            before = known[figure]
            grew = _grew(before["functions"], counted, before["a message"] * RECORDED_SHARE)
            changes.append(Change(path, figure, before["a message"], counted.instructions, grew))
    if SERVER in row and known.get(COMMITS):
        changes.append(Change(path, COMMITS, known[COMMITS], row[SERVER].commits, []))
    return changes


def _grew(before: Mapping[str, float], now: Counted, unrecorded: float) -> list[tuple[str, float]]:
    """One that is not in the baseline took less than is recorded: so much it had at the most."""
    more = {name: count - before.get(name, unrecorded) for name, count in now.functions.items()}
    return sorted(((name, count) for name, count in more.items() if count > 0), key=lambda each: -each[1])
