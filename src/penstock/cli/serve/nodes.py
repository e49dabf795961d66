"""`penstock serve --nodes N`: N servers on this machine, each a process of its own, on one store.

This process only starts them, starts one again that dies, and passes a stop on. Servers whose parent is gone stop by
themselves: they hold one end of a pipe whose other end is here.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from typing import Final

from penstock.cli.serve.command import STOP_WITH
from penstock.cli.serve.settings import Flags
from penstock.config import Config
from penstock.fronts.registry import FRONTS

AGAIN_S: Final = 1.0
"""Between two starts of the same server at the least."""
LOOK_S: Final = 0.1

log = logging.getLogger("penstock.serve")


class Child:
    """One server process and its restarts."""

    def __init__(self, command: list[str], pipe: int) -> None:
        self._command = command
        self._pipe = pipe
        self.starts = 0
        self.started_at = 0.0
        self.start()

    def start(self) -> None:
        environment = os.environ | {STOP_WITH: str(self._pipe)}
        self.process = subprocess.Popen(self._command, env=environment, pass_fds=[self._pipe])
        self.starts += 1
        self.started_at = time.monotonic()


def commands(flags: Flags, config: Config) -> list[list[str]]:
    """The command line of each server: what was given here, one server, and a port of its own."""
    given = [] if flags.file is None else ["--config", flags.file]
    for section, option, _, text in flags.values:
        given += ["--set", f"{section}.{option}={text}"]
    return [
        [sys.executable, "-m", "penstock", "serve", *given, "--set", "cluster.nodes=1", *own_ports(config, index)]
        for index in range(config.cluster.nodes)
    ]


def own_ports(config: Config, index: int) -> list[str]:
    """What gives a server ports of its own: as many after the configured ones as there are servers before it."""
    flags: list[str] = []
    for entry in FRONTS:
        for name in entry.ports:
            port = getattr(config.fronts[entry.name], name)
            flags += ["--set", f"{entry.name}.{name}={port + index if port else 0}"]
    return flags


def run(flags: Flags, config: Config) -> int:
    """Until a signal says stop, or a server cannot start at all; the exit code."""
    reading, writing = os.pipe()
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopped.append(number))
    # The servers hold the reading end: it ends when the last writer, this process, does.
    children = [Child(command, reading) for command in commands(flags, config)]
    code = 0
    while not stopped:
        time.sleep(LOOK_S)
        for child in children:
            ended = child.process.poll()
            if ended is None or stopped or (time.monotonic() - child.started_at < AGAIN_S and child.starts > 1):
                continue
            if ended == 1 and child.starts == 1:  # it has said why
                stopped.append(signal.SIGTERM)
                code = 1
                break
            log.warning("server %d ended with code %d; it is started again", child.process.pid, ended)
            child.start()
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
    for child in children:
        child.process.wait()
    os.close(writing)
    return code
