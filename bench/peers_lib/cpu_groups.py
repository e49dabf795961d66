"""Control groups of Linux, in which the kernel counts the CPU of processes and of all that they start, ended or not.

To make one takes root, or a group that was handed to this user; where it cannot be made, `CpuGroup.of` is None. Knows
both versions of control groups, and of each only what counts CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_numbers: Final = itertools.count(1)


class CpuGroup:
    """A group below the one that its processes were in; ended, it gives them back."""

    def __init__(self, above: Path, usage: Callable[[Path], float]) -> None:
        self._above = above
        self._usage = usage
        self.folder = above / f"penstock-bench-{os.getpid()}-{next(_numbers)}"

    @classmethod
    def of(cls, pids: Callable[[], list[int]]) -> CpuGroup | None:
        """A new group that holds these processes; None where the system does not let us."""
        found = _place_of(pids()[0])
        if found is None:
            return None
        group = cls(*found)
        try:
            group.folder.mkdir()
            group.take(pids)
        except OSError:
            group.end()
            return None
        return group

    def take(self, pids: Callable[[], list[int]]) -> None:
        """Move the processes in, and those that they start meanwhile."""
        held: set[int] = set()
        while missing := set(pids()) - held:
            for pid in missing:
                _move(pid, self.folder)
            held |= missing

    @property
    def seconds(self) -> float:
        """What its processes have used since they are in it."""
        return self._usage(self.folder)

    def end(self) -> None:
        """Give the processes back to the group above, and remove this one."""
        with contextlib.suppress(OSError):
            while left := (self.folder / "cgroup.procs").read_text().split():
                for pid in left:
                    _move(int(pid), self._above)
            self.folder.rmdir()


def _move(pid: int, folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        (folder / "cgroup.procs").write_text(str(pid))


def _place_of(pid: int) -> tuple[Path, Callable[[Path], float]] | None:
    """The group of a process, and how to read what one has used; the first version where both are there."""
    own = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    for controllers, path in own.items():
        if "cpuacct" in controllers.split(",") and (mounted := _mounted("cgroup", "cpuacct")):
            return mounted / path.lstrip("/"), _nanoseconds
    mounted = _mounted("cgroup2", "rw")
    return None if mounted is None or "" not in own else (mounted / own[""].lstrip("/"), _microseconds)


def _mounted(kind: str, option: str) -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, its_kind, options, *_ = line.split()
        if its_kind == kind and option in options.split(","):
            return Path(place)
    return None


def _nanoseconds(folder: Path) -> float:
    return int((folder / "cpuacct.usage").read_text()) / 1e9


def _microseconds(folder: Path) -> float:
    usage = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    return int(usage["usage_usec"]) / 1e6
