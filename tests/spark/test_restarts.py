"""A job of the command line whose Spark cannot start Python workers for a while: it starts again, and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from penstock.cli.dev.checkout import script_environment
from tests.spark.lakes import broker_ids, publish
from tests.spark.rig import PATIENCE_S, Server

DAEMON: Final = """\
import os, sys
from pathlib import Path

left = Path(os.environ["FAILURES"])
count = int(left.read_text())
if count > 0:
    left.write_text(str(count - 1))
    sys.exit(1)

from pyspark.daemon import manager

manager()
"""
"""What Spark starts Python workers with, in place of its own: it fails as often as the file says."""


@pytest.mark.timeout(600)
def test_an_archive_goes_on_when_python_workers_start_again(server: Server, queue: str, tmp_path: Path) -> None:
    publish(server.client, queue, 0, 500)
    (tmp_path / "flaky_daemon.py").write_text(DAEMON)
    failures = tmp_path / "failures"
    failures.write_text("5")
    given = {name: value for name, value in script_environment().items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join(filter(None, [str(tmp_path), given.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "penstock", "pipeline", "archive", queue, "--no-events", "--json"]
    done = subprocess.run(
        [*command, "--url", server.url, "--lake", "lake", "--conf", "spark.python.daemon.module=flaky_daemon"],
        cwd=tmp_path,
        env=given | {"PYTHONPATH": path, "FAILURES": str(failures)},
        capture_output=True,
        text=True,
        check=False,
        timeout=9 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert failures.read_text() == "0"
    summary = json.loads(done.stdout)
    assert summary["rows"] == 500
    assert summary["details"]["restarts"] >= 1
    assert "the job starts again in 1 s (1 of 8)" in done.stderr
    table = DeltaTable(str(tmp_path / "lake" / "messages")).to_pyarrow_table(columns=["queue_id", "lane", "offset"])
    rows = sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    assert rows == broker_ids(server.client, queue)
