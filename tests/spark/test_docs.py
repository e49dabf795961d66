"""The pages about Spark: their blocks run as all others do, in the session that the tests share, jobs included."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from penstock.cli.main import commands
from tests.docs.test_docs import ON_SPARK, PAGES, Block, blocks, play, run_shell

ABOUT_SPARK = [page for page in PAGES if ON_SPARK in page.read_text() and blocks(page.read_text())]
JOB = "./penstock pipeline "


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ABOUT_SPARK, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(page, tmp_path, monkeypatch, capsys, line_by_line)


def line_by_line(block: Block, page: Path) -> str:
    """Jobs run in this process, where Spark has started; tests/cli/test_pipeline.py starts one as a user would."""
    printed = ""
    for number, line in enumerate(block.source.splitlines(), block.line + 1):
        if line.startswith(JOB):
            done = CliRunner().invoke(commands, shlex.split(line)[1:], prog_name="penstock")
            assert done.exit_code == 0, f"{page.name}, line {number}: {done.output}{done.exception!r}"
            printed += done.stdout
        else:
            printed += run_shell(Block(number, line, None, "sh"), page)
    return printed
