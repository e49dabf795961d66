"""A broker is killed hundreds of times over one file; then every message is accounted for.

Longer: `PENSTOCK_KILLS=2000 pytest tests/crash/test_kill.py`; the same again: `PENSTOCK_KILL_SEED=…`. A seed repeats
what the children do and when they are killed, as far as the machine's own timing allows.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.checker import Checker

KILLS = int(os.environ.get("PENSTOCK_KILLS", "200"))
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120 + KILLS)
def test_no_kill_loses_repeats_or_reorders_what_was_answered(tmp_path: Path) -> None:
    seed = os.environ.get("PENSTOCK_KILL_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_KILL_SEED={seed} PENSTOCK_KILLS={KILLS}")
    worker = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("worker.py")), str(tmp_path), seed, str(KILLS)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert worker.returncode == 0, worker.stdout + worker.stderr
    checker = Checker()
    checker.read(tmp_path / "journal")
    assert checker.faults[:20] == []
    with closing(sqlite3.connect(tmp_path / "penstock.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        live = "SELECT segment, sum(size - length(meta)) FROM batches WHERE segment NOTNULL GROUP BY segment"
        assert dict(connection.execute("SELECT * FROM segments WHERE live_bytes")) == dict(connection.execute(live))
        [(newest,)] = connection.execute("SELECT segment FROM log").fetchall()
    # Segments came and went, those in which something was left among them.
    assert newest > KILLS // 4
    assert len(list((tmp_path / "penstock.db-log").glob("*.log"))) < 40
    # The test itself is worth something only if the children got somewhere.
    assert checker.lives > KILLS // 5
    for queue in ("ordered", "source", "risky", "moved"):
        assert len(checker.queues[queue].acked) > KILLS, queue
    assert len(checker.dead) > KILLS // 10
