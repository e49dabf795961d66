"""The tests that share a Spark session really run in one worker, and the others in all: a real pytest with two workers.

What decides it is tests/conftest.py, tried here on a made-up folder of tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOUR_TESTS = "import pytest, time\n@pytest.mark.parametrize('number', range(4))\ndef test(number): time.sleep(0.05)\n"


def workers(output: str, folder: str) -> list[str]:
    """Which worker ran each of the folder's tests."""
    return re.findall(rf"^\[(gw\d)\] .* PASSED tests/{folder}/", output, re.MULTILINE)


def test_one_worker_runs_what_shares_a_session_and_all_run_the_rest(tmp_path: Path) -> None:
    for name in ("spark", "other"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / "test_it.py").write_text(FOUR_TESTS)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-v", "-n", "2", "--dist", "loadgroup"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the other plugins take seconds to load
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout
    assert len(workers(done.stdout, "spark")) == len(workers(done.stdout, "other")) == 4
    assert len(set(workers(done.stdout, "spark"))) == 1
    assert set(workers(done.stdout, "other")) - set(workers(done.stdout, "spark"))
