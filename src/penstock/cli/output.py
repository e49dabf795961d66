"""What commands print: tables for people, JSON for programs, and no control character from outside.

Names, payloads, headers and errors come from any publisher: an escape sequence among them could rewrite the
reader's terminal. Everything of that kind goes through `printable`, JSON through `json_text`. Knows
nothing of the server.
"""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE: Final = 100_000
"""Width when the output is not a terminal: what goes to a file or a program is not cut."""

# Direction overrides can make a text read as another; lone surrogates cannot be printed at all.
_CONFUSING: Final = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNSAFE: Final = re.compile(f"[\x00-\x1f\x7f-\x9f{_CONFUSING}\ud800-\udfff]")
_UNSAFE_LINE: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_CONFUSING}\ud800-\udfff]")
_UNSAFE_JSON: Final = re.compile(f"[\x7f-\x9f{_CONFUSING}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


# Text ----------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """On one line, with every character that a terminal would obey written out."""
    return _UNSAFE.sub(_written, text)


def printable_lines(text: str) -> str:
    """The same, but line ends and tabs stay."""
    return _UNSAFE_LINE.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def payload_text(payload: bytes) -> str:
    """A payload to look at: as text where it is UTF-8, in base64 where it is not."""
    try:
        return printable(payload.decode())
    except UnicodeDecodeError:
        return f"base64:{b64encode(payload).decode()}"


def option_text(options: dict[str, Any]) -> str:
    """`lease_ms=60000 ordered=true`"""
    return " ".join(f"{name}={value_text(value)}" for name, value in options.items())


def value_text(value: object) -> str:
    return printable(value if isinstance(value, str) else json_line(value))


def target_text(queue: str | None, exchange: str | None) -> str:
    """Where messages go: `queue mail` or `exchange orders`."""
    return f"queue {queue}" if queue is not None else f"exchange {exchange}"


def counted(count: int, thing: str) -> str:
    """`1 message`, `2,000 messages`"""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# JSON ----------------------------------------------------------------------------------------------------


def json_line(value: object) -> str:
    """One line, as the HTTP API writes it."""
    import msgspec

    return escaped(msgspec.json.encode(value))


def print_json(value: object) -> None:
    """One document, indented."""
    import msgspec

    click.echo(escaped(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def escaped(data: bytes) -> str:
    """JSON, also from outside, that is safe to print."""
    # These occur in strings only, where an escape means the same.
    return _UNSAFE_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode())


# Tables --------------------------------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """Where tables go; without colours and as wide as it takes when it is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def make_table(titles: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[str] = ()) -> Table:
    """A table of plain values; the columns called `numbers` are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        is_number = title in numbers
        table.add_column(
            title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold", style=STYLES.get(title)
        )
    for row in rows:
        table.add_row(*(value if isinstance(value, Text) else Text(cell_text(value)) for value in row))
    return table


STYLES: Final = {"queue": "cyan", "group": "cyan", "exchange": "cyan", "schedule": "cyan", "option": "cyan"}


def cell_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Collection[str] = (), empty: str = "Nothing."
) -> None:
    listed = list(rows)
    if listed:
        # Rich pads every line with blanks.
        place = console()
        with place.capture() as capture:
            place.print(make_table(titles, listed, numbers))
        click.echo("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")), color=True)
    else:
        click.echo(empty)


# Answers -------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a command found or did: data for programs, and what prints it for people."""

    data: object
    print: Callable[[], None]

    def show(self, as_json: bool) -> None:
        if as_json:
            print_json(self.data)
        else:
            self.print()


def said(data: object, text: str) -> Answer:
    """An answer that is a sentence for people."""
    return Answer(data, lambda: click.echo(printable(text)))


def listed(
    data: object,
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    empty: str = "Nothing.",
    more: str = "",
) -> Answer:
    """An answer that is a table for people; `more` is a hint beside it."""

    def tell() -> None:
        print_table(titles, rows, numbers=numbers, empty=empty)
        if more:
            note(more)

    return Answer(data, tell)


def declared(what: str, names: dict[str, str], existed: bool, options: dict[str, Any]) -> Answer:
    """That something was created or was there, and what its options are."""
    state = "was there; its options" if existed else "created; its options"
    shown = option_text(options) or "the defaults"
    text = f"{what.capitalize()} {printable('/'.join(names.values()))} {state}: {shown}"
    return Answer(names | {"created": not existed, "options": options}, lambda: click.echo(text))


def print_options(defaults: Any, options: dict[str, Any]) -> None:
    """All options of a queue, a group or an exchange, and which of them were set."""
    rows = [
        (name, value_text(options.get(name, getattr(defaults, name))), "set" if name in options else "default")
        for name in defaults.__struct_fields__
    ]
    print_table(("option", "value", "from"), rows)


def fields_of(items: Iterable[object], names: Sequence[str]) -> list[tuple[object, ...]]:
    """Rows of a table whose columns are attributes of these names."""
    return [tuple(getattr(item, name) for name in names) for item in items]


def note(text: str) -> None:
    """For people, beside what the command prints for programs."""
    click.echo(printable_lines(text), err=True)


def note_damage(damaged: Iterable[object]) -> None:
    """Warn of what a command passed over because it is damaged in the store."""
    for gap in damaged:
        note(f"warning: damaged in the store, passed over: {gap}. See 'penstock store verify'")


def note_alarms(alarms: Iterable[str]) -> None:
    """Warn of what the server is low on."""
    for alarm in alarms:
        note(f"warning: {alarm}. Publishes are held back, then refused; consumers go on")


# Asking --------------------------------------------------------------------------------------------------


def confirm(question: str, yes: bool) -> None:
    """Go on only if --yes was given or a person says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{printable(question)} There is no terminal to ask on: pass --yes.")
    click.confirm(printable(question), abort=True, err=True)
