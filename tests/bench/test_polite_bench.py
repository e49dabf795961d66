"""The benchmark runs, with small attacks, so that it never rots; a wrong message is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.polite_lib.attacks import ATTACKS

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "polite.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_made_beside_a_polite_client(attack: str) -> None:
    done = run(attack, "--scale", "0.002", "--seconds", "0.3", "--turns", "1", "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["attack"] == attack
    assert row["last_turn"]["answers"] > 0, row
    assert row["ratio"] > 0, row


def test_the_table_has_a_line_for_each_attack() -> None:
    done = run("polls", "--scale", "0.002", "--seconds", "0.1", "--turns", "1")
    assert done.returncode == 0, done.stderr
    assert [line[:9] for line in done.stdout.splitlines()] == ["| attack ", "| --- | -", "| polls |"]


def test_an_attack_that_there_is_not_is_refused() -> None:
    done = run("earthquake")
    assert done.returncode == 2
    assert "no attack is called 'earthquake'" in done.stderr
