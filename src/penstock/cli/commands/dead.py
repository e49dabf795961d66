"""`penstock dead …`: dead letters of a group: look at them, give them another chance, or let them go."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeVar

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.queues import said
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.moments import when
from penstock.cli.names import group_option, queue_argument, yes_option
from penstock.cli.output import confirm, counted, payload_text, print_json, print_table

if TYPE_CHECKING:
    from penstock.api.dead_letters import DeadMessage, DeadReason
    from penstock.client.client import AsyncClient

Command = TypeVar("Command", bound=Callable[..., Any])
LIST_MAX: Final = 100
OFFSET_END: Final = 2**63 - 1


class Choice(NamedTuple):
    """Which dead letters: all conditions that are given hold."""

    reason: str | None
    error: str | None
    offsets: tuple[int, int] | None
    filter: str | None

    @property
    def is_all(self) -> bool:
        return all(value is None for value in self)


def choice_options(command: Command) -> Command:
    """--reason, --error, --offsets and --filter; the command gets them as one argument, `choice`."""

    @functools.wraps(command)
    def with_choice(
        *arguments: Any,
        reason: str | None,
        error: str | None,
        offsets: str | None,
        condition: str | None,
        **others: Any,
    ) -> Any:
        return command(*arguments, choice=Choice(reason, error, offsets_of(offsets), condition), **others)

    decorated: Any = click.option("--filter", "condition", help="Only messages whose metadata meet this condition.")(
        with_choice
    )
    decorated = click.option("--offsets", metavar="FIRST:LAST", help="Only these; a single offset will do too.")(
        decorated
    )
    decorated = click.option("--error", metavar="TEXT", help="Only those whose error contains this.")(decorated)
    decorated = click.option("--reason", help="Only dead letters with this reason: attempts, rejected, expired …")(
        decorated
    )
    made: Command = decorated
    return made


def offsets_of(text: str | None) -> tuple[int, int] | None:
    """`3:9` is 3 to 9, `3:` all from 3 on, `3` that one; as [start, end)."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not all(part.isascii() and (part.isdigit() or not part) for part in (first, last)) or not (first or last):
        raise click.BadParameter(f"{text!r} must be FIRST:LAST, for example 3:9, 3: or :9", param_hint="--offsets")
    start = int(first or 0)
    end = int(last) + 1 if last else OFFSET_END if colon else start + 1
    if end <= start:
        raise click.BadParameter(f"{text!r} ends before it begins", param_hint="--offsets")
    return start, end


@click.group(cls=SuggestingGroup)
def dead() -> None:
    """Look at dead letters, redrive or purge them.

    A message is dead for a group when it ran out of attempts, was rejected, or expired.

    \b
    Examples:
      penstock dead reasons mail
      penstock dead list mail --error timeout
      penstock dead redrive mail --error timeout
    """


@dead.command("list")
@queue_argument
@group_option
@choice_options
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 100_000),
    default=LIST_MAX,
    show_default=True,
    help="Show at most this many.",
)
@server_options
@json_option
def list_dead(queue: str, group: str, choice: Choice, most: int, server: ServerAddress, as_json: bool) -> None:
    """List dead letters with why they died.

    \b
    Examples:
      penstock dead list mail
      penstock dead list mail --group sending --reason rejected --max 10
      penstock dead list mail --filter "region = 'eu'" --json
    """

    async def work(client: AsyncClient) -> list[DeadMessage]:
        return await client.dead(queue, group, max=most, **choice._asdict())

    found = with_client(server, work)
    if as_json:
        from penstock.fronts.http.handlers.bodies import dead_body

        print_json([dead_body(one) for one in found])
        return
    rows = [
        (
            f"{one.received.lane}:{one.received.offset}",
            one.reason,
            one.error,
            one.attempts,
            when(one.dead_ms),
            one.consumer,
            payload_text(one.received.payload)[:200],
        )
        for one in found
    ]
    titles = ("place", "reason", "error", "attempts", "died", "consumer", "payload")
    print_table(titles, rows, numbers=("attempts",), empty="There are no such dead letters.")
    if len(found) == most:
        click.echo(f"These are the first {most:,}; there may be more. See --max, or 'penstock dead reasons'.", err=True)


@dead.command("reasons")
@queue_argument
@group_option
@server_options
@json_option
def reasons(queue: str, group: str, server: ServerAddress, as_json: bool) -> None:
    """Count dead letters by why they died, the most frequent first.

    \b
    Examples:
      penstock dead reasons mail
      penstock dead reasons mail --group sending --json
    """

    async def work(client: AsyncClient) -> list[DeadReason]:
        return await client.dead_reasons(queue, group)

    found = with_client(server, work)
    if as_json:
        print_json(found)
        return
    rows = [(one.count, one.reason, one.error, when(one.oldest_ms), when(one.newest_ms)) for one in found]
    titles = ("count", "reason", "error", "oldest", "newest")
    print_table(titles, rows, numbers=("count",), empty="There are no dead letters.")


@dead.command("redrive")
@queue_argument
@group_option
@choice_options
@server_options
@json_option
def redrive(queue: str, group: str, choice: Choice, server: ServerAddress, as_json: bool) -> None:
    """Give dead letters to their group again, with all attempts.

    \b
    Examples:
      penstock dead redrive mail
      penstock dead redrive mail --error timeout
      penstock dead redrive mail --offsets 100:199
    """

    async def work(client: AsyncClient) -> int:
        return await client.redrive(queue, group, **choice._asdict())

    count = with_client(server, work)
    said({"queue": queue, "group": group, "redriven": count}, f"{counted(count, 'dead letter')} redriven.", as_json)


@dead.command("purge")
@queue_argument
@group_option
@choice_options
@yes_option
@server_options
@json_option
def purge(queue: str, group: str, choice: Choice, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Let dead letters go for good.

    \b
    Examples:
      penstock dead purge mail --reason expired
      penstock dead purge mail --yes
    """
    confirm(
        f"Let {'all' if choice.is_all else 'the chosen'} dead letters of {queue!r} for group {group!r} go for good?",
        yes,
    )

    async def work(client: AsyncClient) -> int:
        return await client.purge_dead(queue, group, **choice._asdict())

    count = with_client(server, work)
    said({"queue": queue, "group": group, "purged": count}, f"{counted(count, 'dead letter')} purged.", as_json)


@dead.command("export")
@queue_argument
@group_option
@choice_options
@click.option("--file", "path", type=click.File("wb", lazy=True), help="Write there instead of stdout.")
@server_options
def export(queue: str, group: str, choice: Choice, path: BinaryIO | None, server: ServerAddress) -> None:
    """Write dead letters as JSON, one object a line.

    \b
    Examples:
      penstock dead export mail > dead.ndjson
      penstock dead export mail --group sending --reason rejected --file dead.ndjson
    """
    from penstock.cli.exporting import export_dead

    export_dead(server, queue, group, choice, path)
