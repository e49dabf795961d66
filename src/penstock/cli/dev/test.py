"""`penstock test`: the stages that CI runs. pytest comes last, because CI reads the last line that it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from penstock.cli.dev import checkout

FOLDERS: Final = ("src", "tests", "bench", "requirements", "tools", "examples")
WORKERS_MIN: Final = 2
WAITING_WORKERS: Final = 1
"""Workers beyond the cores: many tests wait for a server, a lease or a killed process, and leave the core idle."""


def run(fast: bool, pytest_arguments: Sequence[str]) -> int:
    """Runs the stages and gives the exit code: 0 only if all of them passed."""
    root = checkout.root()
    get_databases(root)
    if pytest_arguments:
        return stage(root, "pytest", ["pytest", *pytest_arguments])
    checks_failed = False if fast else run_checks(root) > 0
    # The tests that share a Spark session go to one worker, all others to any free worker: tests/conftest.py.
    tests_code = stage(root, "pytest", ["pytest", "-n", str(workers()), "--dist", "loadgroup"])
    return tests_code or int(checks_failed)


def get_databases(root: Path) -> None:
    """Get the servers that no wheel brings, where they are missing; tests without theirs are skipped and say why."""
    subprocess.run([sys.executable, "-m", "tools.get_databases"], cwd=root, check=False)


def run_checks(root: Path) -> int:
    """Runs the stages before pytest and sums them up; gives how many failed."""
    codes = {name: stage(root, name, command) for name, command in checks(root).items()}
    heading("checks")
    for name, code in codes.items():
        click.echo(f"{name}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return sum(code != 0 for code in codes.values())


def checks(root: Path) -> dict[str, list[str]]:
    # mypy takes a folder without Python files for a mistake.
    folders = [folder for folder in FOLDERS if next((root / folder).rglob("*.py"), None)]
    return {
        "ruff check": ["ruff", "check", *folders],
        "ruff format": ["ruff", "format", "--check", *folders],
        "mypy": ["mypy", "--strict", *folders],
    }


def stage(root: Path, name: str, command: Sequence[str]) -> int:
    heading(name)
    # Hundreds of servers and Spark's own processes are started: compiling again would be half of each start.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-m", *command], cwd=root, check=False, env=environment).returncode


def heading(name: str) -> None:
    click.secho(f"\n== {name} ==", bold=True)
    sys.stdout.flush()  # the stage writes to the same place by its own hand


def workers() -> int:
    """One more than the cores that this process may use; two at least, so that tests always meet a parallel run."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(WORKERS_MIN, allowed + WAITING_WORKERS)
