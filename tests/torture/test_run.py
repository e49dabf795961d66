"""A few seconds of torture, so that it never rots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.dev.checkout import script_environment
from tests.databases import postgres
from tests.torture.run import written

RUN = Path(__file__).with_name("run.py")


@pytest.mark.timeout(360)
@pytest.mark.skipif(not postgres.is_there(), reason="there is no PostgreSQL")
@pytest.mark.parametrize("options", [(), ("--proxies",)])
def test_two_nodes_survive_some_seconds(options: tuple[str, ...]) -> None:
    """In networks of their own where the machine allows it, and behind proxies."""
    done = subprocess.run(
        [sys.executable, str(RUN), "--minutes", "0.1", "--nodes", "2", "--seed", "3", "--json", *options],
        env=script_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["verdict"] == "kept"
    assert report["broken"] == []
    assert report["networks"] == ("each in a network of its own" in done.stderr)
    assert not (options and report["networks"])
    assert report["confirmed"] > 100
    assert report["acks_answered"] > 100
    assert "Traceback" not in done.stderr


def test_the_report_tells_what_was_broken() -> None:
    report: dict[str, Any] = {
        "verdict": "kept",
        "minutes": 1.5,
        "faults_injected": {"replica promoted": 2, "node killed": 1},
        "confirmed": 1_000,
        "deliveries": 1_100,
        "deliveries_again": 100,
        "acks_answered": 990,
        "stored_twice": {"readings": 3},
        "calls_failed": 7,
        "broken_promises": 0,
        "broken": [],
    }
    assert "1.5 minutes, 3 faults injected:\n      2  replica promoted\n" in written(report)
    assert "1,000 publishes confirmed, 1,100 deliveries (100 again), 990 acks answered" in written(report)
    assert "3 messages of readings were sent again by MQTT clients and are stored twice\n" in written(report)
    assert "Verdict: nothing lost" in written(report)
    broken = written(report | {"verdict": "broken", "broken_promises": 51, "broken": ["ordered: p0.1 is lost"]})
    assert broken.endswith("Verdict: 51 BROKEN PROMISES\n  ordered: p0.1 is lost")
    assert "nothing lost" not in broken


def test_help_has_examples() -> None:
    done = subprocess.run([sys.executable, str(RUN), "--help"], capture_output=True, text=True, check=True)
    assert "--minutes" in done.stdout
    assert "./penstock torture --minutes 30\n" in done.stdout
