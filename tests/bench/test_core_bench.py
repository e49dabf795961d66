"""The benchmark runs, at a thousandth of its size, so that it never rots; numbers are not looked at, ids are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"workload", "msgs", "msg_per_s", "msg_per_cpu_s", "p50_ms", "p99_ms", "peak_mb", "lost", "duplicated", "note"}
WORKLOADS = {
    "batch-1000": {"batch-1000"},
    "batch-100": {"batch-100"},
    "singles": {"singles-100-callers"},
    "backlog": {"backlog-10k", "backlog-20k"},
    "queues": {"queues-0k"},
    "partitions": {"partitions-1M"},
    "hot-partition": {"quiet-10k", "quiet-10k-beside-hot"},
    "groups": {"publish-1-groups", "deliver-1-groups", "publish-10-groups", "deliver-10-groups"},
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "bench" / "core.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=100)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_workload_runs_and_loses_nothing(name: str, tmp_path: Path) -> None:
    scale = "0.02" if name == "groups" else "0.002"
    done = run(name, "--scale", scale, "--json", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(set(row) == FIELDS for row in rows)
    assert all(row["msgs"] > 0 and row["lost"] == 0 and row["duplicated"] == 0 for row in rows)
    assert {row["workload"] for row in rows} == WORKLOADS[name]
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_workload_is_named() -> None:
    done = run("batch-7")
    assert done.returncode == 2
    assert "batch-7" in done.stderr
    assert "batch-1000" in done.stderr
