"""What this process uses and may use: its memory, the memory of the machine or container, the room on a disk.

Linux tells all of it in files; elsewhere None says that nothing is known. Knows no limits of Penstock's own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
UNLIMITED: Final = 1 << 60
"""cgroup v1 writes a number near 2^63 where there is no limit."""


def memory_used(root: Path = ROOT) -> int | None:
    """Bytes of memory that this process has: its resident set."""
    try:
        return int((root / "proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes of memory that there are for this process: the machine's, or less where a cgroup allows less."""
    return min((*_machine(root), *_cgroups(root)), default=None)


def _machine(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * 1024


def _cgroups(root: Path) -> Iterator[int]:
    """The limits of this process's cgroups and of those above them, of both versions."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if kinds == "":
            yield from _limits(mounted, place, "memory.max")
        elif "memory" in kinds.split(","):
            yield from _limits(mounted / "memory", place, "memory.limit_in_bytes")


def _limits(mounted: Path, place: str, name: str) -> Iterator[int]:
    # In a container the path is the host's, and what is mounted may be the container's own cgroup.
    inside = mounted / place.strip("/")
    for folder in {mounted, inside, *(above for above in inside.parents if above.is_relative_to(mounted))}:
        try:
            limit = int((folder / name).read_text())
        except (OSError, ValueError):  # "max", or there is none
            continue
        if 0 < limit < UNLIMITED:
            yield limit


def disk_free(folder: Path) -> int | None:
    """Bytes that this process may still write on a folder's disk."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _find_malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


malloc_trim: Final = _find_malloc_trim()
"""Gives memory that was freed back to the system, where the C library can; else it counts as used."""
