"""`./penstock bench instructions`: how many instructions a message takes, on server and client, and where they go.

Runs `penstock serve` for each path and sends it the same requests in the same steps in every run, so that figures
repeat to a thousandth on any machine, however busy. Opcodes are Python's bytecode instructions, counted in the
process. With `--machine`, valgrind counts the processor's too. All figures are of one message. What is more than 8 %
above the recorded baseline (`bench/instructions.json`) is told with the functions that grew, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from bench.instructions_lib import baseline, report
from bench.instructions_lib.baseline import (
    CLIENT,
    CLIENT_MACHINE,
    SERVER,
    SERVER_MACHINE,
    Change,
    Row,
)
from bench.instructions_lib.client import RUNS
from bench.instructions_lib.counting import count_client, count_server
from bench.instructions_lib.meters import Machine, Opcodes
from bench.instructions_lib.paths import PATHS, Path
from bench.peers_lib.processes import StartFailed
from tests.databases import postgres
from tools.debian_packages import SetUpFailed
from tools.get_databases import VALGRIND, get

NO_BASELINE: Final = (
    "There is no baseline for Python {version} in bench/instructions.json: nothing was compared. To make what was "
    "counted the baseline: ./penstock bench instructions --record"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./penstock bench instructions", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"which (default: all): {', '.join(PATHS)}")
    parser.add_argument("--machine", action="store_true", help="count machine instructions too, by valgrind: slower")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="show so many modules and functions of each")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--record", action="store_true", help="make what is counted the baseline of this Python")
    parser.add_argument("--setup", action="store_true", help="get valgrind, where it is missing, and count nothing")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.paths if name not in PATHS]:
        parser.error(f"no path is called {unknown[0]!r}; there are: {', '.join(PATHS)}")
    if arguments.setup:
        get(VALGRIND)
        return 0
    if arguments.machine and VALGRIND.root() is None:
        parser.error("there is no valgrind here: ./penstock bench instructions --setup gets it")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that servers are stopped too
    rows, changes = count(arguments)
    if arguments.record:
        baseline.record(rows)
        say(f"Recorded for Python {baseline.version()} in {baseline.FILE}")
        return 0
    if baseline.load() is None:
        say(NO_BASELINE.format(version=baseline.version()))
    if arguments.json:
        print(json.dumps({path: as_data(row, changes[path]) for path, row in rows.items()}, indent=2))
    worse = [change for path in rows for change in changes[path] if change.is_worse]
    for change in worse:
        say(str(change))
    return 1 if worse else 0


def count(arguments: argparse.Namespace) -> tuple[dict[str, Row], dict[str, list[Change]]]:
    """Every path that can be counted here, printed as it comes."""
    known = baseline.load()
    if not arguments.json:
        print(report.head(machine=arguments.machine), flush=True)
    rows: dict[str, Row] = {}
    changes: dict[str, list[Change]] = {}
    with stores() as store_of:
        for name in arguments.paths or PATHS:
            if PATHS[name].store == "postgres" and not postgres.is_there():
                say(f"{name} is left out: there is no PostgreSQL here")
                continue
            row = rows[name] = figures(PATHS[name], store_of, machine=arguments.machine)
            changes[name] = baseline.compare(name, row, known) if known else []
            if not arguments.json:
                print(report.line(name, row, changes[name], machine=arguments.machine), flush=True)
                for figure, counted in row.items() if arguments.top else ():
                    print(report.where(figure, counted, arguments.top), flush=True)
    return rows, changes


def figures(path: Path, store_of: Stores, *, machine: bool) -> Row:
    """All that is counted of a path."""
    row = {SERVER: count_server(path, Opcodes, store_of.fresh(path))}
    if path.name in RUNS:
        row[CLIENT] = count_client(path, Opcodes)
    if machine:
        row[SERVER_MACHINE] = count_server(path, Machine, store_of.fresh(path))
        if path.name in RUNS:
            row[CLIENT_MACHINE] = count_client(path, Machine)
    return row


class Stores:
    """An empty store for each server; PostgreSQL is started when it is first wanted."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._server: postgres.PostgresServer | None = None
        self._made = 0

    def fresh(self, path: Path) -> str:
        if path.store != "postgres":
            return ""
        if self._server is None:
            self._server = postgres.PostgresServer()
            self._stack.callback(self._server.close)
        self._made += 1
        return f"{self._server.url}?schema=bench_{self._made}"


@contextmanager
def stores() -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack)


def as_data(row: Row, changes: list[Change]) -> dict[str, Any]:
    """One path as JSON."""
    return {
        "figures": {
            figure: {"a message": counted.instructions, "c_calls": counted.c_calls, "functions": counted.functions}
            for figure, counted in row.items()
        },
        "commits": row[SERVER].commits,
        "changes": [{"figure": each.figure, "before": each.before, "percent": each.percent} for each in changes],
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (StartFailed, SetUpFailed, RuntimeError, OSError) as problem:
        sys.exit(f"the bench failed: {problem}")
