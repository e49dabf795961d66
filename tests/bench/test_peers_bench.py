"""The bench against peers runs, with Penstock alone and next to nothing to do, so that it never rots.

It needs no peer, no package and no plot. Numbers are not looked at; ids are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import peers
from bench.peers_lib import report
from bench.peers_lib.payloads import Checker, Source
from bench.peers_lib.peers import PEERS
from bench.peers_lib.processes import Process, cpu_seconds, tree
from bench.peers_lib.redis_streams import Redis
from bench.peers_lib.runs import Failed, Plan, Row, median
from bench.peers_lib.workloads import WHAT, WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {
    "workload", "peer", "msgs", "msg_per_s", "msg_per_server_cpu_s", "p50_ms", "p99_ms", "peak_mb", "lost",
    "duplicated", "msg_per_client_cpu_s", "runs", "spread_percent", "fsync_ms", "note",
}  # fmt: skip
NAMES = sorted(WORKLOADS)
TWICE = NAMES[0]
"""Is run twice: how several runs become one row is the same for all."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, str(ROOT / "bench" / "peers.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=110)


@pytest.mark.parametrize("workload", NAMES)
def test_a_workload_runs_on_penstock_and_loses_nothing(workload: str, tmp_path: Path) -> None:
    data, results = tmp_path / "data", tmp_path / "results"
    both = "penstock,penstock-json"
    runs = 2 if workload == TWICE else 1
    sizes = [
        "--runs",
        str(runs),
        "--scale",
        "0.0005",
        "--seconds",
        "20",
        "--payload",
        "json" if "1000" in workload else "random",
    ]
    places = ["--folder", str(data), "--results", str(results)]
    done = run("--json", "--peers", both, "--workloads", workload, *sizes, *places)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["peer"] for row in rows] == both.split(",")
    for row in rows:
        assert set(row) == FIELDS
        assert row["workload"] == workload
        assert row["runs"] == runs
        assert row["lost"] == row["duplicated"] == 0
        assert min(row["msgs"], row["msg_per_s"], row["msg_per_server_cpu_s"], row["p50_ms"], row["peak_mb"]) > 0
    assert list(data.iterdir()) == [], "a server's data was left behind"
    [written] = results.glob("*.json")
    assert json.loads(written.read_text())["rows"] == rows
    assert WHAT[workload] in written.with_suffix(".md").read_text()


@pytest.mark.parametrize("workload", ["consume-100", "4+4-by-100", "fan-out-10", "queues-10k"])
def test_a_workload_runs_by_mqtt_and_loses_nothing(workload: str, tmp_path: Path) -> None:
    places = ["--folder", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    sizes = ["--runs", "1", "--scale", "0.0005", "--seconds", "20"]
    done = run("--json", "--peers", "penstock-mqtt", "--workloads", workload, *sizes, *places)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["lost"] == row["duplicated"] == 0
    assert row["msgs"] > 0


def test_an_unknown_peer_or_workload_is_named() -> None:
    for option, wrong, known in (("--peers", "kafka", "rabbitmq-quorum"), ("--workloads", "publish-7", "publish-100")):
        done = run(option, wrong)
        assert done.returncode == 2
        assert wrong in done.stderr
        assert known in done.stderr


def test_a_peer_that_is_not_installed_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Redis, "missing", lambda _: "the package redis-server")
    parser = peers.argument_parser()
    arguments = parser.parse_args(["--peers", "penstock,redis", "--folder", str(tmp_path)])
    plan, missing = peers.make_plan(parser, arguments)
    assert plan.peers == ("penstock",)
    assert missing == {"redis": "the package redis-server"}
    assert any("redis" in line and "--setup" in line for line in report.footnotes([], [], missing))


def test_every_workload_is_explained_and_every_peer_says_what_a_confirm_means() -> None:
    assert set(WHAT) == set(WORKLOADS)
    shown = peers.argument_parser().format_help()
    for name, peer in PEERS.items():
        assert peer.confirm in shown
        assert peer.name == name


# The checker and the meters must be able to say no --------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "json"])
def test_the_checker_counts_what_is_lost_doubled_and_strange(kind: str) -> None:
    payloads = Source(kind, 200).payloads(10)
    assert {len(payload) for payload in payloads} == {200}
    checker = Checker(kind)
    checker.add(payloads[:4])
    checker.add([payloads[2], *payloads[5:]])
    assert checker.verdict(10) == (1, 1)
    stranger = Source(kind, 200)
    stranger.next_id = 99
    checker.add(stranger.payloads(1))
    assert checker.verdict(10) == (1, 2)


@pytest.mark.parametrize("kind", ["random", "json"])
def test_the_checker_reads_the_time_of_publishing(kind: str) -> None:
    sent = Source(kind, 200).payloads(3, time.monotonic_ns() - 5_000_000_000)
    every, first = Checker(kind, time_all=True), Checker(kind)
    every.add(sent)
    first.add(sent)
    assert len(every.times_ms) == 3
    assert len(first.times_ms) == 1
    assert all(5_000 <= ms < 60_000 for ms in every.times_ms + first.times_ms)


BUSY = "import time\nwhile time.process_time() < 0.5: pass\n"


def test_the_cpu_time_of_children_counts_and_the_whole_tree_is_stopped(tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = f"'{sys.executable}' -c '{BUSY}'; sleep 1000 & touch '{done}'; sleep 1000"
    process = Process(["sh", "-c", script], tmp_path / "log")
    try:
        deadline = time.monotonic() + 60
        while not (done.exists() and len(tree([process.pid])) == 3):
            assert time.monotonic() < deadline, process.tail()
            time.sleep(0.02)
        family = tree([process.pid])
        assert cpu_seconds([process.pid]) >= 0.45
    finally:
        process.stop()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() and not is_zombie(pid) for pid in family):
        assert time.monotonic() < deadline, "a process of the tree outlived it"
        time.sleep(0.02)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# Several runs ---------------------------------------------------------------------------------------------


def row(rate: float, lost: int = 0) -> Row:
    return Row("publish-1", "redis", 10, rate, rate * 2, 1.0, 2.0, 3.0, lost, 0, rate * 3)


def test_runs_give_the_median_their_spread_and_every_loss() -> None:
    middle = median([row(100), row(300, lost=1), row(200)])
    assert (middle.msg_per_s, middle.msg_per_server_cpu_s, middle.msg_per_client_cpu_s) == (200, 400, 600)
    assert middle.spread_percent == 100
    assert middle.lost == 1
    assert middle.runs == 3


def test_the_report_says_what_failed_and_what_is_not_synced(tmp_path: Path) -> None:
    classic = row(100)._replace(peer="rabbitmq-classic")
    plan = Plan(("rabbitmq-classic",), ("publish-1",), 1, 1.0, 1.0, "random", tmp_path, Path(sys.executable))
    text = report.markdown("now", plan, [classic], [Failed("publish-1", "nats", "no room\nmore")], {})
    assert "| rabbitmq-classic* |" in text
    assert "confirms before the message is forced to disk" in text
    assert "FAILED publish-1 on nats: no room" in text
    assert "more" not in text.rpartition("no room")[2]


@pytest.mark.parametrize("option", ["--runs", "--scale", "--seconds"])
def test_nothing_to_do_is_a_mistake(option: str) -> None:
    done = run("--peers", "penstock", option, "0")
    assert done.returncode == 2
    assert "more than nothing" in done.stderr
