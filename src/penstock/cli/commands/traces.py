"""`penstock trace …`: the timeline of one id across queues, and named events for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import answered
from penstock.cli.moments import absolute, span_text, when
from penstock.cli.names import complete_queue, max_option
from penstock.cli.output import Answer, print_table, printable, said

if TYPE_CHECKING:
    from penstock.api.inspect import Trace, TraceEntry
    from penstock.client.client import AsyncClient


@click.group(cls=SuggestingGroup)
def trace() -> None:
    """See what happened to the messages of one trace id.

    \b
    Examples:
      penstock publish orders '{"id": 1}' --trace-id order-1
      penstock trace add order-1 invoice-printed
      penstock trace show order-1
    """


@trace.command("show")
@click.argument("trace_id", metavar="ID")
@max_option(1_000, 100_000, " entries")
@answered
async def show(client: AsyncClient, trace_id: str, most: int) -> Answer:
    """Show the timeline of an id: where its messages went, what happened to them, what was noted.

    \b
    Examples:
      penstock trace show order-1
      penstock trace show order-1 --json
    """
    found = await client.trace(trace_id, max=most)
    if not found.entries:
        return said(found, f"Nothing is known of {trace_id}. Timelines are kept for a week.")
    return Answer(found, lambda: print_timeline(found))


def print_timeline(found: Trace) -> None:
    first = found.entries[0].at_ms
    click.echo(f"{printable(found.trace_id)}, from {when(first)}")
    rows = [
        (
            absolute(entry.at_ms)[11:19],
            f"+{span_text(entry.at_ms - first)}",
            entry.name or entry.kind,
            place(entry),
            entry.group or None,
            entry.consumer or None,
            entry.attempt or None,
            entry.detail,
        )
        for entry in found.entries
    ]
    titles = ("time", "after", "what", "message", "group", "consumer", "attempt", "detail")
    print_table(titles, rows, numbers=("after", "attempt"))


def place(entry: TraceEntry) -> str | None:
    return None if entry.queue is None else f"{entry.queue} {entry.lane}:{entry.offset}"


@trace.command("add")
@click.argument("trace_id", metavar="ID")
@click.argument("event")
@click.option("--detail", default="", help="More about it.")
@click.option("--queue", shell_complete=complete_queue, help="The queue of the message that it is about.")
@click.option("--offset", type=click.IntRange(min=0), help="The offset of that message.")
@click.option("--lane", type=click.IntRange(min=0), help="Its lane, where the queue has several.")
@click.option("--consumer", help="Who says so.")
@answered
async def add(client: AsyncClient, trace_id: str, event: str, **about: Any) -> Answer:
    """Note an event on a timeline, perhaps about one message.

    \b
    Examples:
      penstock trace add order-1 invoice-printed
      penstock trace add order-1 refused --detail 'card expired' --queue orders --offset 17
    """
    has_queue = about["queue"] is not None
    if has_queue != (about["offset"] is not None) or (about["lane"] is not None and not has_queue):
        raise click.UsageError("an event about a message needs --queue and --offset; give both, or neither")
    await client.trace_event(trace_id, event, **about)
    return said({"trace_id": trace_id, "name": event}, f"Noted {event} on {trace_id}.")
