"""`penstock demo` as a visitor runs it: what it shows, how long it takes, and that it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from penstock.cli.checkout import script_environment

SHOWN = [
    "bob  1 ladder  attempt 3  packed",
    "ann  -1 pears  attempt 3  failed: cannot pack a negative number",
    "again offsets 0, 1, 2, 3, 4",
    "still dead: -1 pears, after 3 attempts",
    "redriven: -1 pears, attempt 1",
    "queue orders: 5 published, 5 in the log",
]


def test_the_demo_shows_what_it_says_and_cleans_up(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "penstock", "demo"],
        env=script_environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in SHOWN:
        assert line in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - names, not paths
    assert time.monotonic() - began < 5
