"""Runs a shell command for one message: the payload is its stdin, its exit code says whether it succeeded."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.cli.output import json_line

if TYPE_CHECKING:
    from penstock.api.results import Received

STDERR_BYTES_KEPT: Final = 2_000
TERMINATE_SECONDS: Final = 3.0
STDERR_SECONDS: Final = 1.0


async def execute(command: str, received: Received) -> str | None:
    """Why the command failed; None where it did not. When cancelled it takes the command with it."""
    async with Stderr() as stderr:
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.PIPE,
            stderr=stderr.for_command,
            env=environment(received),
            # Its own group, so that Ctrl+C comes to us alone, and we decide what becomes of it.
            start_new_session=True,
        )
        stderr.started()
        try:
            await feed(process, received.payload)
            code = await process.wait()
            await stderr.wait()
        except BaseException:
            await end(process)
            raise
    if code == 0:
        return None
    why = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{why}: {stderr.text}" if stderr.text else why


class Stderr:
    """What a command says on its stderr: passed on to ours, and the end of it kept.

    A pipe of our own: what the command leaves running may hold it open, and is not waited for.
    """

    def __init__(self) -> None:
        self._tail = b""

    @property
    def text(self) -> str:
        return self._tail.decode(errors="replace").strip()

    async def __aenter__(self) -> Stderr:
        ours, self.for_command = os.pipe()
        reader = asyncio.StreamReader()
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
        )
        self._passing_on = asyncio.create_task(self._pass_on(reader))
        return self

    def started(self) -> None:
        """The command has its end of the pipe: ours would keep it open."""
        os.close(self.for_command)
        self.for_command = -1

    async def wait(self) -> None:
        """Until everything is passed on, or a little while after."""
        await asyncio.wait([self._passing_on], timeout=STDERR_SECONDS)

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            sys.stderr.buffer.write(data)
            sys.stderr.flush()
            self._tail = (self._tail + data)[-STDERR_BYTES_KEPT:]

    async def __aexit__(self, *_: object) -> None:
        if self.for_command >= 0:
            self.started()
        self._passing_on.cancel()
        self._pipe.close()


def environment(received: Received) -> dict[str, str]:
    from penstock.model.typed_headers import json_headers

    message = received.message
    about = {
        "QUEUE": received.queue,
        "LANE": str(received.lane),
        "OFFSET": str(received.offset),
        "ATTEMPT": str(received.attempt),
        "PARTITION": message.partition or "",
        "KEY": message.key or "",
        "TRACE_ID": message.trace_id or "",
        "HEADERS": json_line(json_headers(received.headers)),
    }
    # No variable can hold a zero character; MESSAGE_HEADERS has the value in full.
    return os.environ | {f"MESSAGE_{name}": value.replace("\0", "") for name, value in about.items()}


async def feed(process: asyncio.subprocess.Process, payload: bytes) -> None:
    assert process.stdin is not None
    # A command need not read what it is given.
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(payload)
        await process.stdin.drain()
    process.stdin.close()


async def end(process: asyncio.subprocess.Process) -> None:
    """Ask the command and all that it started to end, and make them after a while."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), TERMINATE_SECONDS)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
