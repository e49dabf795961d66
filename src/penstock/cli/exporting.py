"""All dead letters of a group, streamed from the server to a file or stdout: however many, they need no memory here."""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

import click
import msgspec

from penstock.cli.commands.dead import OFFSET_END, Choice
from penstock.cli.connection import ServerAddress
from penstock.cli.output import console, counted, escaped, note_damage, printable_lines
from penstock.client.operations.codec import target
from penstock.client.operations.errors import error_of
from penstock.client.transport.connection import Answer
from penstock.client.transport.pool import Address, addresses_of
from penstock.core.filters import parse
from penstock.model.errors import PenstockError
from penstock.wire.http.answers import DamagedLine, DeadBody

TIMEOUT_SECONDS: Final = 60.0
_DAMAGED: Final = b'{"damaged":'


def export_dead(server: ServerAddress, queue: str, group: str, choice: Choice, file: BinaryIO | None) -> None:
    try:
        is_wanted = wanted(choice)
        address = addresses_of(server.url)[0]
        path = target(server.namespace, "queues", queue, "groups", group, "dead", "export").decode()
        with answered(address, path, server.token) as answer:
            copy(answer, file, is_wanted)
    except PenstockError as error:
        raise click.ClickException(printable_lines(str(error))) from None
    except ConnectionRefusedError as error:
        raise click.ClickException(
            f"there is no server at {server.url} ({error.strerror}); start one with: penstock serve"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, BrokenPipeError) and file is None:
            raise
        raise click.ClickException(
            f"the export from {server.url} broke off: {str(error) or type(error).__name__}"
        ) from None


@contextmanager
def answered(address: Address, path: str, token: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_SECONDS)
    if address.is_secure:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context()
        )
    try:
        connection.request("GET", address.prefix + path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        if answer.status >= 400:
            raise error_of(Answer(answer.status, {}, answer.read()))
        yield answer
    finally:
        connection.close()


def wanted(choice: Choice) -> Callable[[bytes], bool]:
    """Whether a line is of a dead letter that was chosen. The server exports all: it is this side that leaves out."""
    if choice.is_all:
        return lambda _line: True
    decode = msgspec.json.Decoder(DeadBody).decode
    condition = None if choice.filter is None else parse(choice.filter)

    def is_wanted(line: bytes) -> bool:
        body = decode(line)
        start, end = choice.offsets or (0, OFFSET_END)
        return (
            (choice.reason is None or body.reason == choice.reason)
            and (choice.error is None or choice.error in body.error)
            and start <= body.message.offset < end
            and (condition is None or condition.matches(body.message.received().message))
        )

    return is_wanted


def copy(answer: http.client.HTTPResponse, file: BinaryIO | None, is_wanted: Callable[[bytes], bool]) -> None:
    """The server's lines are JSON, in which only what JSON itself escapes is safe on a terminal."""
    from rich.progress import Progress, TextColumn

    count = 0
    is_shown = sys.stderr.isatty() and (file is not None or not sys.stdout.isatty())
    with Progress(TextColumn("{task.description}"), console=console(stderr=True), disable=not is_shown) as progress:
        task = progress.add_task("exporting")
        for line in answer:
            if line.startswith(_DAMAGED):
                note_damage([msgspec.json.decode(line, type=DamagedLine).damaged])
                continue
            if not is_wanted(line):
                continue
            count += 1
            if file is not None:
                file.write(line)
            else:
                click.echo(escaped(line), nl=False)
            if count % 500 == 0:
                progress.update(task, description=f"{count:,} dead letters")
    click.echo(f"{counted(count, 'dead letter')} exported.", err=True)
