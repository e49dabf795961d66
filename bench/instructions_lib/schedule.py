"""The server that is counted, and a schedule of its callers that is the same in every run.

What a server does depends on what arrives together: callers that share a turn of its event loop share a commit. So
all callers take a step together: the server is stopped (SIGSTOP) while their requests are written, goes on, and has
answered all and come to rest before the next step. Knows no protocol.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.instructions_lib.lines import HttpLine, http_request
from bench.instructions_lib.meters import Meter, until, until_said
from bench.peers_lib.processes import Process
from tools.get_databases import ROOT

LEASE_MS: Final = 600_000
HEARTBEAT_MS: Final = 60_000
LOOKS: Final = 3
"""Looks in a row that find a server asleep, and nothing done between them: then it is at rest."""


class Server:
    """`penstock serve` under a meter, on ports of its own."""

    def __init__(self, folder: Path, meter: Meter, store: str = "", *, at_start: bool = False) -> None:
        self.meter = meter
        module = [
            "penstock.cli" if at_start else "bench.instructions_lib.steady",
            "serve",
            "--store",
            store or str(folder / "penstock.db"),
        ]
        module += ["--port", "0", "--amqp-port", "0", "--mqtt-port", "0", "--mqtt-websocket-port", "0"]
        module += ["--set", "log.level=warning", "--set", "mqtt.sys_interval_s=0"]
        if store:  # it is stopped again and again, and slow under valgrind: nobody is there to take its queues
            module += ["--set", f"cluster.lease_ms={LEASE_MS}", "--set", f"cluster.heartbeat_ms={HEARTBEAT_MS}"]
        environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1", **meter.environment}
        environment["PYTHONDONTWRITEBYTECODE"] = ""  # what is set outside must not move the figure of a start
        command = meter.command(module, at_start=at_start)
        self.process = Process(command, folder / "server.log", environment, folder)

    def wait_until_ready(self) -> None:
        """Until it says that it listens: a connection would be something to do."""
        until_said("Ctrl+C stops the server", self.process)
        self.rest()
        self.port, self.amqp_port, self.mqtt_port = (self._port(protocol) for protocol in ("http", "amqp", "mqtt"))

    def _port(self, protocol: str) -> int:
        found = re.search(rf"{protocol}://[^:/]+:(\d+)", self.process.log.read_text())
        assert found is not None, f"it did not say where {protocol} is"
        return int(found[1])

    def rest(self) -> None:
        """Wait until it has nothing to do."""
        seen, before = 0, -1

        def rests() -> bool:
            nonlocal seen, before
            now = asleep(self.process.pid)
            seen = seen + 1 if now is not None and now == before else 0
            before = -1 if now is None else now
            return seen >= LOOKS

        until(rests, "does not come to rest", self.process)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It stands still while the block is carried out."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            until(lambda: all(state == "T" for state in states(self.process.pid)), "does not stop", self.process)
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def commits(self) -> int:
        line = HttpLine(self.port)
        try:
            text = line.ask(http_request("GET", "/metrics")).decode()
        finally:
            line.close()
        [found] = [line for line in text.splitlines() if line.startswith("penstock_commits_total ")]
        return int(float(found.split()[1]))


def step(server: Server, lines: Sequence[HttpLine], requests: Sequence[bytes]) -> list[bytes]:
    """Each line asks one thing, all in the same moment; the answers' bodies."""
    with server.stopped():
        for line, request in zip(lines, requests, strict=True):
            line.send(request)
    answers = [line.hear() for line in lines]
    server.rest()
    return answers


def states(pid: int) -> Iterator[str]:
    """Of each thread one letter, as `ps` has them."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def asleep(pid: int) -> int | None:
    """How often the threads of a process have gone to sleep so far, if all of them sleep now."""
    times = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = dict(
                line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line
            )
            if not fields["State"].startswith("S"):
                return None
            times += int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
    return times
