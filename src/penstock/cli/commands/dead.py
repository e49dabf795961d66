"""`penstock dead …`: dead letters of a group: look at them, give them another chance, or let them go."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import ServerAddress, answered, server_options
from penstock.cli.grouped_options import as_one
from penstock.cli.moments import when
from penstock.cli.names import confirmed, group_option, max_option, queue_argument
from penstock.cli.output import Answer, counted, listed, note_damage, payload_text, said

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

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

    @property
    def extent(self) -> str:
        return "all" if self.is_all else "the chosen"


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


def _choice(reason: str | None, error: str | None, offsets: str | None, condition: str | None) -> Choice:
    return Choice(reason, error, offsets_of(offsets), condition)


choice_options = as_one(
    "choice",
    _choice,
    click.option("--reason", help="Only dead letters with this reason: attempts, rejected, expired …"),
    click.option("--error", metavar="TEXT", help="Only those whose error contains this."),
    click.option("--offsets", metavar="FIRST:LAST", help="Only these; a single offset will do too."),
    click.option("--filter", "condition", help="Only messages whose metadata meet this condition."),
)
"""--reason, --error, --offsets and --filter; the command gets them as one argument, `choice`."""


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
@max_option(100, 100_000)
@answered
async def list_dead(client: AsyncClient, queue: str, group: str, choice: Choice, most: int) -> Answer:
    """List dead letters with why they died.

    \b
    Examples:
      penstock dead list mail
      penstock dead list mail --group sending --reason rejected --max 10
      penstock dead list mail --filter "region = 'eu'" --json
    """
    from penstock.wire.http.answers import DeadBody

    found = await client.dead(queue, group, max=most, **choice._asdict())
    note_damage(found.damaged)
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
    hint = f"These are the first {most:,}; there may be more. See --max, or 'penstock dead reasons'."
    return listed(
        [DeadBody.of(one) for one in found],
        ("place", "reason", "error", "attempts", "died", "consumer", "payload"),
        rows,
        numbers=("attempts",),
        empty="There are no such dead letters.",
        more=hint if len(found) == most else "",
    )


@dead.command("reasons")
@queue_argument
@group_option
@answered
async def reasons(client: AsyncClient, queue: str, group: str) -> Answer:
    """Count dead letters by why they died, the most frequent first.

    \b
    Examples:
      penstock dead reasons mail
      penstock dead reasons mail --group sending --json
    """
    found = await client.dead_reasons(queue, group)
    rows = [(one.count, one.reason, one.error, when(one.oldest_ms), when(one.newest_ms)) for one in found]
    titles = ("count", "reason", "error", "oldest", "newest")
    return listed(found, titles, rows, numbers=("count",), empty="There are no dead letters.")


@dead.command("redrive")
@queue_argument
@group_option
@choice_options
@answered
async def redrive(client: AsyncClient, queue: str, group: str, choice: Choice) -> Answer:
    """Give dead letters to their group again, with all attempts.

    \b
    Examples:
      penstock dead redrive mail
      penstock dead redrive mail --error timeout
      penstock dead redrive mail --offsets 100:199
    """
    count = await client.redrive(queue, group, **choice._asdict())
    return said({"queue": queue, "group": group, "redriven": count}, f"{counted(count, 'dead letter')} redriven.")


@dead.command("purge")
@queue_argument
@group_option
@choice_options
@confirmed("Let {choice.extent} dead letters of {queue!r} for group {group!r} go for good?")
@answered
async def purge(client: AsyncClient, queue: str, group: str, choice: Choice) -> Answer:
    """Let dead letters go for good.

    \b
    Examples:
      penstock dead purge mail --reason expired
      penstock dead purge mail --yes
    """
    count = await client.purge_dead(queue, group, **choice._asdict())
    return said({"queue": queue, "group": group, "purged": count}, f"{counted(count, 'dead letter')} purged.")


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
