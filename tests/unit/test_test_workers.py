"""The tests that share a Spark session really run in one worker, and the others in all: a real pytest with workers.

What decides it is tests/conftest.py, tried here on a made-up folder of tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import SHARED_BY_FILE, unit_of

ROOT = Path(__file__).resolve().parents[2]
FOUR_TESTS = "import pytest, time\n@pytest.mark.parametrize('number', range(4))\ndef test(number): time.sleep(0.05)\n"


FIRST_HALF = ("spark/jobs/archive/test_job.py", "spark/test_kills.py")
SECOND_HALF = ("spark/jobs/triage/test_job.py", "spark/source/test_faults.py")
OTHERS = ("other/test_it.py",)


def workers(output: str, files: tuple[str, ...]) -> list[str]:
    """Which worker ran each of the files' tests."""
    return [
        worker for file in files for worker in re.findall(rf"^\[(gw\d)\] .* PASSED tests/{file}", output, re.MULTILINE)
    ]


def test_a_worker_runs_each_half_of_what_shares_a_session_and_all_run_the_rest(tmp_path: Path) -> None:
    for file in (*FIRST_HALF, *SECOND_HALF, *OTHERS):
        (tmp_path / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / file).write_text(FOUR_TESTS)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-v", "-n", "3", "--dist", "loadgroup", "--long"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the other plugins take seconds to load
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout
    first, second, others = (workers(done.stdout, files) for files in (FIRST_HALF, SECOND_HALF, OTHERS))
    assert (len(first), len(second), len(others)) == (8, 8, 4)
    assert len(set(first)) == len(set(second)) == 1
    assert set(first) != set(second)
    assert set(others) - set(first) - set(second)


def test_a_file_whose_tests_share_a_server_stays_whole() -> None:
    pika, kombu = "tests/clients/amqp/test_pika.py", "tests/clients/amqp/test_kombu.py"
    assert unit_of(f"{pika}::test_one") == unit_of(f"{pika}::test_two[a::b]") == pika
    assert unit_of(f"{kombu}::test_one") == kombu
    lane = "tests/unit/core/lane/test_lane.py"
    assert unit_of(f"{lane}::test_one") != unit_of(f"{lane}::test_two")
    assert [name for name in SHARED_BY_FILE if not (ROOT / name).exists()] == []
