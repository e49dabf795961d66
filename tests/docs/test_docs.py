"""Every Python and shell block of the documentation runs, and prints what the page says that it prints.

The blocks of a page run in order, Python ones in one namespace, in an empty folder; `await` may stand at the top level,
as in `python -m asyncio`. Where a ```text block follows a block, it is what the block printed. A page that speaks of
the server's address gets a server of its own, on a free port; one that speaks of a database gets that too.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from penstock.cli.dev.checkout import script_environment
from tests.cli.servers import running
from tests.curl import CURL
from tests.databases.django_default import django_default
from tests.databases.postgres import fresh_database

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
README: Final = ROOT / "README.md"
README_LINES_MAX: Final = 119
WORKER_LINES_MAX: Final = 12

SERVER: Final = "http://127.0.0.1:7333"
DATABASE: Final = "postgresql://shop@127.0.0.1:5432/shop"
"""A page that speaks of it gets an empty database, in which its server has its store."""
SERVER_URL: Final = re.compile(r"http://127\.0\.0\.1:\d+")


class Block(NamedTuple):
    line: int
    source: str
    expected: str | None
    kind: str = "python"


def blocks(text: str) -> list[Block]:
    """The blocks of a page that run, each with the text block that comes next, if only empty lines are between."""
    found: list[Block] = []
    matches = list(FENCED.finditer(text))
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        if match[1] not in ("python", "sh"):
            continue
        expected = None
        if following is not None and following[1] == "text" and not text[match.end() : following.start()].strip():
            expected = following[2]
        found.append(Block(text.count("\n", 0, match.start()) + 1, match[2], expected, match[1]))
    return found


def test_blocks_are_found() -> None:
    text = "a\n```python\nx = 1\n```\nb\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    assert blocks(text) == [Block(2, "x = 1\n", None), Block(6, "print(x)\n", "1\n")]


ON_SPARK: Final = "penstock.spark"
"""A page that imports it runs beside the other tests of Spark, in their session: tests/spark/test_docs.py."""


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != README and blocks(page.read_text()) and ON_SPARK not in page.read_text()],
    ids=lambda page: page.name,
)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = play(page, tmp_path, monkeypatch, capsys)
    kept = (".db", ".db-log", ".toml")
    assert sorted(path.suffix for path in folder.iterdir() if path.is_file() and path.suffix not in kept) == []


def play(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shell: Callable[[Block, Path], str] | None = None,
) -> Path:
    """Run the blocks of a page; gives the folder that they ran in."""
    text = page.read_text()
    with ExitStack() as stack:
        store: list[str] = []
        if DATABASE in text:
            url = stack.enter_context(fresh_database())
            text = text.replace(DATABASE, url)
            store = ["--store", url]
            django_default(url)
        if SERVER in text:
            server_folder = tmp_path / "server"
            server_folder.mkdir()
            text = text.replace(SERVER, stack.enter_context(running(server_folder, *store)).url)
            monkeypatch.setenv("PENSTOCK_URL", SERVER_URL.findall(text)[0])
        folder = tmp_path / "work"
        folder.mkdir()
        monkeypatch.chdir(folder)
        namespace: dict[str, Any] = {}
        runner = stack.enter_context(asyncio.Runner())
        for block in blocks(text):
            if block.kind == "sh":
                printed = (shell or run_shell)(block, page)
            else:
                run(block, page, namespace, runner)
                printed = capsys.readouterr().out
            if block.expected is not None:
                assert printed == block.expected, f"{page.name}, line {block.line}"
    return folder


def run_shell(block: Block, page: Path) -> str:
    """As somebody would paste it, the checkout's launcher being the command line of this environment."""
    launcher = f'"{sys.executable}" -m penstock'
    script = "set -eu -o pipefail\n" + CURL + block.source.replace("./penstock", launcher)
    done = subprocess.run(
        ["bash", "-c", script], env=script_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{page.name}, line {block.line}: {done.stderr}{done.stdout}"
    # Answers end without a line feed; the page shows each on a line.
    return done.stdout if done.stdout.endswith("\n") else done.stdout + "\n"


def run(block: Block, page: Path, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    # Empty lines in front give the page's own line numbers to tracebacks.
    source = "\n" * block.line + block.source
    result = eval(compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    if inspect.iscoroutine(result):
        runner.run(result)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= README_LINES_MAX


def test_the_worker_of_the_readme_works_and_stops(tmp_path: Path) -> None:
    [block] = blocks(README.read_text())
    assert len(block.source.splitlines()) <= WORKER_LINES_MAX
    assert block.expected is not None
    with running(tmp_path) as server:
        command = [sys.executable, "-u", "-W", "error", "-c", block.source.replace(SERVER, server.url)]
        with subprocess.Popen(
            command, env=script_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            printed = worker.stdout.readline()
            worker.terminate()
            rest, errors = worker.communicate(timeout=30)
        assert (worker.returncode, errors, printed + rest) == (0, "", block.expected)
        groups = server.request("GET", "/v1/queues/orders/stats")[1]["groups"]
        assert [(group["lag"], group["dead"]) for group in groups] == [(0, 0)]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_row_of_a_table_is_one_line(page: Path) -> None:
    lines = FENCED.sub("", page.read_text()).splitlines()
    assert [line for line in lines if line.startswith("|") and not line.endswith("|")] == []
