"""The benchmark runs, with few messages, so that it never rots; it ends badly if one is lost or comes twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import mariadb, postgres

ROOT = Path(__file__).resolve().parents[2]
THERE = {"postgres": postgres.is_there, "mysql": mariadb.is_there}


@pytest.mark.parametrize("engine", sorted(THERE))
def test_it_counts_every_message_and_prints_sizes(engine: str) -> None:
    if not THERE[engine]():
        pytest.skip(f"there is no server for {engine} here")
    command = [sys.executable, str(ROOT / "bench" / "churn.py"), "--messages", "8000", "--reports", "2"]
    done = subprocess.run(
        [*command, "--engine", engine],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    assert "8,000 messages, 0 lost, 0 twice" in done.stdout
    assert " batches " in done.stdout
