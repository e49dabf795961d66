"""`./penstock bench polite`: how long does a polite client wait beside others that ask for much?

Starts `penstock serve` on a fresh folder for each attack. One process publishes, claims and acknowledges single
messages at a fixed pace; another attacks in turns (without, with, without, …). The table has the polite client's times
with the attack, and as a ratio to the turns without it right before and after; and the CPU that the server took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.peers_lib.processes import MemoryWatch, Process, StartFailed, cpu_seconds, free_port, wait_for_port
from bench.polite_lib import attack, client
from bench.polite_lib.attack import FILES, Made
from bench.polite_lib.attacks import ATTACKS

ROOT: Final = Path(__file__).resolve().parents[1]
PREPARED_WITHIN_S: Final = 900.0
ANSWERED_WITHIN_S: Final = 180.0
ATTACKED: Final = 0.8
"""The part of a turn in which the attack goes on."""
QUIET_CORES: Final = 0.2
QUIET_WITHIN_S: Final = 30.0
WORST: Final = 10.0
GOOD: Final = 3.0


class Times(NamedTuple):
    """Of the polite client, in milliseconds, and the server's share of a core meanwhile."""

    p50: float
    p99: float
    longest: float
    loop: float
    """p99 of what the server's event loop worked in a round, for whomever."""
    cores: float


class Row(NamedTuple):
    """One attack: the median of its turns."""

    attack: str
    without: Times
    beside: Times
    peak_mb: float
    made: Made

    @property
    def ratio(self) -> float:
        return self.beside.p99 / self.without.p99

    @property
    def loop_ratio(self) -> float:
        return self.beside.loop / self.without.loop


def main() -> None:
    parser = argparse.ArgumentParser(prog="./penstock bench polite", description=__doc__.partition("\n")[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"which (default: all): {', '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a turn (default: 10)")
    parser.add_argument("--turns", type=int, default=3, help="turns with each attack (default: 3)")
    parser.add_argument("--rate", type=float, default=50.0, help="polite messages a second (default: 50)")
    parser.add_argument("--scale", type=float, default=1.0, help="sizes and counts of the attacks (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.attacks if name not in ATTACKS]:
        parser.error(f"no attack is called {unknown[0]!r}; there are: {', '.join(ATTACKS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that servers and attackers are stopped too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, FILES)), hard))
    if not arguments.json:
        print(HEAD, flush=True)
    rows = []
    for name in arguments.attacks or ATTACKS:
        rows.append(beside(name, arguments))
        if not arguments.json:
            print(line(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps([as_data(row) for row in rows], indent=2))


def beside(name: str, arguments: argparse.Namespace) -> Row:
    """Everything about one attack, on a server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-polite-") as folder,
        serving(Path(folder)) as (server, port),
        MemoryWatch([server.pid]) as memory,
        worker(attack.serve, ATTACKS[name], port, arguments.scale) as attacker,
        worker(client.serve, port, server.pid, arguments.rate) as polite,
    ):
        prepared: Made = heard(attacker, PREPARED_WITHIN_S, server)
        if prepared.error:
            raise StartFailed(f"{name}: {prepared.error}")
        heard(polite, ANSWERED_WITHIN_S, server)
        without = [turn(polite, server, arguments.seconds)]
        with_it: list[Times] = []
        made = Made()
        for _ in range(arguments.turns):
            attacker.send("go")
            heard(attacker, ANSWERED_WITHIN_S, server)
            # Its end is in the turn too: what a client leaves behind when it goes is part of what it does to others.
            threading.Timer(arguments.seconds * ATTACKED, attacker.send, ["stop"]).start()
            with_it.append(turn(polite, server, arguments.seconds))
            made = heard(attacker, ANSWERED_WITHIN_S, server)
            if made.error:
                raise StartFailed(f"{name}: {made.error}\n{server.tail()}")
            wait_until_quiet(server)
            without.append(turn(polite, server, arguments.seconds))
        attacker.send("")
        polite.send(0)
    return Row(name, median(without), median(with_it), memory.peak_mb, made)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Process, int]]:
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli", "serve", "--store", str(folder / "penstock.db"), "--no-amqp"]
    command += ["--no-mqtt", "--port", str(port), "--set", "log.level=warning"]
    server = Process(command, folder / "penstock.log", {"PYTHONPATH": str(ROOT / "src")}, folder)
    try:
        wait_for_port(port, server)
        yield server, port
    finally:
        server.stop()


@contextmanager
def worker(work: Any, *arguments: Any) -> Iterator[Pipe]:
    """A process with a pipe to it; it ends with the block."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(2)
        if process.is_alive():
            process.kill()
            process.join()


def heard(pipe: Pipe, seconds: float, server: Process) -> Any:
    """What a worker says next."""
    deadline = time.monotonic() + seconds
    while not pipe.poll(0.5):
        server.check_alive()
        if time.monotonic() > deadline:
            raise StartFailed(f"nothing was heard for {seconds:.0f} s. The end of the server's log:\n{server.tail()}")
    return pipe.recv()


def wait_until_quiet(server: Process) -> None:
    """Until the server has done what the attack left to do, or for a while."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    cores = 1.0
    while cores > QUIET_CORES and time.monotonic() < deadline:
        before, began = cpu_seconds([server.pid]), time.monotonic()
        time.sleep(0.5)
        cores = (cpu_seconds([server.pid]) - before) / (time.monotonic() - began)


def turn(polite: Pipe, server: Process, seconds: float) -> Times:
    cpu, began = cpu_seconds([server.pid]), time.monotonic()
    polite.send(seconds)
    rounds: list[client.Round] = heard(polite, seconds + ANSWERED_WITHIN_S, server)
    times, loop = sorted(one.took for one in rounds), sorted(one.loop for one in rounds)
    p99 = min(len(rounds) - 1, len(rounds) * 99 // 100)
    cores = (cpu_seconds([server.pid]) - cpu) / (time.monotonic() - began)
    return Times(times[len(times) // 2], times[p99], times[-1], loop[p99], cores)


def median(turns: list[Times]) -> Times:
    return Times(*(statistics.median(column) for column in zip(*turns, strict=True)))


HEAD: Final = """\
| attack | p50 | p99 | longest | without it | p99 / without | loop p99 | / without | server's CPU | memory |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def line(row: Row) -> str:
    with_it, without = row.beside, row.without
    return (
        f"| {row.attack} | {with_it.p50:.1f} ms | {with_it.p99:.1f} ms | {with_it.longest:.1f} ms "
        f"| {without.p50:.1f}, {without.p99:.1f}, {without.longest:.1f} ms | {marked(row.ratio)} "
        f"| {with_it.loop:.1f} ({without.loop:.1f}) ms | {marked(row.loop_ratio)} "
        f"| {with_it.cores * 100:.0f} % ({without.cores * 100:.0f} %) | {row.peak_mb:.0f} MB |"
    )


def marked(ratio: float) -> str:
    return f"{ratio:.1f}" + ("" if ratio <= GOOD else " (!)" if ratio <= WORST else " (!!)")


def as_data(row: Row) -> dict[str, Any]:
    return {
        "attack": row.attack,
        "without": row.without._asdict(),
        "beside": row.beside._asdict(),
        "ratio": row.ratio,
        "loop_ratio": row.loop_ratio,
        "peak_mb": row.peak_mb,
        "last_turn": row.made._asdict(),
    }


if __name__ == "__main__":
    try:
        main()
    except (StartFailed, RuntimeError, OSError, EOFError) as problem:
        sys.exit(f"the bench failed: {problem}")
