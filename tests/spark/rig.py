"""What the Spark tests stand on: one real server that can be killed and started again, beside one real session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock import Client
from penstock.cli.dev.checkout import script_environment

PATIENCE_S: Final = 60.0
"""How long a test waits for what must happen; only a failing test waits so long."""

LISTENS: Final = re.compile(r"listens on http://127\.0\.0\.1:(\d+) ")
READY: Final = "The API is described at"


def until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait for a condition that something else makes true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.01)


class Server:
    """`penstock serve` in a process of its own, on one file and one port however often it is started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self.output: list[str] = []
        """All that the process printed, of every life."""
        self.port = 0
        self._start()
        self.client = Client(self.url)
        """A client for the test's own thread; it finds the server again after a restart."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: nothing of it gets to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it ends in good order."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again on the same file and port; kills it before if it still runs."""
        self.kill()
        self._start()

    def close(self) -> None:
        self.client.close()
        self.kill()

    def _start(self) -> None:
        command = [sys.executable, "-m", "penstock", "serve", "--store", "penstock.db", "--port", str(self.port)]
        variables = {name: value for name, value in script_environment().items() if not name.startswith("PENSTOCK_")}
        self._process = subprocess.Popen(
            [*command, "--no-amqp", "--no-mqtt", *self._arguments],
            cwd=self._folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: list[str] = []
        # Read all along: a server must never wait for a full pipe.
        self._reader = threading.Thread(target=self._read, args=(self._process, lines), daemon=True)
        self._reader.start()
        until(lambda: any(READY in line for line in list(lines)) or not self.is_running, "the server is ready")
        found = LISTENS.search("".join(list(lines)))
        if found is None:
            self.kill()
            raise AssertionError(f"the server did not start: {''.join(lines)}")
        self.port = int(found[1])

    def _read(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            self.output.append(line)

    def _end(self, number: int) -> None:
        if self.is_running:
            os.kill(self._process.pid, number)
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def end_spark(session: SparkSession) -> None:
    """Ends the session and its JVM, and waits for that: the tests that follow need its memory, and no socket of it."""
    gateway = SparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    # Spark's own attributes: without a gateway the next session of this process starts a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = None
    gateway.proc.stdin.close()  # what tells the JVM that nobody needs it
    gateway.proc.wait(PATIENCE_S)


@contextmanager
def running_server(folder: Path, *arguments: str) -> Iterator[Server]:
    """A server of the test's own, with flags of `penstock serve`, until the block ends."""
    server = Server(folder, *arguments)
    try:
        yield server
    finally:
        server.close()
