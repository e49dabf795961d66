"""What a process does, counted: by `counter.py` as bytecode instructions, or by valgrind as the machine's.

A meter gives the command that runs a Python module under it, begins and ends counting in that process, and says what
was counted, by function. A function is called `FILE:NAME`; of machine instructions `LIBRARY:NAME`. Knows no servers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench.peers_lib.processes import Process, StartFailed
from tools.debian_packages import library_path
from tools.get_databases import ROOT, VALGRIND

COUNTER: Final = Path(__file__).with_name("counter.py")
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.001
"""Between two looks whether something holds."""


class Counts(NamedTuple):
    functions: dict[str, int]
    """Instructions by function."""
    c_calls: int = 0

    @property
    def total(self) -> int:
        return sum(self.functions.values())


class Meter(Protocol):
    def command(self, module: Sequence[str], *, at_start: bool = False) -> list[str]:
        """How the module is run. `at_start`: it counts from the beginning."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the process, beside what it has."""

    def begin(self, process: Process) -> None: ...

    def end(self, process: Process) -> None: ...

    def counts(self, process: Process) -> Counts:
        """What was counted; asked for once, after the end, and ends the process if it must."""


class Opcodes:
    """Bytecode instructions. The same for any build of a minor version of Python, and exact."""

    environment: Mapping[str, str] = {"PYTHONHASHSEED": "0"}

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, module: Sequence[str], *, at_start: bool = False) -> list[str]:
        return [sys.executable, str(COUNTER), str(self._folder), *(["--at-start"] if at_start else []), *module]

    def begin(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGUSR1)
        until_there(self._folder / "counting", process)

    def end(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGUSR2)
        until_there(self._folder / "counts.json", process)

    def counts(self, process: Process) -> Counts:
        found = json.loads((self._folder / "counts.json").read_text())
        functions: Counter[str] = Counter()
        for name, count in found["opcodes"].items():
            if not short(name).startswith("bench/"):  # making messages, and this counting
                functions[short(name)] += count
        return Counts(dict(functions), found["c_calls"])


class Nothing:
    """Counts nothing: the process runs as it does for everybody."""

    environment: Mapping[str, str] = {"PYTHONHASHSEED": "0"}

    def __init__(self, folder: Path) -> None: ...

    def command(self, module: Sequence[str], *, at_start: bool = False) -> list[str]:
        return [sys.executable, "-m", *module]

    def begin(self, process: Process) -> None: ...

    def end(self, process: Process) -> None: ...

    def counts(self, process: Process) -> Counts:
        return Counts({})


class Machine:
    """Machine instructions by valgrind's callgrind. They only compare with those of the same build of Python."""

    def __init__(self, folder: Path) -> None:
        root = VALGRIND.root()
        assert root is not None
        self._out = folder / "callgrind.out"
        self._programs = root / "usr" / "bin"
        self.environment: Mapping[str, str] = {"PYTHONHASHSEED": "0"}
        if root != Path("/"):
            libraries = root / "usr" / "libexec" / "valgrind"
            self.environment = {**self.environment, "VALGRIND_LIB": str(libraries), **library_path(root)}

    def command(self, module: Sequence[str], *, at_start: bool = False) -> list[str]:
        counts = f"--instr-atstart={'yes' if at_start else 'no'}"
        options = ["--tool=callgrind", "--quiet", counts, f"--callgrind-out-file={self._out}"]
        return [str(self._programs / "valgrind"), *options, sys.executable, "-m", *module]

    def begin(self, process: Process) -> None:
        self._ask(process, "instrumentation on")

    def end(self, process: Process) -> None:
        self._ask(process, "instrumentation off")

    def _ask(self, process: Process, what: str) -> None:
        # callgrind_control is a Perl script around this.
        asked = [str(self._programs / "vgdb"), f"--pid={process.pid}", *what.split()]
        subprocess.run(asked, check=True, capture_output=True, timeout=PATIENCE_S, env=os.environ | self.environment)

    def counts(self, process: Process) -> Counts:
        process.stop()
        return Counts(read_callgrind(self._out.read_text(errors="replace")))


def until_there(path: Path, process: Process) -> None:
    until(path.exists, f"did not write {path.name}", process)


def until_said(words: str, process: Process) -> None:
    """Until it has printed that."""
    until(lambda: words in process.log.read_text(errors="replace"), f"did not say {words!r}", process)


def until(holds: Callable[[], bool], missing: str, process: Process) -> None:
    """Wait until something holds; raise where the process ends before, or takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        process.check_alive()
        if time.monotonic() > deadline:
            raise StartFailed(f"the process {missing}. The end of its log:\n{process.tail()}")
        time.sleep(LOOK_S)


def short(function: str) -> str:
    """Without the folders above the package: `penstock/node/clock.py:SystemClock.now_ms`."""
    for folder in (f"{ROOT}/src/", f"{ROOT}/"):
        function = function.removeprefix(folder)
    return re.sub(r"^/.*?/(site-packages|lib/python3\.\d+)/(site-packages/)?", "", function)


def read_callgrind(text: str) -> dict[str, int]:
    """Instructions of each function itself, without those that it calls."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    library = function = ""
    is_call = False
    for line in text.splitlines():
        if line.startswith(("ob=", "fn=")):
            kind, _, name = line.partition("=")
            number, _, named = name.partition(" ")
            name = names.setdefault(kind + number, named or number)
            if kind == "ob":
                library = Path(name).name
            else:
                function = f"{library}:{name}"
        elif line.startswith(("cob=", "cfn=")):  # these name things too
            number, _, named = line.partition("=")[2].partition(" ")
            names.setdefault(line[1:3] + number, named or number)
        elif line.startswith("calls="):
            is_call = True  # the next line has what was called
        elif line[:1] in "0123456789+-*" and line:
            if not is_call:
                found[function] += int(line.split()[1])
            is_call = False
    return dict(found)
