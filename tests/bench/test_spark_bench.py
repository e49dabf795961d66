"""What the Spark bench says of CPU time: also of workers that ended while nobody waited for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bench.peers_lib.processes import CpuWatch, cpu_seconds, tree
from bench.spark_lib.measuring import timed
from tests.spark.rig import until

BURN_S: Final = 0.2
DAEMON: Final = f"""
import os, signal, sys, time

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Spark's daemon of Python workers does
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        end = time.process_time() + 2 * {BURN_S}  # the kernel counts in ticks
        while time.process_time() < end:
            pass
        signal.pause()
    print(child, flush=True)
"""


@pytest.mark.parametrize("may_group", [True, False])
def test_the_time_of_a_worker_that_ended_counts_and_no_sum_falls(may_group: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        before = cpu_seconds([daemon.pid])
        with CpuWatch([daemon.pid], may_group=may_group) as watch:
            daemon.stdin.write("one\n")
            daemon.stdin.flush()
            child = int(daemon.stdout.readline())
            until(lambda: watch.seconds >= BURN_S, "the worker is seen at work")
            os.kill(child, signal.SIGKILL)
            until(lambda: child not in tree([daemon.pid]), "the worker has ended")
        assert cpu_seconds([daemon.pid]) - before < BURN_S  # the kernel has forgotten it
        assert watch.seconds >= BURN_S
        assert not list(Path("/sys/fs/cgroup").glob(f"**/penstock-bench-{os.getpid()}-*")), "groups are left"
        with timed("nothing", 0, [daemon.pid]) as row:
            pass
        assert 0 <= row.server_cpu_s < BURN_S
        assert row.cpu_s >= 0
        daemon.stdin.close()


BRIEF: Final = """
import os, time

for _ in range(30):
    if os.fork() == 0:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        os._exit(0)
    os.wait()
print("done", flush=True)
input()
"""


def test_a_group_counts_processes_that_nobody_sees() -> None:
    """Each lives for a tenth of the time between two looks."""
    with subprocess.Popen(
        [sys.executable, "-c", f"input(); {BRIEF!r}; exec({BRIEF!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        with CpuWatch([os.getpid()]) as all_of_it, CpuWatch([parent.pid]) as watch:
            if not watch.is_counted:
                parent.kill()
                pytest.skip("no control group can be made here: that takes root, or a group of one's own")
            parent.stdin.write("go\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "done\n"
        assert watch.seconds >= 0.6
        assert all_of_it.seconds >= watch.seconds
        parent.stdin.write("end\n")
        parent.stdin.flush()
