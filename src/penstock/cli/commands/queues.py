"""`penstock queue …`: create, list, show, change, delete, purge and pause queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import ServerAddress, answered, json_option, server_options, with_client
from penstock.cli.names import all_option, confirmed, prefix_option, queue_argument, yes_option
from penstock.cli.option_values import QUEUE_FLAGS, options_of
from penstock.cli.output import (
    Answer,
    confirm,
    counted,
    declared,
    fields_of,
    listed,
    option_text,
    print_options,
    print_table,
    said,
)

if TYPE_CHECKING:
    from penstock.api.inspect import GroupStats
    from penstock.client.client import AsyncClient

GROUP_NUMBERS = ("ready", "leased", "scheduled", "dead", "lag")
GROUP_TITLES = ("group", "kind", *GROUP_NUMBERS, "paused")


@click.group(cls=SuggestingGroup)
def queue() -> None:
    """Create, list, change and delete queues.

    \b
    Examples:
      penstock queue create mail --max-attempts 3
      penstock queue list
      penstock queue show mail
    """


@queue.command("create")
@click.argument("name")
@options_of("QueueConfig", QUEUE_FLAGS)
@answered
async def create(client: AsyncClient, name: str, options: dict[str, Any]) -> Answer:
    """Create a queue, or change the options named here of the one that exists.

    \b
    Examples:
      penstock queue create mail
      penstock queue create orders --ordered --lanes 4 --max-attempts 3 --lease-ms 60000
      penstock queue create log --option retain_messages=100000 --option keep_done_ms=3600000
    """
    existed = await client.has_queue(name)
    await client.declare_queue(name, **options)
    return declared("queue", {"name": name}, existed, await client.queue_options(name))


@queue.command("set")
@queue_argument
@options_of("QueueConfig", QUEUE_FLAGS)
@answered
async def change(client: AsyncClient, queue: str, options: dict[str, Any]) -> Answer:
    """Change options of a queue that exists.

    \b
    Examples:
      penstock queue set mail --lease-ms 120000
      penstock queue set mail --option ttl_ms=null --rate 50
    """
    if not options:
        raise click.UsageError("nothing to change; name an option, for example --lease-ms 60000")
    await client.queue_options(queue)  # raises where there is none
    await client.declare_queue(queue, **options)
    return declared("queue", {"name": queue}, True, await client.queue_options(queue))


@queue.command("list")
@prefix_option
@all_option
@answered
async def list_queues(client: AsyncClient, prefix: str, show_all: bool) -> Answer:
    """List queues with their options that differ from the defaults.

    \b
    Examples:
      penstock queue list
      penstock queue list --prefix mail. --json
    """
    found = {
        name: options
        for name, options in sorted((await client.queues()).items())
        if name.startswith(prefix) and (show_all or not name.startswith("$"))
    }
    return listed(
        [{"name": name, "options": options} for name, options in found.items()],
        ("queue", "options"),
        [(name, option_text(options)) for name, options in found.items()],
        empty="There are no queues. Make one with: penstock queue create NAME",
    )


@queue.command("show")
@queue_argument
@answered
async def show(client: AsyncClient, queue: str) -> Answer:
    """Show all options of a queue, and the counts of its groups.

    \b
    Examples:
      penstock queue show mail
      penstock queue show mail --json
    """
    from penstock.model import QueueConfig

    options, stats = await client.queue_options(queue), await client.stats(queue)

    def tell() -> None:
        print_options(QueueConfig(), options)
        kept = counted(stats.messages, "message")
        click.echo(f"\n{kept} kept; {stats.published:,} ever published, {stats.bytes_published:,} bytes.\n")
        print_groups(stats.groups)

    return Answer({"name": queue, "options": options, "stats": stats}, tell)


def print_groups(groups: list[GroupStats]) -> None:
    empty = "It has no groups yet; the first consumer makes one."
    print_table(GROUP_TITLES, fields_of(groups, GROUP_TITLES), numbers=GROUP_NUMBERS, empty=empty)


@queue.command("delete")
@queue_argument
@yes_option
@server_options
@json_option
def delete(queue: str, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Delete a queue with everything in it.

    \b
    Examples:
      penstock queue delete mail
      penstock queue delete mail --yes
    """
    if not yes:
        stats = with_client(server, lambda client: client.stats(queue))
        confirm(f"Delete queue {queue!r} with its {counted(stats.messages, 'message')}?", yes)
    with_client(server, lambda client: client.delete_queue(queue))
    said({"deleted": queue}, f"Queue {queue} deleted.").show(as_json)


@queue.command("purge")
@queue_argument
@confirmed("Let go of everything that waits in queue {queue!r}?")
@answered
async def purge(client: AsyncClient, queue: str) -> Answer:
    """Make all messages done that no consumer holds, for every work group.

    Dead letters stay (see 'penstock dead purge'), and so does what stream groups read.

    \b
    Examples:
      penstock queue purge mail
      penstock queue purge mail --yes --json
    """
    groups = await client.groups(queue)
    kept = [name for name, options in groups.items() if options.get("kind") != "stream"]
    # A queue without a consumer so far has no group yet, but its messages wait for the default one.
    counts = {name: await client.purge(queue, name) for name in (kept if groups else ["default"])}
    words = ", ".join(f"{counted(count, 'message')} of group {name}" for name, count in counts.items())
    return said({"queue": queue, "purged": counts}, f"Purged {words or 'nothing: it has stream groups only'}.")


@queue.command("pause")
@queue_argument
@answered
async def pause(client: AsyncClient, queue: str) -> Answer:
    """Hand out nothing more of a queue.

    Publishing goes on, and what is leased can still be settled.

    \b
    Example:
      penstock queue pause mail
    """
    await client.pause(queue)
    return said({"queue": queue, "paused": True}, f"Queue {queue} is paused.")


@queue.command("resume")
@queue_argument
@answered
async def resume(client: AsyncClient, queue: str) -> Answer:
    """Hand out messages of a paused queue again.

    \b
    Example:
      penstock queue resume mail
    """
    await client.resume(queue)
    return said({"queue": queue, "paused": False}, f"Queue {queue} is not paused any more.")
