"""A few seconds of torture, so that it never rots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.checkout import script_environment
from tests.databases import postgres

RUN = Path(__file__).with_name("run.py")


@pytest.mark.timeout(240)
@pytest.mark.skipif(not postgres.is_there(), reason="there is no PostgreSQL")
def test_two_nodes_survive_some_seconds() -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), "--minutes", "0.1", "--nodes", "2", "--seed", "3"],
        env=script_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: nothing lost, nothing twice, nothing after an answered ack" in done.stdout
    assert "Traceback" not in done.stderr


def test_help_has_examples() -> None:
    done = subprocess.run([sys.executable, str(RUN), "--help"], capture_output=True, text=True, check=True)
    assert "--minutes" in done.stdout
    assert "./penstock torture --minutes 30\n" in done.stdout
