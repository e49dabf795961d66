"""A node whose event loop is busy for longer than its lease keeps its slots; one that hangs or is paused loses them."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from penstock.cli.dev.checkout import script_environment
from tests.cli.servers import Server, until
from tests.cluster.rig import Nodes, nodes

LEASE_MS = 400
BLOCK = """
import os, signal, time

def block(number, frame):
    until = time.monotonic() + float(os.environ["BLOCK_SECONDS"])
    while time.monotonic() < until:
        sum(range(1000))  # holds the interpreter, as real work does

signal.signal(signal.SIGUSR1, block)
"""
"""On SIGUSR1 the event loop's thread is busy for so long."""


def blocking(folder: Path, seconds: float) -> dict[str, str]:
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(BLOCK)
    path = f"{folder / 'site'}:{script_environment()['PYTHONPATH']}"
    return {"BLOCK_SECONDS": str(seconds), "PYTHONPATH": path}


def owners(rig: Nodes, asked: Server) -> list[tuple[str, int]]:
    return [(slot["owner"], slot["epoch"]) for slot in rig.cluster(asked)["slots"]]


def is_there(rig: Nodes, asked: Server, other: Server) -> bool:
    return any(node["url"] == other.url and node["is_live"] for node in rig.cluster(asked)["nodes"])


def test_no_slot_moves_while_an_event_loop_is_busy_for_five_leases(tmp_path: Path, store: str) -> None:
    options = ("--set", f"cluster.lease_ms={LEASE_MS}", "--set", "cluster.heartbeat_ms=100")
    seconds = 5 * LEASE_MS / 1000
    with nodes(tmp_path, *options, store=store) as rig:
        watching = rig.start()
        busy = rig.start(**blocking(tmp_path, seconds))
        rig.until_balanced(watching, busy)
        queue = rig.queue_of(busy)
        assert busy.request("PUT", f"/v1/queues/{queue}", {})[0] in (200, 201)
        before = owners(rig, watching)
        began = time.monotonic()
        busy.process.send_signal(signal.SIGUSR1)
        # Answered by the busy node after the block: no error in between, and no other owner.
        status, answer = watching.request("POST", f"/v1/queues/{queue}/messages", {"messages": [{"payload": "x"}]})
        assert status == 200, answer
        until(lambda: time.monotonic() > began + seconds, "the block is over")
        assert owners(rig, watching) == before
        assert renewals(busy) >= 2


def test_an_event_loop_that_hangs_loses_its_slots(tmp_path: Path, store: str) -> None:
    options = ("--set", "cluster.lease_ms=200", "--set", "cluster.heartbeat_ms=50")
    with nodes(tmp_path, *options, store=store) as rig:
        watching = rig.start()
        hung = rig.start(**blocking(tmp_path, 3600.0))
        rig.until_balanced(watching, hung)
        hung.process.send_signal(signal.SIGUSR1)
        until(lambda: not is_there(rig, watching, hung), "the node that hangs counts as gone")
        until(lambda: rig.slots(watching) == {watching.url: 64}, "its slots are taken over")
        assert any("the event loop has not run for" in line for line in list(hung.errors))


def renewals(server: Server) -> float:
    text: Any = server.text("/metrics")
    [line] = [line for line in text.splitlines() if line.startswith("penstock_cluster_renewals_total ")]
    return float(line.split()[1])
