"""The benchmark runs, with few connections, so that it never rots; it ends badly if one of them is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "connections.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


@pytest.mark.parametrize("kind", ["amqp", "amqp-consumer", "mqtt", "poll"])
def test_it_opens_connections_that_answer_and_prints_memory(kind: str) -> None:
    done = run("--kind", kind, "--connections", "30", "--idle", "0.1")
    assert done.returncode == 0, done.stderr
    assert "30 idle connections, all of which answered" in done.stdout
    assert " KB each" in done.stdout


def test_no_connections_are_refused() -> None:
    done = run("--connections", "0")
    assert done.returncode == 2
    assert "--connections must be at least 1" in done.stderr
