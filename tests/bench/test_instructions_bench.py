"""No path of a message takes 8 % more instructions than the recorded baseline, and the comparison would tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.instructions_lib import baseline, report
from bench.instructions_lib.baseline import CLIENT, CLIENT_MACHINE, SERVER, SERVER_MACHINE
from bench.instructions_lib.client import RUNS
from bench.instructions_lib.counting import Counted, count_client, count_server
from bench.instructions_lib.meters import Opcodes, read_callgrind
from bench.instructions_lib.paths import PATHS

ROOT = Path(__file__).resolve().parents[2]
SERVED = ["publish", "claim", "next", "publish-100", "claim-100", "fan-out", "amqp", "mqtt"]
"""Those that are counted in seconds, and need no database."""


# The figures of this checkout ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SERVED)
def test_a_path_of_the_server_takes_no_more_than_the_baseline(path: str) -> None:
    known = baseline_of_this_python()
    judge(path, {SERVER: count_server(PATHS[path], Opcodes)}, known)


@pytest.mark.parametrize("path", sorted(RUNS.keys() & set(SERVED)))
def test_a_path_of_the_client_takes_no_more_than_the_baseline(path: str) -> None:
    known = baseline_of_this_python()
    judge(path, {CLIENT: count_client(PATHS[path], Opcodes)}, known)


def baseline_of_this_python() -> baseline.Baseline:
    known = baseline.load()
    if known is None:
        pytest.skip(f"bench/instructions.json has no baseline for Python {baseline.version()}: nothing to compare with")
    return known


def judge(path: str, row: baseline.Row, known: baseline.Baseline) -> None:
    changes = baseline.compare(path, row, known)
    assert changes, f"the baseline has no {path}: ./penstock bench instructions {path} --record"
    worse = [str(change) for change in changes if change.is_worse]
    assert not worse, "\n".join([*worse, "If it must be so: ./penstock bench instructions --record, and say why"])


def test_the_baseline_has_every_path() -> None:
    assert baseline_of_this_python()["paths"].keys() == PATHS.keys()


# The comparison -----------------------------------------------------------------------------------------------


def counted(commits: float = 0.5, **functions: float) -> Counted:
    named = {f"penstock/lane.py:{name}": count for name, count in functions.items()}
    return Counted(sum(named.values()), named, 1.0, commits)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A baseline of one path."""
    recorded = tmp_path / "instructions.json"
    baseline.record({"claim": {SERVER: counted(append=600, seal=400)}}, recorded)
    return recorded


def changes_to(file: Path, now: Counted, figure: str = SERVER) -> list[baseline.Change]:
    known = baseline.load(file)
    assert known is not None
    return baseline.compare("claim", {figure: now}, known)


def test_eight_percent_more_is_borne_and_one_opcode_beyond_is_not(file: Path) -> None:
    assert not any(change.is_worse for change in changes_to(file, counted(append=680, seal=400)))
    assert [change.is_worse for change in changes_to(file, counted(append=681, seal=400))] == [True, False]


def test_a_worse_path_names_what_grew_and_by_how_much(file: Path) -> None:
    [change, _] = changes_to(file, counted(append=590, seal=450, route=100))
    assert str(change) == (
        "claim: 14.0 % more server opcodes (1,000 → 1,140); "
        "grew: penstock/lane.py:route +95.0, penstock/lane.py:seal +50.0"
    )


def test_more_commits_are_worse_too(file: Path) -> None:
    worse = [change for change in changes_to(file, counted(commits=1.0, append=600, seal=400)) if change.is_worse]
    assert [str(change) for change in worse] == ["claim: 100.0 % more commits (0.5 → 1)"]


def test_less_is_no_fault(file: Path) -> None:
    assert not any(change.is_worse for change in changes_to(file, counted(commits=0.1, append=60, seal=40)))


def test_another_python_has_no_baseline(file: Path) -> None:
    file.write_text(file.read_text().replace(f'"{baseline.version()}"', '"3.0"'))
    assert baseline.load(file) is None


def test_machine_instructions_compare_with_those_of_the_same_build_alone(file: Path) -> None:
    baseline.record({"claim": {SERVER_MACHINE: counted(append=10)}}, file)
    assert [change.figure for change in changes_to(file, counted(append=20), SERVER_MACHINE)] == [SERVER_MACHINE]
    known = baseline.load(file)
    assert known is not None
    known["build"] = "another"
    assert baseline.compare("claim", {SERVER_MACHINE: counted(append=20)}, known) == []


def test_recording_some_keeps_the_others(file: Path) -> None:
    baseline.record({"next": {SERVER: counted(append=1)}, "claim": {CLIENT: counted(append=2)}}, file)
    known = baseline.load(file)
    assert known is not None
    assert known["paths"].keys() == {"claim", "next"}
    assert known["paths"]["claim"].keys() == {SERVER, CLIENT, "commits"}


# What is shown ------------------------------------------------------------------------------------------------


def test_the_table_has_a_column_for_every_figure(file: Path) -> None:
    row = {figure: counted(append=1140) for figure in (SERVER, CLIENT, SERVER_MACHINE, CLIENT_MACHINE)}
    changes = changes_to(file, row[SERVER])
    plain = report.line("claim", row, changes, machine=False)
    assert plain == "| claim 1 + ack 1, 4 consumers (`claim`) | 1,140 | 1 | 1,140 | 0.5 | +14.0 % (!) |"
    for machine in (False, True):
        titles = report.head(machine=machine).splitlines()[0]
        assert titles.count("|") == report.line("claim", row, changes, machine=machine).count("|")


def test_modules_and_functions_stand_with_their_share() -> None:
    text = report.where(SERVER, counted(append=75, seal=25), 1)
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "server opcodes, modules:",
        "100.0 100.0% penstock/lane.py",
        "server opcodes, functions:",
        "75.0 75.0% penstock/lane.py:append",
    ]


def test_callgrind_gives_what_a_function_does_itself() -> None:
    text = "ob=(1) /usr/lib/libc.so.6\nfl=(1) a.c\nfn=(1) copy\n10 5\n+1 7\ncob=(2) /usr/bin/python3\ncfn=(2) main\n"
    text += "calls=3 20\n12 1000\n13 2\n\nob=(2)\nfn=(2)\n* 40\ntotals: 54\n"
    assert read_callgrind(text) == {"libc.so.6:copy": 14, "python3:main": 40}


def test_a_path_that_there_is_not_is_refused() -> None:
    command = [sys.executable, str(ROOT / "bench" / "instructions.py"), "detour"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 2
    assert "no path is called 'detour'" in done.stderr
