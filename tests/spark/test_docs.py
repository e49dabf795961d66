"""The pages about Spark: their blocks run as all others do, in the session that the tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.test_docs import ON_SPARK, PAGES, blocks, play

ABOUT_SPARK = [page for page in PAGES if ON_SPARK in page.read_text() and blocks(page.read_text())]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ABOUT_SPARK, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(page, tmp_path, monkeypatch, capsys, seconds=240)  # each command starts a session of its own
