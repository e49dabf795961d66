"""Programs in processes of their own, whose output is read line by line; stopped by their own process id."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.clients.amqp.rig import DEADLINE_SECONDS, Address, until

TUTORIALS: Final = Path(__file__).parent / "tutorials"
ROOT: Final = Path(__file__).resolve().parents[3]


class Program:
    """A running Python program."""

    def __init__(self, *arguments: str, folder: Path, **variables: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))} | variables
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    def wait_for(self, text: str) -> Program:
        until(lambda: any(text in line for line in list(self.lines)) or self.process.poll() is not None, f"{text!r}")
        assert any(text in line for line in self.lines), "\n".join(self.lines)
        return self

    def end(self) -> list[str]:
        """Wait until it has ended well; what it printed."""
        code = self.process.wait(DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        assert code == 0, "\n".join(self.lines)
        return self.lines

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Programs:
    """Starts programs of the tutorials, and stops them all in the end."""

    def __init__(self, address: Address, folder: Path, stack: ExitStack) -> None:
        self._address = address
        self._folder = folder
        self._stack = stack

    def start(self, name: str, *arguments: str) -> Program:
        run, program = str(TUTORIALS / "run.py"), str(TUTORIALS / f"{name}.py")
        started = Program(run, str(self._address.port), program, *arguments, folder=self._folder)
        self._stack.callback(started.stop)
        return started

    def run(self, name: str, *arguments: str) -> list[str]:
        return self.start(name, *arguments).end()


@contextmanager
def programs(address: Address, folder: Path) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(address, folder, stack)
