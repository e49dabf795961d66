"""One path, counted: a server of its own, a warm-up, and the rounds that count. Knows no output."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path as Folder
from typing import NamedTuple

from bench.instructions_lib.meters import Counts, Meter, Nothing, until_said
from bench.instructions_lib.paths import START, WARM_UP, Path
from bench.instructions_lib.schedule import Server
from bench.peers_lib.processes import Process
from tools.get_databases import ROOT

MeterIn = Callable[[Folder], Meter]
"""Makes a meter that keeps its files in a folder."""


class Counted(NamedTuple):
    """Of one message."""

    instructions: float
    functions: dict[str, float]
    c_calls: float
    commits: float


def count_server(path: Path, meter_in: MeterIn, store: str = "") -> Counted:
    """What the server does. `store` is where it keeps messages, if not in a file of its own."""
    if path.name == START:
        with serving(Nothing, at_start=True):
            pass  # the first start compiles its modules; all later ones find them compiled
    with serving(meter_in, store, at_start=path.name == START) as server:
        if path.name == START:
            server.meter.end(server.process)
            commits = server.commits()
            return a_message(server.meter.counts(server.process), commits, 1)
        rounds = path.run(server)
        for _ in range(WARM_UP + 1):
            next(rounds)
        before = server.commits()
        server.rest()
        server.meter.begin(server.process)
        server.rest()
        for _ in range(path.rounds):
            next(rounds)
        server.meter.end(server.process)
        commits = server.commits() - before
        rounds.close()
        return a_message(server.meter.counts(server.process), commits, path.messages * path.rounds)


def count_client(path: Path, meter_in: MeterIn) -> Counted:
    """What Penstock's Python client does, with a server that is not counted."""
    with serving(Nothing) as server, tempfile.TemporaryDirectory(prefix="penstock-instructions-") as name:
        folder = Folder(name)
        meter, fifo = meter_in(folder), folder / "fifo"
        os.mkfifo(fifo)
        module = ["bench.instructions_lib.client", path.name, str(server.port), str(fifo)]
        environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **meter.environment}
        client = Process(meter.command(module), folder / "client.log", environment, folder)
        try:
            until_said("ready", client)
            meter.begin(client)
            fifo.write_bytes(b"")
            until_said("done", client)
            meter.end(client)
            return a_message(meter.counts(client), 0, path.messages * path.rounds)
        finally:
            client.stop()


@contextmanager
def serving(meter_in: MeterIn, store: str = "", *, at_start: bool = False) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-instructions-") as name:
        server = Server(Folder(name), meter_in(Folder(name)), store, at_start=at_start)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.process.stop()


def a_message(found: Counts, commits: int, messages: int) -> Counted:
    functions = {name: count / messages for name, count in found.functions.items()}
    return Counted(found.total / messages, functions, found.c_calls / messages, commits / messages)
