"""One line of the Spark bench: what was done, how long it took, on how much CPU and memory. Knows no workload."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from bench.peers_lib.processes import CpuWatch, MemoryWatch


@dataclass
class Row:
    """What one workload gave."""

    name: str
    rows: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of everything that this process started, and of itself: JVM, Python workers, servers."""
    server_cpu_s: float = 0.0
    is_counted: bool = False
    """Whether the kernel has counted the CPU of processes that ended too; else they were looked at, again and again."""
    peak_mb: float = 0.0
    """Of all of it together, at the worst moment."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What else the workload measures, such as latencies in milliseconds."""
    wrong: str = ""
    """What the check of the ids found."""

    @property
    def per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def per_cpu_second(self) -> float:
        return self.rows / self.cpu_s if self.cpu_s else 0.0

    def as_fields(self) -> dict[str, object]:
        rates = {"rows_per_s": round(self.per_second), "rows_per_cpu_s": round(self.per_cpu_second)}
        return {name: value for name, value in asdict(self).items() if value not in ({}, "")} | rates

    def short(self) -> str:
        text = f"{self.per_second:>11,.0f} rows/s {self.per_cpu_second:>11,.0f} per CPU-s  {self.seconds:.1f} s"
        numbers = "  ".join(f"{name} {value:,.1f}" for name, value in self.numbers.items())
        return "  ".join(filter(None, (text, f"peak {self.peak_mb:,.0f} MB", numbers, self.wrong and "WRONG")))


@contextmanager
def timed(name: str, rows: int, server: Sequence[int]) -> Iterator[Row]:
    """Measure the block. `server` are the process ids of the server that it is about."""
    row = Row(name, rows)
    mine = [os.getpid()]
    with MemoryWatch(mine) as memory, CpuWatch(mine) as cpu, CpuWatch(server) as server_cpu:
        began = time.perf_counter()
        yield row
        row.seconds = time.perf_counter() - began
    row.cpu_s, row.server_cpu_s, row.peak_mb = cpu.seconds, server_cpu.seconds, memory.peak_mb
    row.is_counted = cpu.is_counted and server_cpu.is_counted


def table(rows: Sequence[Row]) -> str:
    """For people."""
    head = f"{'workload':<27}{'rows':>12}{'rows/s':>12}{'per CPU-s':>12}{'server CPU':>12}{'peak MB':>10}  also"
    lines = [head, "-" * len(head)]
    for row in rows:
        share = f"{row.server_cpu_s / row.cpu_s:.0%}" if row.cpu_s else "-"
        also = ", ".join(f"{name} {value:,.1f}" for name, value in row.numbers.items())
        lines.append(
            f"{row.name:<27}{row.rows:>12,}{row.per_second:>12,.0f}{row.per_cpu_second:>12,.0f}{share:>12}"
            f"{row.peak_mb:>10,.0f}  {also}{'  WRONG: ' + row.wrong if row.wrong else ''}"
        )
    if not all(row.is_counted for row in rows):
        lines.append("No control group could be made here: of a process that ended, up to 0.2 s of CPU are missing.")
    return "\n".join(lines)
