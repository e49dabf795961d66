"""CONTRIBUTING's recipes for a method and for a message field: their tables name all the files, and no other."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tools.source import PACKAGE, ROOT

RECIPES: Final = {
    "A method of the API": r"\btrace_event\b|\bTraceEvent",
    "A message field": r"\bcorrelation_id\b",
}
"""What an example of each leaves in every file that it touches."""


def listed(recipe: str) -> set[str]:
    """The files and folders in the table of a recipe, below the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index(f"**{recipe}.**") :]
    rows = re.findall(r"^\| (`.*?) \|", section[: section.index("\n**", 2)], re.MULTILINE)
    return {path for row in rows for path in re.findall(r"`([^`]+)`", row)}


def touched(trace: str) -> set[str]:
    """The files of the package in which the example is."""
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".sql")]
    return {str(path.relative_to(PACKAGE)) for path in files if re.search(trace, path.read_text())}


@pytest.mark.parametrize(("recipe", "trace"), RECIPES.items())
def test_a_recipe_lists_every_file_and_no_other(recipe: str, trace: str) -> None:
    paths, files = listed(recipe), touched(trace)
    assert len(paths) > 5
    assert [path for path in sorted(files) if not any(path == one or path.startswith(one) for one in paths)] == []
    assert [one for one in sorted(paths) if not any(path == one or path.startswith(one) for path in files)] == []
