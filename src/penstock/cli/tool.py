"""Running a tool that works on a store itself: its errors as one line, and a bar for people who watch it.

It knows neither the tools nor the stores. Next stop: `commands/store.py`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.output import console, printable_lines

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Result = TypeVar("Result")

store_argument = click.argument("place", metavar="[STORE]", envvar="PENSTOCK_STORE_PATH", default="data/penstock.db")
"""A file or a URL, as `store.path` of a server."""


def run_tool(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it; what Penstock refuses becomes one line and exit code 1. Ctrl+C ends it without a word."""
    import asyncio

    from penstock.model.errors import PenstockError

    try:
        return asyncio.run(work)
    except PenstockError as error:
        raise click.ClickException(printable_lines(str(error))) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


class StageBar:
    """How far each stage of a tool is, on a terminal's stderr; nothing elsewhere. Call it with stage, done, total."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> StageBar:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._bar is None:
            return
        if stage != self._stage or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._stage, self._task = stage, self._bar.add_task(stage, total=total)
        self._bar.update(self._task, completed=done, total=total)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
