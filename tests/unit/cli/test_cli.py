"""The command line: help, mistyped names, the stages of `penstock test`, and scripts of the checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.cli.dev import checkout
from penstock.cli.dev import test as stages
from penstock.version import VERSION


def invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main.commands, arguments, prog_name="penstock")
    return done.exit_code, done.output


def test_version() -> None:
    code, output = invoke("version")
    assert code == 0
    assert output.startswith(f"penstock {VERSION} (Python 3.")


@pytest.mark.parametrize("module", ["penstock", "penstock.cli"])
def test_the_package_starts_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "version"]
    done = subprocess.run(command, env=checkout.script_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"penstock {VERSION}")


def every_command(
    command: click.Command = main.commands, *names: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands and groups of them, with the words that call them. Benchmarks are scripts with their own help."""
    yield names, command
    if isinstance(command, click.Group) and names != ("bench",):
        for name, below in sorted(command.commands.items()):
            yield from every_command(below, *names, name)


ALL_COMMANDS = dict(every_command())


@pytest.mark.parametrize("names", ALL_COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(names: tuple[str, ...]) -> None:
    code, output = invoke(*names, "--help")
    assert code == 0
    assert re.search(r"^  Examples?:$", output, re.MULTILINE)
    assert f"penstock {' '.join(names or ['demo'])}" in output


@pytest.mark.parametrize("names", ALL_COMMANDS, ids=" ".join)
def test_every_option_of_every_command_says_what_it_does(names: tuple[str, ...]) -> None:
    for parameter in ALL_COMMANDS[names].params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def examples() -> list[tuple[str, ...]]:
    """The command lines in all helps: each `penstock …` up to the end of the line, a pipe, or a remark behind it."""
    found: set[tuple[str, ...]] = set()
    for _, command in every_command():
        text = (command.help or "").partition("Example")[2]
        for line in re.findall(r"^ *(?:.*[|;(] ?|[A-Z_]+=\S+ )?penstock (.+)$", text, re.MULTILINE):
            plain = re.split(r"  +|\)\"", line)[0]
            words = shlex.split(plain)
            ends = [index for index, word in enumerate(words) if word in ("|", ">")]
            found.add(tuple(words[: min(ends, default=len(words))]))
    return sorted(found)


@pytest.mark.parametrize("words", examples(), ids=" ".join)
def test_every_example_is_a_command_line_that_is_understood(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("letter.pdf", "messages.ndjson"):  # files that examples read
        Path(name).touch()
    command: click.Command = main.commands
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if command.name == "bench" or rest[0] == "COMMAND":
            return
        below = command.commands.get(rest[0])
        assert below is not None, rest[0]
        command = below
        rest.pop(0)
    if "--help" not in rest:
        command.make_context(command.name, rest, resilient_parsing=False)


def test_the_examples_are_found() -> None:
    found = [" ".join(words) for words in examples()]
    assert len(found) > 100
    assert "publish log --lines" in found  # behind a pipe
    assert "completion bash" in found  # inside a shell's brackets
    assert "dead export mail" in found  # before a file


def test_no_command_is_waited_for_by_one_that_does_not_need_it() -> None:
    """`penstock version` imports what commands are made of, not what they work with."""
    source = (
        "import sys, penstock.model, click.shell_completion; before = set(sys.modules); import penstock.cli.main; "
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, env=checkout.script_environment(), capture_output=True, text=True, check=True)
    added = [name for name in done.stdout.split() if not name.startswith("penstock.cli")]
    assert not [name for name in added if name.partition(".")[0] in ("penstock", "rich", "httptools", "asyncio")]


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    code, output = invoke("simulte")
    assert code == 2
    assert "no command 'simulte'. Did you mean 'simulate'?" in output


def test_a_name_like_no_command_is_answered_with_all_of_them() -> None:
    assert "There are: apply, bench, cluster, completion, config, consume, " in invoke("xyzzy")[1]


# Scripts of the checkout ----------------------------------------------------------------------------------


@pytest.fixture
def made_up_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checkout, "root", lambda: tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "core.py").touch()
    (tmp_path / "bench" / "_timing.py").touch()
    return tmp_path


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the process would have become, instead of becoming it."""
    commands: list[list[str]] = []

    def record(_program: str, command: list[str], _environment: dict[str, str]) -> None:
        commands.append(command)

    monkeypatch.setattr("penstock.cli.dev.checkout.os.execve", record)
    return commands


def test_a_benchmark_gets_its_arguments_as_given(made_up_checkout: Path, executed: list[list[str]]) -> None:
    invoke("bench", "core", "--help", "--size", "3", "--", "-x")
    script = str(made_up_checkout / "bench" / "core.py")
    assert executed == [[sys.executable, script, "--help", "--size", "3", "--", "-x"]]


def test_the_benchmarks_are_the_scripts_of_the_folder(made_up_checkout: Path) -> None:
    output = invoke("bench", "--help")[1]
    assert "Run bench/core.py." in output
    assert "_timing" not in output
    assert "Did you mean 'core'?" in invoke("bench", "cor")[1]


def test_the_simulation_gets_its_arguments_as_given(made_up_checkout: Path, executed: list[list[str]]) -> None:
    script = made_up_checkout / "tests" / "simulation" / "run.py"
    script.parent.mkdir(parents=True)
    script.touch()
    invoke("simulate", "--seeds", "5", "--start", "7")
    assert executed == [[sys.executable, str(script), "--seeds", "5", "--start", "7"]]


def test_a_script_that_is_missing_is_named(made_up_checkout: Path) -> None:
    code, output = invoke("simulate")
    assert code == 1
    assert "no tests/simulation/run.py" in output


def test_an_installed_package_says_that_a_checkout_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "__file__", str(tmp_path / "lib" / "site" / "penstock" / "cli" / "checkout.py"))
    with pytest.raises(click.ClickException, match="source checkout only"):
        checkout.root()
    assert "source checkout only" in invoke("bench", "core")[1]
    assert invoke("bench", "--help")[0] == 0


# The stages of `penstock test` ----------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    return record_stages(monkeypatch, failing="")


def record_stages(monkeypatch: pytest.MonkeyPatch, failing: str) -> list[list[str]]:
    """The stages' commands, in the order in which they would have run; the one named `failing` ends with code 1."""
    commands: list[list[str]] = []

    def record(_root: Path, name: str, command: list[str]) -> int:
        commands.append(list(command))
        return int(name == failing)

    monkeypatch.setattr(stages, "stage", record)
    monkeypatch.setattr(stages, "get_databases", lambda _root: None)
    return commands


def test_all_stages_run_and_pytest_is_the_last(ran: list[list[str]]) -> None:
    assert invoke("test")[0] == 0
    assert [command[0] for command in ran] == ["ruff", "ruff", "mypy", "pytest"]


def test_fast_is_pytest_alone_on_all_cores(ran: list[list[str]]) -> None:
    assert invoke("test", "--fast")[0] == 0
    assert [command[:2] for command in ran] == [["pytest", "-n"]]
    # One Spark session for all tests that need one: see tests/conftest.py.
    assert ran[0][3:] == ["--dist", "loadgroup"]


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 3), (16, 17)])
def test_there_is_one_worker_more_than_cores(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)))
    assert stages.workers() == workers


def test_arguments_go_to_pytest_alone_as_given(ran: list[list[str]]) -> None:
    assert invoke("test", "tests/unit", "-k", "layering", "-x")[0] == 0
    assert ran == [["pytest", "tests/unit", "-k", "layering", "-x"]]


@pytest.mark.parametrize("failing", ["ruff check", "ruff format", "mypy", "pytest"])
def test_one_failing_stage_fails_the_whole_and_stops_no_other(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    commands = record_stages(monkeypatch, failing)
    code, output = invoke("test")
    assert code == 1
    assert len(commands) == 4
    assert failing == "pytest" or f"{failing}: FAILED" in output


@pytest.mark.parametrize("arguments", [[], ["--fast"], ["tests/unit"]])
def test_databases_are_got_before_the_first_stage(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    commands = record_stages(monkeypatch, failing="")
    monkeypatch.setattr(stages, "get_databases", lambda _root: commands.append(["databases"]))
    assert invoke("test", *arguments)[0] == 0
    assert [command[0] for command in commands].index("databases") == 0


def test_what_the_tests_start_need_not_be_compiled_each_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "shown.py").write_text("import sys\nprint('writes', not sys.dont_write_bytecode)\n")
    assert stages.stage(tmp_path, "shown", ["shown"]) == 0
    assert "writes True" in capfd.readouterr().out
