"""How a job's progress looks: one live line on a terminal, a plain line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.moments import span_text
from penstock.cli.output import console, counted, printable

if TYPE_CHECKING:
    from rich.live import Live

    from penstock.spark.jobs.frame import Display
    from penstock.spark.jobs.status import JobStatus

LINE_SECONDS: Final = 5.0
"""Seconds between two lines when the output is not a terminal."""
BAR_CELLS: Final = 20


def display() -> Display:
    """What suits stderr."""
    return TerminalDisplay() if sys.stderr.isatty() else LineDisplay()


def progress_text(status: JobStatus) -> str:
    """`archive orders: 1,200,000 messages, 240,000/s, 3,400 behind, 2 min to go (reading)`"""
    parts = [counted(status.rows, "message")]
    if status.rate > 0:
        parts.append(f"{status.rate:,.0f}/s")
    if status.done is not None and status.total:
        parts.append(f"{100 * status.done / status.total:.0f}%")
    if status.lag:
        parts.append(f"{status.lag:,} behind")
    if status.eta_seconds is not None:
        parts.append(f"{span_text(round(status.eta_seconds * 1000))} to go")
    name = f"{status.job} {status.what}".strip()
    note = f" ({status.note})" if status.note else ""
    return printable(f"{name}: {', '.join(parts)}{note}")


class LineDisplay:
    """For a log or a pipe: a line now and then, and only when something changed."""

    def __init__(self, seconds: float = LINE_SECONDS) -> None:
        self._seconds = seconds
        self._shown_at = time.monotonic()
        self._shown = ""

    def show(self, status: JobStatus) -> None:
        now = time.monotonic()
        if now - self._shown_at < self._seconds:
            return
        self._shown_at = now
        text = progress_text(status)
        if text != self._shown:
            self._shown = text
            click.echo(text, err=True)

    def close(self) -> None:
        """Its last line has been said by the summary."""


class TerminalDisplay:
    """One line that changes in place and is gone in the end."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def show(self, status: JobStatus) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        bar = ""
        if status.done is not None and status.total:
            full = min(BAR_CELLS, round(BAR_CELLS * status.done / status.total))
            bar = "━" * full + "╌" * (BAR_CELLS - full) + " "
        self._live.update(Text(bar + progress_text(status), no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
