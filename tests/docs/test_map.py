"""The maps of the source: CONTRIBUTING names every folder, and docs/architecture.md only what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.unit.test_layering import LAYERS

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "penstock"
MAPPED: Final = ("src/penstock", "tests", "bench", "tools", "docs", "examples")
ROW: Final = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)
PATH: Final = re.compile(r"`([a-z0-9_/.]+)`")

NOT_KEPT = {"__pycache__", "results"}
"""Folders that running things leaves behind: bytecode, and what benchmarks have written."""


def folders() -> set[str]:
    """Every folder with a tracked kind of file in it, by its path from the root."""
    places = [path.parent for name in MAPPED for path in (ROOT / name).rglob("*.*") if path.is_file()]
    inside = {place.relative_to(ROOT) for place in places if NOT_KEPT.isdisjoint(place.parts)}
    return {str(folder) for place in inside for folder in (place, *place.parents) if str(folder).startswith(MAPPED)}


def named(page: str) -> set[str]:
    """The folders that the first cells of a page's tables name: `a/b/`."""
    paths = {path for cell in ROW.findall(page) for path in PATH.findall(cell)}
    return {path.rstrip("/") for path in paths if path.endswith("/")}


def test_named_folders_are_found() -> None:
    assert named("| `src/a/`, `src/b/` | what |\n| `c.py` | `d/` |\n") == {"src/a", "src/b"}


def test_contributing_names_every_folder_and_no_other() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    told = named(page[page.index("## Where things are") : page.index("## How the code should feel")])
    there = folders()
    assert (sorted(there - told), sorted(told - there)) == ([], []), "missing in the table, and only in the table"


def test_the_architecture_page_names_only_what_there_is() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = {path for path in PATH.findall(page) if path.endswith((".py", "/"))}
    assert len(paths) > 20
    assert {path for path in paths if not any((base / path).exists() for base in (ROOT, SOURCE))} == set()


def test_the_architecture_page_has_the_layers_that_the_test_holds() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("## Who may import whom") :]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE)
    told = {layer: set(re.findall(r"`([\w.]+)`", others)) for layer, others in rows}
    held = {name or "penstock": {other or "penstock" for other in rule.may_import} for name, rule in LAYERS.items()}
    assert told == held
