"""`penstock publish`: one message from an argument, files, or a message for every line of a file or of stdin.

Lines are published in batches, each durable before the next is sent, all in order. What was read is sent without
waiting for more: a slow pipe is as good as a fast one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.message_options import message_of, message_options
from penstock.cli.names import complete_exchange, complete_queue
from penstock.cli.output import counted, note, print_json, printable

if TYPE_CHECKING:
    from penstock.api.results import Receipt
    from penstock.cli.lines import Line
    from penstock.client.client import AsyncClient
    from penstock.model import Message

BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 8 * 1024 * 1024


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.argument("payload", required=False)
@click.option("--exchange", shell_complete=complete_exchange, help="Publish to this exchange instead of a queue.")
@click.option("--mandatory", is_flag=True, help="With --exchange: fail where a message reaches no queue.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file's content is the payload; - is stdin. Repeatable: one message each.",
)
@click.option("--lines", is_flag=True, help="Every line of stdin (or of --file) is a message.")
@click.option("--json-lines", is_flag=True, help="Every line is a message as a JSON object, with all its fields.")
@message_options
@server_options
@json_option
def publish(
    queue: str | None,
    payload: str | None,
    exchange: str | None,
    mandatory: bool,
    files: tuple[str, ...],
    lines: bool,
    json_lines: bool,
    fields: dict[str, Any],
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Publish messages; returns when they are durable.

    The payload is PAYLOAD, the content of a file, or a line of stdin. With --json-lines a line is an object such as
    {"payload": "hello", "partition": "ann", "headers": {"n": 1}}; payload_base64 and payload_json take other payloads,
    and flags are for what a line does not say.

    \b
    Examples:
      penstock publish mail 'hello, world' --header lang=en --delay 10m
      penstock publish mail --file letter.pdf --content-type application/pdf
      tail -F app.log | penstock publish log --lines
      penstock publish mail --json-lines --file messages.ndjson
      penstock publish --exchange orders --key order.eu.paid '{"id": 1}'
    """
    if exchange is not None:
        if payload is not None:
            raise click.UsageError("give a queue or --exchange, not both")
        queue, payload = None, queue
    elif queue is None:
        raise click.UsageError("say where to: a queue's name, or --exchange NAME")
    if mandatory and exchange is None:
        raise click.UsageError("--mandatory is for --exchange")
    if lines and json_lines:
        raise click.UsageError("a line is a payload (--lines) or an object (--json-lines), not both")
    send = sender(queue, exchange, mandatory)
    if lines or json_lines:
        if payload is not None:
            raise click.UsageError("--lines and --json-lines read stdin or --file; leave the payload out")
        publish_all(
            server, send, files or ("-",), json_line_reader(fields) if json_lines else line_reader(fields), as_json
        )
        return
    messages = [message_of(content, fields) for content in contents(payload, files)]

    async def work(client: AsyncClient) -> list[Receipt]:
        return [await send(client, [message]) for message in messages]

    say_places(with_client(server, work), as_json)


Send = Callable[["AsyncClient", "list[Message]"], Coroutine[Any, Any, "Receipt"]]


def sender(queue: str | None, exchange: str | None, mandatory: bool) -> Send:
    async def send(client: AsyncClient, messages: list[Message]) -> Receipt:
        if exchange is not None:
            return await client.publish_to(exchange, messages, mandatory=mandatory)
        assert queue is not None
        return await client.publish_many(queue, messages)

    return send


# One by one ----------------------------------------------------------------------------------------------


def contents(payload: str | None, files: tuple[str, ...]) -> list[bytes]:
    if (payload is None) == (not files):
        raise click.UsageError(
            "say what to publish, in one way: PAYLOAD, --file PATH (- is stdin), --lines or --json-lines"
        )
    if payload is not None:
        # What the shell passed on, byte for byte, even where it is not UTF-8.
        return [payload.encode(errors="surrogateescape")]
    return [sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes() for name in files]


def say_places(receipts: list[Receipt], as_json: bool) -> None:
    places = [place for receipt in receipts for place in receipt.results()]
    if as_json:
        print_json(places)
        return
    for place in places:
        if place.buffered:
            click.echo("Buffered: the store is away, and the server publishes it when it is back.")
            continue
        known = " was known already, and is" if place.duplicate else ""
        click.echo(f"Published to {printable(place.queue)}:{known} offset {place.offset} of lane {place.lane}.")
    for receipt in receipts:
        if not receipt.parts and not receipt.buffered:
            click.echo("Published, but no binding took it: it reached no queue.")


# Line by line --------------------------------------------------------------------------------------------

ANSWER_SECONDS: Final = 2.0
"""How long an interrupted command waits to hear what became of what it has sent."""

ReadLine = Callable[[bytes], "Message | None"]
"""None of a line that says nothing."""


def publish_all(server: ServerAddress, send: Send, files: tuple[str, ...], read: ReadLine, as_json: bool) -> None:
    total = Total()
    try:
        with_client(server, lambda client: publish_lines(client, send, files, read, total), is_patient=True)
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}\n{total.before()}") from None
    except SystemExit:
        note(total.before())
        raise
    total.say(as_json)


class Total:
    """What came of all lines."""

    def __init__(self) -> None:
        self.published = self.stored = self.duplicates = self.buffered = 0
        self.queues: list[str] = []

    def add(self, receipt: Receipt) -> None:
        self.published += len(receipt)
        self.stored += receipt.stored
        self.duplicates += receipt.duplicates
        self.buffered += len(receipt) if receipt.buffered else 0
        self.queues = sorted({*self.queues, *receipt.queues})

    def before(self) -> str:
        return f"{counted(self.published, 'message')} published before that."

    def say(self, as_json: bool) -> None:
        if as_json:
            print_json(vars(self))
            return
        known = f", {self.duplicates:,} of them known already" if self.duplicates else ""
        known += f", {self.buffered:,} of them buffered: the store is away" if self.buffered else ""
        places = f" to {printable(', '.join(self.queues))}" if self.queues else ""
        click.echo(f"Published {counted(self.published, 'message')}{places}{known}.")


def line_reader(fields: dict[str, Any]) -> ReadLine:
    return lambda line: message_of(line, fields)


def json_line_reader(fields: dict[str, Any]) -> ReadLine:
    """A line's own fields; the flags fill the rest."""
    import msgspec

    from penstock.wire.http.shapes import MessageBody, message_body

    decoder = msgspec.json.Decoder(MessageBody)
    encoded = msgspec.to_builtins(message_body(message_of(b"", fields)))
    given = {name: value for name, value in encoded.items() if not name.startswith("payload")}

    def read(line: bytes) -> Message | None:
        if not line.strip():
            return None
        if given:
            own = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            line = msgspec.json.encode(given | own)
        return decoder.decode(line).message()

    return read


async def publish_lines(client: AsyncClient, send: Send, files: tuple[str, ...], read: ReadLine, total: Total) -> None:
    from penstock.cli.lines import LinesAhead, Progress

    with Progress(files) as progress:
        async for lines in LinesAhead(files).batches(BATCH_MESSAGES, BATCH_BYTES):
            batch, problem = messages_of(lines, read)
            if batch:
                await counted_in(total, send(client, batch))
                progress.advance(lines)
            if problem:
                raise click.ClickException(problem)


async def counted_in(total: Total, sending: Coroutine[Any, Any, Receipt]) -> None:
    """Count what is sent. Interrupted, give the answer a moment to come: the server may have the messages already."""
    import asyncio

    task = asyncio.ensure_future(sending)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=ANSWER_SECONDS)
        if task.done() and not task.cancelled() and task.exception() is None:
            total.add(task.result())
        task.cancel()
        raise
    total.add(task.result())


def messages_of(lines: list[Line], read: ReadLine) -> tuple[list[Message], str]:
    """The messages of lines, and what is wrong with the first line that is none."""
    import msgspec

    from penstock.model import check_message
    from penstock.model.errors import PenstockError

    batch: list[Message] = []
    for line in lines:
        try:
            message = read(line.data)
            if message is not None:
                check_message(message)
                batch.append(message)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PenstockError) as error:
            return batch, f"{line.place}: {error}"
    return batch, ""
