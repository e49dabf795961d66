"""Server processes of the bench: started as our own children, watched through /proc, stopped by their process ids.

Knows nothing of queues or of any peer. A server is a tree of processes: its CPU seconds are those of every process of
the tree and of the children that they have already buried, its memory is the sum of the proportional shares (PSS),
so that memory which PostgreSQL's processes share counts once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

from bench.peers_lib.cpu_groups import CpuGroup

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
SAMPLE_S: Final = 0.2
TERM_S: Final = 20.0
KILL_S: Final = 10.0


class StartFailed(Exception):
    """A server did not come up; the message has the end of its log."""


def free_port() -> int:
    """A loopback port that nobody listens on. Another process may take it before the server does: then it fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(roots: Iterable[int]) -> list[int]:
    """The processes and all their descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid for pid in roots if _stat(pid)]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none when the process is gone."""
    with contextlib.suppress(OSError):
        # The name before them is in brackets and may hold blanks and brackets itself.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def cpu_seconds(roots: Iterable[int]) -> float:
    """User and system time of the trees, with the children that ended and were waited for."""
    # utime, stime, cutime and cstime.
    return sum(int(ticks) for pid in tree(roots) for ticks in _stat(pid)[11:15]) / TICKS_PER_S


def own_ticks(pid: int) -> tuple[int, int] | None:
    """When a process started, which tells it from one that has its number later, and the CPU time of its own."""
    fields = _stat(pid)
    return (int(fields[19]), int(fields[11]) + int(fields[12])) if fields else None


def machine_seconds() -> float:
    """What all processes of the machine have used so far, and what was taken from it for others of its host."""
    user, nice, system, _idle, _io, interrupts, softly, stolen = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, interrupts, softly, stolen))) / TICKS_PER_S


def memory_mb(roots: Iterable[int]) -> float:
    return sum(map(_pss_kb, tree(roots))) / 1024


def _pss_kb(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


class MemoryWatch:
    """The most memory that a server had while this was open, looked at five times a second."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = roots
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.peak_mb = max(self.peak_mb, memory_mb(self._roots))


class CpuWatch:
    """The CPU seconds that trees of processes used while this was open, those that ended meanwhile included.

    For trees in which processes end that nobody waits for: Spark's daemons ignore SIGCHLD, and the kernel then forgets
    what their Python workers used, so that a sum over processes that live can fall. A control group counts them too.
    Where none can be made, each process is looked at again and again, and what was last seen of it counts: of one that
    ends, at most the time since the last look is missing.
    """

    def __init__(self, roots: Sequence[int], *, may_group: bool = True) -> None:
        self._roots = roots
        self._may_group = may_group
        self._group: CpuGroup | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before: dict[tuple[int, int], int] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._counted_s: float | None = None

    @property
    def is_counted(self) -> bool:
        """Whether a control group counts; else processes are looked at."""
        return self._group is not None

    def __enter__(self) -> CpuWatch:
        if self._may_group:
            self._group = CpuGroup.of(partial(tree, self._roots))
        if self._group is None:
            self._look()
            self._before = dict(self._seen)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            self._counted_s = self._group.seconds
            self._group.end()
            return
        self._over.set()
        self._thread.join()
        self._look()

    @property
    def seconds(self) -> float:
        """So far, or of the whole time after the end."""
        if self._group is not None:
            return self._group.seconds if self._counted_s is None else self._counted_s
        return sum(ticks - self._before.get(process, 0) for process, ticks in list(self._seen.items())) / TICKS_PER_S

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        for pid in tree(self._roots):
            if (found := own_ticks(pid)) is not None:
                self._seen[pid, found[0]] = found[1]


class Process:
    """One child with its output in a log file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        user: int | None = None,
    ) -> None:
        self.log = log
        self._output: IO[bytes] = log.open("ab")
        # A session of its own: Ctrl-C in the terminal reaches the harness alone, which then stops it in order.
        self._child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=None if environment is None else os.environ | dict(environment),
            cwd=folder,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def check_alive(self) -> None:
        if self._child.poll() is not None:
            raise StartFailed(f"it ended with exit code {self._child.returncode}. The end of its log:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        """Asks it to end, then ends what is left of its tree, each process by its id."""
        family = tree([self.pid])
        if self._child.poll() is None:
            self._child.send_signal(with_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(TERM_S)
        for pid in family:
            # Alive and still of the session that we made: not a stranger who was given the same number since.
            with contextlib.suppress(OSError):
                if os.getsid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(KILL_S)
        self._output.close()


def wait_for_port(port: int, process: Process, seconds: float = 60.0) -> None:
    """Until somebody accepts connections on it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        process.check_alive()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise StartFailed(f"nobody listened on port {port} within {seconds:.0f} s. The end of its log:\n{process.tail()}")
