"""Received messages on stdout: a line each for people, a JSON object each for programs, or the payload alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from penstock.cli.moments import when
from penstock.cli.output import json_line, payload_text, printable, value_text

if TYPE_CHECKING:
    from penstock.api.results import Received

Show = Callable[["Iterable[Received]"], None]

raw_option = click.option(
    "--raw", is_flag=True, help="Only the payloads, each with a line end; byte for byte unless on a terminal."
)


def shower(*, as_json: bool, raw: bool) -> Show:
    """A function that shows messages and returns when they have left this process."""
    if as_json and raw:
        raise click.UsageError("--json and --raw are two ways to print a message; choose one")
    if raw and not sys.stdout.isatty():
        return _show_bytes
    line = _json if as_json else _payload if raw else _line

    def show(messages: Iterable[Received]) -> None:
        for received in messages:
            click.echo(line(received))
        sys.stdout.flush()

    return show


def _show_bytes(messages: Iterable[Received]) -> None:
    stream = sys.stdout.buffer
    for received in messages:
        stream.write(received.payload + b"\n")
    stream.flush()


def _json(received: Received) -> str:
    from penstock.wire.http.shapes import received_body

    return json_line(received_body(received))


def _payload(received: Received) -> str:
    return payload_text(received.payload)


def _line(received: Received) -> str:
    message = received.message
    named = {
        "partition": message.partition,
        "key": message.key,
        "priority": message.priority or None,
        "attempt": received.attempt if received.attempt > 1 else None,
        "trace": message.trace_id,
    }
    about = [f"{name}={printable(str(value))}" for name, value in named.items() if value is not None]
    about += [f"{printable(name)}={_header(value)}" for name, value in received.headers.items()]
    place = click.style(f"{received.lane}:{received.offset}", fg="cyan")
    words = click.style(" ".join([when(received.published_ms), *about]), dim=True)
    return f"{place} {words} {payload_text(received.payload)}"


def _header(value: object) -> str:
    from penstock.model.typed_headers import json_headers

    return value_text(json_headers({"": value})[""])
