"""Every Python block of the documentation runs, and prints what the page says that it prints.

The blocks of a page run in order, in one namespace, in an empty folder; `await` may stand at the top level, as in
`python -m asyncio`. Where a ```text block follows a ```python block, it is what the block printed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from penstock.cli.checkout import script_environment

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
README_LINES_MAX: Final = 12


class Block(NamedTuple):
    line: int
    source: str
    expected: str | None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page, each with the text block that comes next, if nothing but empty lines is between."""
    found: list[Block] = []
    matches = list(FENCED.finditer(text))
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        if match[1] != "python":
            continue
        expected = None
        if following is not None and following[1] == "text" and not text[match.end() : following.start()].strip():
            expected = following[2]
        found.append(Block(text.count("\n", 0, match.start()) + 1, match[2], expected))
    return found


def test_blocks_are_found() -> None:
    text = "a\n```python\nx = 1\n```\nb\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    assert blocks(text) == [Block(2, "x = 1\n", None), Block(6, "print(x)\n", "1\n")]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text())], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    with asyncio.Runner() as runner:
        for block in blocks(page.read_text()):
            run(block, page, namespace, runner)
            printed = capsys.readouterr().out
            if block.expected is not None:
                assert printed == block.expected, f"{page.name}, line {block.line}"
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.suffix != ".db") == []


def run(block: Block, page: Path, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    # Empty lines in front give the page's own line numbers to tracebacks.
    source = "\n" * block.line + block.source
    result = eval(compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    if inspect.iscoroutine(result):
        runner.run(result)


def test_the_readme_has_one_short_example_that_is_a_whole_program(tmp_path: Path) -> None:
    [block] = blocks((ROOT / "README.md").read_text())
    assert len(block.source.splitlines()) <= README_LINES_MAX
    command = [sys.executable, "-W", "error", "-c", block.source]
    done = subprocess.run(
        command, cwd=tmp_path, env=script_environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", block.expected)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        linked = (page.parent / target) if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor[1:] in anchors(linked.read_text()), f"{page.name} links to {target}{anchor}"


def anchors(text: str) -> set[str]:
    """The headings of a page, as GitHub names them in addresses."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
