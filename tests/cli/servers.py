"""Real servers for tests: child processes of `penstock serve` on free ports, stopped by their own process id."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from penstock.cli.dev.checkout import script_environment

DEADLINE_SECONDS: Final = 30.0
LISTENS: Final = re.compile(r"listens on (http://(\S+):(\d+)) ")


FREE_PORTS = {"PENSTOCK_AMQP_PORT": "0", "PENSTOCK_MQTT_PORT": "0", "PENSTOCK_MQTT_WEBSOCKET_PORT": "0"}
"""Servers of tests run side by side: each takes whatever port is free for what is not asked for by name."""


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's, without what would configure a server, and with what is given."""
    kept = {name: value for name, value in script_environment().items() if not name.startswith("PENSTOCK_")}
    return kept | variables


def penstock(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=folder,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not in {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.01)


class Server:
    """A running `penstock serve`; everything that it printed is in `output` and `errors` line by line."""

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        variables: Mapping[str, str],
        limits: tuple[int, int] | None = None,
    ) -> None:
        """`limits` are the soft and the hard number of files that it may open."""
        command = [sys.executable, "-m", "penstock", "serve", *arguments]
        if limits is not None:
            soft, hard = (str(limit) if limit >= 0 else "unlimited" for limit in limits)
            command = ["bash", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "bash", *command]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment(**{**FREE_PORTS, **variables}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output: list[str] = []
        self.errors: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        # Read all along: a server must never wait for a full pipe.
        self._readers = [
            threading.Thread(target=lines.extend, args=(pipe,))
            for lines, pipe in ((self.output, self.process.stdout), (self.errors, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def wait_ready(self) -> Server:
        until(lambda: bool(self.text_of_end) or self.process.poll() is not None, "the server says where it listens")
        assert self.process.poll() is None, "".join(self.errors)
        return self

    @property
    def text_of_end(self) -> str:
        """The last line of what it prints when it is ready."""
        return next((line for line in list(self.output) if line.startswith("The API is described at")), "")

    @property
    def url(self) -> str:
        found = LISTENS.search(self.output[0])
        assert found is not None
        return found[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """What a page says that is no JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        code = self.process.wait(DEADLINE_SECONDS)
        for reader in self._readers:
            reader.join(DEADLINE_SECONDS)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.end()


@contextmanager
def running(folder: Path, *arguments: str, limits: tuple[int, int] | None = None, **variables: str) -> Iterator[Server]:
    """A server on a free port, until the block ends."""
    server = Server(folder, ("--port", "0", *arguments), variables, limits)
    try:
        yield server.wait_ready()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.end()
