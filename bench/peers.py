"""`./penstock bench peers`: Penstock beside RabbitMQ, Redis, NATS JetStream, PostgreSQL, Mosquitto; all ids checked.

Each peer is started from its Debian package on a loopback port, with a fresh folder on this disk and set to force every
confirmed message to disk where it can; what its confirm means is said under the table. One client process does the work
of all callers; CPU seconds of server and client are counted apart. Numbers are medians of several runs.

It needs a set-up step, once: `./penstock bench peers --setup`. Everything that it makes is under .bench/.
"""

from __future__ import annotations

import argparse
import datetime as dt
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench.peers_lib import report, setting_up
from bench.peers_lib.peer import BENCH, ROOT
from bench.peers_lib.peers import ONLY_WHEN_NAMED, PEERS
from bench.peers_lib.runs import Failed, Plan, Row, median, run_once
from bench.peers_lib.workloads import WHAT, WORKLOADS
from tools.debian_packages import SetUpFailed

EXAMPLES = """\
examples:
  ./penstock bench peers --setup                         get the peers and their clients, once
  ./penstock bench peers                                 everything, three times: about 50 minutes
  ./penstock bench peers --runs 1 --seconds 1            a quick look at everything
  ./penstock bench peers --peers penstock,redis --workloads publish-1000,consume-1000 --json

peers:
"""


def main() -> None:
    parser = argument_parser()
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, stop_on_signal)
    try:
        if arguments.setup:
            setting_up.set_up()
        else:
            run_all(arguments, *make_plan(parser, arguments))
    except KeyboardInterrupt:
        sys.exit("stopped; all servers are down and their data is removed")
    except SetUpFailed as failure:
        sys.exit(f"the set-up failed: {failure}")


def stop_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def argument_parser() -> argparse.ArgumentParser:
    listed = [f"  {name:<22}{peer.confirm}" for name, peer in PEERS.items()]
    listed += ["", "workloads:", *(f"  {name:<22}{what}" for name, what in WHAT.items())]
    parser = argparse.ArgumentParser(
        prog="penstock bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES + "\n".join(listed),
    )
    parser.add_argument("--setup", action="store_true", help="get the packages and the clients, run nothing")
    parser.add_argument("--peers", default="", metavar="A,B", help="only these")
    parser.add_argument("--workloads", default="", metavar="X,Y", help="only these")
    parser.add_argument("--runs", type=int, default=3, help="how often everything is run (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of messages (default 1)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="the longest that a workload is measured (default 3)"
    )
    parser.add_argument("--payload", choices=("random", "json"), default="random", help="filler of the messages")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of the table")
    parser.add_argument("--folder", type=Path, help="where servers keep their data (default: .bench/, on this disk)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="where the files are written")
    return parser


def make_plan(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[Plan, dict[str, str]]:
    """What to run, and which peers are missing and why."""
    peers = chosen(
        parser, "peer", arguments.peers, [name for name in PEERS if name not in ONLY_WHEN_NAMED], list(PEERS)
    )
    workloads = chosen(parser, "workload", arguments.workloads, list(WORKLOADS), list(WORKLOADS))
    if arguments.runs < 1 or arguments.scale <= 0 or arguments.seconds <= 0:
        parser.error("--runs, --scale and --seconds must be more than nothing")
    python = setting_up.client_python()
    missing: dict[str, str] = {}
    for name in peers:
        if what := PEERS[name]().missing():
            missing[name] = what
        elif python is None and not name.startswith("penstock"):
            missing[name] = "its Python client in .bench/venv"
    present = tuple(name for name in peers if name not in missing)
    folder = arguments.folder or BENCH
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        present,
        tuple(workloads),
        arguments.runs,
        arguments.scale,
        arguments.seconds,
        arguments.payload,
        folder.resolve(),
        python or Path(sys.executable),
    )
    return plan, missing


def chosen(parser: argparse.ArgumentParser, what: str, asked: str, default: list[str], known: list[str]) -> list[str]:
    names = [name.strip() for name in asked.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return names or default


def run_all(arguments: argparse.Namespace, plan: Plan, missing: dict[str, str]) -> None:
    for name, what in missing.items():
        say(f"{name} is left out: {what} is missing; ./penstock bench peers --setup gets it")
    if not plan.peers:
        sys.exit("no peer is left to run")
    rows: dict[tuple[str, str], list[Row]] = {}
    failures: list[Failed] = []
    steps = [(run, workload, peer) for run in range(plan.runs) for workload in plan.workloads for peer in plan.peers]
    for number, (run, workload, peer) in enumerate(steps, 1):
        result = run_once(plan, peer, workload)
        say(f"[{number}/{len(steps)}] run {run + 1}  {workload:<22} {peer:<17} {in_short(result)}")
        if isinstance(result, Failed):
            failures.append(result)
        else:
            rows.setdefault((workload, peer), []).append(result)
    # In the order of the plan, whatever failed.
    medians = [median(rows[key]) for key in ((w, p) for w in plan.workloads for p in plan.peers) if key in rows]
    if arguments.json:
        for row in medians:
            print(report.json_line(row), flush=True)
    else:
        report.print_table(medians, failures, missing)
    save(arguments.results, plan, medians, failures, missing)
    if failures:
        sys.exit("some workloads failed:\n" + "\n".join(f"{f.workload} on {f.peer}: {f.reason}" for f in failures))
    if any(row.lost or row.duplicated for row in medians):
        sys.exit("messages were lost or delivered twice")


def in_short(result: Row | Failed) -> str:
    if isinstance(result, Failed):
        return f"FAILED: {result.reason.splitlines()[0]}"
    trouble = f"  LOST {result.lost} DUPLICATED {result.duplicated}" if result.lost or result.duplicated else ""
    rates = f"{result.msg_per_s:>11,.0f} msg/s {result.msg_per_server_cpu_s:>11,.0f} msg/server CPU-s"
    times = f"p50 {result.p50_ms:.2f} p99 {result.p99_ms:.2f} ms  fsync {result.fsync_ms:.2f} ms"
    return f"{rates}  {times}{trouble}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def save(folder: Path, plan: Plan, rows: list[Row], failures: list[Failed], missing: dict[str, str]) -> None:
    stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = report.write_files(folder, stamp, plan, rows, failures, missing)
    say(f"written: {path} and {path.with_suffix('.md').name}")
    if not rows:
        return
    drawn = subprocess.run(
        [str(plan.python), "-m", "bench.peers_lib.plot", str(path), str(path.with_suffix(".png"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if drawn.returncode == 0:
        say(f"written: {path.with_suffix('.png')}")
    elif "No module named 'matplotlib'" in drawn.stderr:
        say("no plot: matplotlib is not installed; ./penstock bench peers --setup gets it")
    else:
        sys.exit(f"the plot could not be drawn:\n{drawn.stderr}")


if __name__ == "__main__":
    main()
