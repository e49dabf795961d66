"""`penstock demo` as a visitor runs it: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.dev.checkout import script_environment

SHOWN = [
    r"1\. A server on http://127\.0\.0\.1:\d+",
    r"1,980 paid, each customer's in order; [\d,]+ attempts failed and were repeated; 20 orders are dead letters",
    r"2,000 messages and [\d,]+ delivery events in \d+ Parquet files under a Delta log",
    r"orders +payments",
    r"20 +orders +payments +attempts +.*is not valid",
    r"Delivered counts hand-outs: of the [\d,]+, [\d,]+ were given back unopened, .*; [\d,]+ were repeated\.",
    r"20 redriven, 20 paid, 0 dead letters left",
]


@pytest.mark.timeout(600)
def test_the_demo_shows_what_it_says_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "penstock", "demo"],
        env=script_environment() | {"TMPDIR": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for pattern in SHOWN:
        assert re.search(pattern, done.stdout), f"{pattern} is not in\n{done.stdout}"
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - names, not paths
