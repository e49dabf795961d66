"""Runs workloads against peers: a fresh server and a fresh client process for each, and the numbers of several runs.

Servers and clients are children of this process and are stopped by their ids, however a run ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers_lib.peer import ROOT, Peer
from bench.peers_lib.peers import PEERS
from bench.peers_lib.processes import MemoryWatch, StartFailed

CLIENT_S_MAX = 180.0
"""Of a client: many times what any workload needs. One whose connection was closed under it may wait for ever."""
FSYNCS = 20


class Plan(NamedTuple):
    peers: tuple[str, ...]
    workloads: tuple[str, ...]
    runs: int
    scale: float
    seconds: float
    payload: str
    folder: Path
    """Servers keep their data in a temporary folder inside this one."""
    python: Path
    """Of the client's process."""


class Row(NamedTuple):
    """One run, or, of several, the median of each number; lost and duplicated are added up."""

    workload: str
    peer: str
    msgs: int
    msg_per_s: float
    msg_per_server_cpu_s: float
    p50_ms: float
    p99_ms: float
    peak_mb: float
    lost: int
    duplicated: int
    msg_per_client_cpu_s: float
    runs: int = 1
    spread_percent: float = 0.0
    """Between the slowest and the fastest run, in percent of the median of msg_per_s."""
    fsync_ms: float = 0.0
    """What forcing 4 KB to this disk took just before, in the middle: how busy others keep it."""
    note: str = ""


class Failed(NamedTuple):
    workload: str
    peer: str
    reason: str


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Peer]:
    """A server with empty data, gone with its data afterwards."""
    data = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder))
    peer = PEERS[name]()
    try:
        # Its own user must be able to reach it: PostgreSQL does not run as root.
        data.chmod(0o755)
        peer.start(data)
        yield peer
    finally:
        with uninterrupted():
            peer.stop()
            shutil.rmtree(data, ignore_errors=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An impatient second Ctrl-C must not leave servers behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def fsync_ms(folder: Path) -> float:
    """The median of a few."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            file.flush()
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - before) * 1000)
    return statistics.median(times)


def run_once(plan: Plan, peer_name: str, workload: str) -> Row | Failed:
    disk_ms = fsync_ms(plan.folder)
    try:
        with serving(peer_name, plan.folder) as peer, MemoryWatch(peer.roots) as memory:
            order = {
                "peer": peer_name,
                "workload": workload,
                "port": peer.port,
                "roots": peer.roots,
                "scale": plan.scale,
                "seconds": plan.seconds,
                "payload": plan.payload,
            }
            result = run_client(plan.python, order)
    except StartFailed as failure:
        return Failed(workload, peer_name, f"the server did not start: {failure}")
    except ClientFailed as failure:
        return Failed(workload, peer_name, str(failure))
    msgs, cpu = result["msgs"], max(result["server_cpu_s"], 0.01)
    return Row(
        workload,
        peer_name,
        msgs,
        msgs / result["wall_s"],
        msgs / cpu,
        result["p50_ms"],
        result["p99_ms"],
        memory.peak_mb,
        result["lost"],
        result["duplicated"],
        msgs / max(result["client_cpu_s"], 1e-6),
        fsync_ms=disk_ms,
        note=result["note"],
    )


class ClientFailed(Exception):
    """What the client's process said last."""


def run_client(python: Path, order: dict[str, Any]) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    client = subprocess.Popen(
        [str(python), "-m", "bench.peers_lib.client", json.dumps(order)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        printed, problems = client.communicate(timeout=CLIENT_S_MAX)
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"the client was not done after {CLIENT_S_MAX:.0f} s") from None
    finally:
        if client.poll() is None:
            client.kill()
            client.communicate()
    if client.returncode != 0:
        last = [line for line in problems.splitlines() if line.strip()][-1:]
        raise ClientFailed(f"the client failed: {' '.join(last)}\n{problems}")
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def median(rows: Sequence[Row]) -> Row:
    """Of the same workload and peer."""

    rates = [row.msg_per_s for row in rows]
    middle = statistics.median
    return rows[0]._replace(
        msgs=int(middle(row.msgs for row in rows)),
        msg_per_s=middle(rates),
        msg_per_server_cpu_s=middle(row.msg_per_server_cpu_s for row in rows),
        msg_per_client_cpu_s=middle(row.msg_per_client_cpu_s for row in rows),
        p50_ms=middle(row.p50_ms for row in rows),
        p99_ms=middle(row.p99_ms for row in rows),
        peak_mb=middle(row.peak_mb for row in rows),
        fsync_ms=middle(row.fsync_ms for row in rows),
        lost=sum(row.lost for row in rows),
        duplicated=sum(row.duplicated for row in rows),
        runs=len(rows),
        spread_percent=(max(rates) - min(rates)) / max(middle(rates), 1e-9) * 100,
        note=next((row.note for row in rows if row.note), ""),
    )
