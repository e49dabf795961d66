"""Running commands against a server: in this process, as a child of its own, or on a terminal of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from click.testing import CliRunner, Result

from penstock.cli.main import commands
from tests.cli.servers import DEADLINE_SECONDS, Server, clean_environment


class Cli:
    """A user of one namespace."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.variables = {"PENSTOCK_URL": server.url, "PENSTOCK_NAMESPACE": namespace, "COLUMNS": "80", "TZ": "UTC"}

    def invoke(self, *arguments: str, stdin: str | bytes | None = None, **variables: str) -> Result:
        """Run a command in this process, whatever becomes of it."""
        return CliRunner().invoke(
            commands, arguments, input=stdin, env=self.variables | variables, prog_name="penstock"
        )

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        """Run a command that must succeed; what it printed."""
        done = self.invoke(*arguments, stdin=stdin)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        return json.loads(self(*arguments, "--json", stdin=stdin))

    def lines(self, *arguments: str) -> list[Any]:
        """Of a command that prints a stream of JSON objects."""
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]

    def fails(self, *arguments: str, code: int = 1, stdin: str | bytes | None = None) -> str:
        """Run a command that must fail with this exit code; what it said on stderr."""
        done = self.invoke(*arguments, stdin=stdin)
        assert done.exit_code == code, (done.output, done.exception)
        assert "Traceback" not in done.stderr
        return done.stderr

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the server without any of Penstock's own code in between."""
        separator = "&" if "?" in path else "?"
        status, data = self.server.request(method, f"{path}{separator}namespace={self.namespace}", body)
        assert status < 300, data
        return data

    def stats(self, queue: str, group: str = "default") -> dict[str, Any]:
        """A group's counts, as the server tells them."""
        groups = self.request("GET", f"/v1/queues/{quote(queue, safe='')}/stats")["groups"]
        return next((one for one in groups if one["group"] == group), {})

    def log(self, queue: str) -> list[dict[str, Any]]:
        """Everything that is in a queue, as the server tells it."""
        found: list[dict[str, Any]] = self.request("GET", f"/v1/queues/{queue}/log?max=20000")["messages"]
        return found

    def kill(self, queue: str, *payloads: str, error: str = "broken") -> None:
        """Publish messages and reject them: dead letters."""
        for payload in payloads:
            self("publish", queue, payload)
        self("consume", queue, "--reject", "--error", error)

    # As processes -----------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        return clean_environment(**self.variables, PYTHONUNBUFFERED="1")

    @contextmanager
    def child(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    @contextmanager
    def on_terminal(self, *arguments: str, folder: Path | None = None) -> Iterator[Terminal]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            env=self.environment() | {"TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=folder,
        )
        os.close(theirs)
        with process:
            try:
                yield Terminal(process, ours)
            finally:
                if process.poll() is None:
                    process.kill()
                os.close(ours)


class Terminal:
    """A command that believes that a person looks at it."""

    def __init__(self, process: subprocess.Popen[bytes], number: int) -> None:
        self.process = process
        self._number = number
        self.seen = b""

    def until(self, text: str) -> str:
        """Read until a text comes up; everything so far."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen
            assert self._read(), self.seen
        return self.seen.decode()

    def _read(self) -> bool:
        try:
            data = os.read(self._number, 65_536)
        except OSError:  # the other end is closed
            return False
        self.seen += data
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._number, text.encode())

    def end(self) -> int:
        """Everything that comes until the command ends; its exit code."""
        while self._read():
            pass
        return self.process.wait(DEADLINE_SECONDS)


def interrupt(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """Ctrl+C; the exit code and stderr."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, errors.decode()


def first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()
