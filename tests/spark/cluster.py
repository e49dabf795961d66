"""A standalone Spark cluster for a test: a master and workers, each a process of its own, on this machine alone."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from penstock.spark.java import find_java
from penstock.spark.session import QUICK_START
from tests.spark.rig import PATIENCE_S, until

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
ADDRESS: Final = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
REGISTERED: Final = "Successfully registered with master"
STARTS_S: Final = 3 * PATIENCE_S

CONFIG: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.ui.enabled": "false",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.sql.shuffle.partitions": "2",
    # Both workers take part: no task starts before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{STARTS_S:.0f}s",
}
"""What a driver is told, so that an application fits beside other tests."""


class Daemon:
    """One process of the cluster. What it says goes to a file."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *command],
                cwd=folder,
                env=_variables(folder),
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until it has said that."""
        until(lambda: self.has_ended() or pattern.search(self.said()) is not None, pattern.pattern, STARTS_S)
        found = pattern.search(self.said())
        assert found is not None, self.said()
        return found

    def end(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait()


def _variables(folder: Path) -> dict[str, str]:
    """Nothing of this checkout: what executors know of Penstock must have been shipped to them."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK_", "PENSTOCK_"))
    }
    return inherited | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOG_DIR": str(folder),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        # The master would also listen on a fixed port, for programs that are submitted to it.
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} -Dspark.master.rest.enabled=false",
        "SPARK_LAUNCHER_OPTS": QUICK_START,
    }


class Cluster:
    """Where drivers find the cluster, and which processes it has."""

    def __init__(self, url: str, python: Path, workers: list[Daemon]) -> None:
        self.url = url
        self.python = python
        """The Python of the executors: this one with its packages, but without this checkout."""
        self._workers = workers

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        parents = {worker.pid for worker in self._workers}
        return [pid for pid, parent, command in processes() if parent in parents and EXECUTOR in command]

    def told(self) -> str:
        """All that the workers logged."""
        return "\n".join(worker.said() for worker in self._workers)


def processes() -> list[tuple[int, int, str]]:
    """All processes of this machine that have a command line: id, id of the parent, command."""
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    return [found for found in map(_process, folders) if found is not None]


def _process(folder: Path) -> tuple[int, int, str] | None:
    try:
        parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        command = (folder / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:  # it ended meanwhile
        return None
    return (int(folder.name), int(parent), command) if command else None


def foreign_python(folder: Path) -> Path:
    """An interpreter that finds the packages that are installed, and not Penstock: that comes by link files (-S)."""
    program = folder / "python"
    packages = shlex.quote(sysconfig.get_path("platlib"))
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{packages} exec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    program.chmod(0o755)
    return program


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and so many workers of one core each, until the block ends."""
    started: list[Daemon] = []
    try:
        local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = Daemon(folder, "master", MASTER, *local)
        started.append(master)
        url = master.wait_for(ADDRESS)[1]
        for number in range(workers):
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            started.append(Daemon(folder, f"worker-{number}", WORKER, *local, *sizes, url))
        for worker in started[1:]:
            worker.wait_for(re.compile(REGISTERED))
        yield Cluster(url, foreign_python(folder), started[1:])
    finally:
        for daemon in reversed(started):
            daemon.end()
