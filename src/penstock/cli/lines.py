"""Lines of files or of stdin, read ahead by a thread: a pipe may be silent for hours while the command has work to do.

The consumer gets the lines read so far at once, and waits only when there are none. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import click

AHEAD_LINES: Final = 4_000
AHEAD_BYTES: Final = 32 * 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than any message can be, in whatever way it is written."""


class Line(NamedTuple):
    """One line without its end, and where it stands."""

    file: str
    number: int
    data: bytes

    @property
    def place(self) -> str:
        return f"line {self.number} of {'stdin' if self.file == '-' else self.file}"


class LinesAhead:
    """Lines read and not yet taken."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._has_room = threading.Condition()
        self._is_ended = False
        self._failure: str | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        # A daemon: nothing can wake it from a silent pipe.
        threading.Thread(target=self._read, name="penstock-lines", daemon=True).start()

    async def batches(self, lines_max: int, bytes_max: int) -> AsyncIterator[list[Line]]:
        """All lines in order: each time what there is, up to the limits. Raises where a file cannot be read."""
        while True:
            await self._changed.wait()
            taken: list[Line] = []
            size = 0
            with self._has_room:
                while self._lines and len(taken) < lines_max and size < bytes_max:
                    line = self._lines.popleft()
                    size += len(line.data)
                    taken.append(line)
                self._bytes -= size
                if not self._lines and not self._is_ended:
                    self._changed.clear()
                is_over = self._is_ended and not self._lines
                self._has_room.notify()
            if taken:
                yield taken
            if is_over:
                if self._failure is not None:
                    raise click.ClickException(self._failure)
                return

    # The thread -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            for file in self._files:
                with opened(file) as stream:
                    for line in lines_of(file, stream):
                        self._put(line)
        except (OSError, ValueError) as error:
            self._failure = str(error)
        with self._has_room:
            self._is_ended = True
        self._wake()

    def _put(self, line: Line) -> None:
        with self._has_room:
            while len(self._lines) >= AHEAD_LINES or self._bytes >= AHEAD_BYTES:
                self._has_room.wait()
            was_empty = not self._lines
            self._lines.append(line)
            self._bytes += len(line.data)
        if was_empty:
            self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    if file != "-":
        with Path(file).open("rb") as stream:
            yield stream
        return
    stdin = sys.stdin.buffer
    try:
        number = stdin.fileno()
    except (OSError, AttributeError):  # a test's, which is no file
        yield stdin
        return
    # Not sys.stdin's own buffer: Python ends badly while a thread waits in it.
    with open(number, "rb", closefd=False) as stream:
        yield stream


def lines_of(file: str, stream: BinaryIO) -> Iterator[Line]:
    number = 0
    while data := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(data) > LINE_BYTES_MAX:
            raise ValueError(f"{Line(file, number, b'').place} has more than {LINE_BYTES_MAX} bytes")
        yield Line(file, number, data.removesuffix(b"\n").removesuffix(b"\r"))


# Progress ------------------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal's stderr; nothing elsewhere. With the size of the files where it can be known."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._messages = 0

    def __enter__(self) -> Progress:
        self._bar = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            from penstock.cli.output import console

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=console(stderr=True), transient=True)
            self._task = self._bar.add_task("publishing", total=self._size())
            self._bar.start()
        return self

    def _size(self) -> int | None:
        paths = [Path(file) for file in self._files]
        if "-" in self._files or not all(path.is_file() for path in paths):
            return None
        return sum(path.stat().st_size for path in paths)

    def advance(self, lines: list[Line]) -> None:
        self._messages += len(lines)
        if self._bar is not None:
            size = sum(len(line.data) + 1 for line in lines)
            self._bar.update(self._task, advance=size, description=f"{self._messages:,} messages")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
