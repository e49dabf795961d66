"""`penstock queue …`: create, list, show, change, delete, purge and pause queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.names import queue_argument, yes_option
from penstock.cli.option_values import QUEUE_FLAGS, options_of
from penstock.cli.output import confirm, counted, option_text, print_json, print_table, printable, value_text

if TYPE_CHECKING:
    from penstock.api.inspect import QueueStats
    from penstock.client.client import AsyncClient

GROUP_TITLES = ("group", "kind", "ready", "leased", "scheduled", "dead", "lag", "paused")
GROUP_NUMBERS = ("ready", "leased", "scheduled", "dead", "lag")


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
@server_options
@json_option
def create(name: str, options: dict[str, Any], server: ServerAddress, as_json: bool) -> None:
    """Create a queue, or change the options named here of the one that exists.

    \b
    Examples:
      penstock queue create mail
      penstock queue create orders --ordered --lanes 4 --max-attempts 3 --lease-ms 60000
      penstock queue create log --option retain_messages=100000 --option keep_done_ms=3600000
    """

    async def work(client: AsyncClient) -> tuple[bool, dict[str, Any]]:
        existed = await client.has_queue(name)
        await client.declare_queue(name, **options)
        return existed, await client.queue_options(name)

    existed, found = with_client(server, work)
    declared("queue", {"name": name}, existed, found, as_json)


def declared(what: str, names: dict[str, str], existed: bool, options: dict[str, Any], as_json: bool) -> None:
    """Say that something was created or was there, and what its options are."""
    if as_json:
        print_json(names | {"created": not existed, "options": options})
    else:
        state = "was there; its options" if existed else "created; its options"
        shown = option_text(options) or "the defaults"
        click.echo(f"{what.capitalize()} {printable('/'.join(names.values()))} {state}: {shown}")


@queue.command("set")
@queue_argument
@options_of("QueueConfig", QUEUE_FLAGS)
@server_options
@json_option
def change(queue: str, options: dict[str, Any], server: ServerAddress, as_json: bool) -> None:
    """Change options of a queue that exists.

    \b
    Examples:
      penstock queue set mail --lease-ms 120000
      penstock queue set mail --option ttl_ms=null --rate 50
    """
    if not options:
        raise click.UsageError("nothing to change; name an option, for example --lease-ms 60000")

    async def work(client: AsyncClient) -> dict[str, Any]:
        await client.queue_options(queue)  # raises where there is none
        await client.declare_queue(queue, **options)
        return await client.queue_options(queue)

    declared("queue", {"name": queue}, True, with_client(server, work), as_json)


@queue.command("list")
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--all", "show_all", is_flag=True, help="Also the system's own, such as $events.")
@server_options
@json_option
def list_queues(prefix: str, show_all: bool, server: ServerAddress, as_json: bool) -> None:
    """List queues with their options that differ from the defaults.

    \b
    Examples:
      penstock queue list
      penstock queue list --prefix mail. --json
    """

    async def work(client: AsyncClient) -> dict[str, dict[str, Any]]:
        return await client.queues()

    found = {
        name: options
        for name, options in sorted(with_client(server, work).items())
        if name.startswith(prefix) and (show_all or not name.startswith("$"))
    }
    if as_json:
        print_json([{"name": name, "options": options} for name, options in found.items()])
    else:
        empty = "There are no queues. Make one with: penstock queue create NAME"
        rows = [(name, option_text(options)) for name, options in found.items()]
        print_table(("queue", "options"), rows, empty=empty)


@queue.command("show")
@queue_argument
@server_options
@json_option
def show(queue: str, server: ServerAddress, as_json: bool) -> None:
    """Show all options of a queue, and the counts of its groups.

    \b
    Examples:
      penstock queue show mail
      penstock queue show mail --json
    """

    async def work(client: AsyncClient) -> tuple[dict[str, Any], QueueStats]:
        return await client.queue_options(queue), await client.stats(queue)

    options, stats = with_client(server, work)
    if as_json:
        print_json({"name": queue, "options": options, "stats": stats})
        return
    from penstock.model import QueueConfig

    print_options(QueueConfig(), options)
    kept = counted(stats.messages, "message")
    click.echo(f"\n{kept} kept; {stats.published:,} ever published, {stats.bytes_published:,} bytes.\n")
    print_groups(stats)


def print_options(defaults: Any, options: dict[str, Any]) -> None:
    rows = [
        (name, value_text(options.get(name, getattr(defaults, name))), "set" if name in options else "default")
        for name in defaults.__struct_fields__
    ]
    print_table(("option", "value", "from"), rows)


def print_groups(stats: QueueStats) -> None:
    rows = [
        (one.group, one.kind, one.ready, one.leased, one.scheduled, one.dead, one.lag, one.paused)
        for one in stats.groups
    ]
    print_table(GROUP_TITLES, rows, numbers=GROUP_NUMBERS, empty="It has no groups yet; the first consumer makes one.")


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

    async def count(client: AsyncClient) -> int:
        return (await client.stats(queue)).messages

    async def work(client: AsyncClient) -> None:
        await client.delete_queue(queue)

    if not yes:
        confirm(f"Delete queue {queue!r} with its {counted(with_client(server, count), 'message')}?", yes)
    with_client(server, work)
    said({"deleted": queue}, f"Queue {queue} deleted.", as_json)


def said(data: dict[str, Any], text: str, as_json: bool) -> None:
    """What was done, for a program or a person."""
    if as_json:
        print_json(data)
    else:
        click.echo(printable(text))


@queue.command("purge")
@queue_argument
@yes_option
@server_options
@json_option
def purge(queue: str, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Make all messages done that no consumer holds, for every work group.

    Dead letters stay (see 'penstock dead purge'), and so does what stream groups read.

    \b
    Examples:
      penstock queue purge mail
      penstock queue purge mail --yes --json
    """
    confirm(f"Let go of everything that waits in queue {queue!r}?", yes)

    async def work(client: AsyncClient) -> dict[str, int]:
        groups = await client.groups(queue)
        kept = [name for name, options in groups.items() if options.get("kind") != "stream"]
        # A queue without a consumer so far has no group yet, but its messages wait for the default one.
        return {name: await client.purge(queue, name) for name in (kept if groups else ["default"])}

    counts = with_client(server, work)
    words = ", ".join(f"{counted(count, 'message')} of group {name}" for name, count in counts.items())
    said({"queue": queue, "purged": counts}, f"Purged {words or 'nothing: it has stream groups only'}.", as_json)


@queue.command("pause")
@queue_argument
@server_options
@json_option
def pause(queue: str, server: ServerAddress, as_json: bool) -> None:
    """Hand out nothing more of a queue.

    Publishing goes on, and what is leased can still be settled.

    \b
    Example:
      penstock queue pause mail
    """

    async def work(client: AsyncClient) -> None:
        await client.pause(queue)

    with_client(server, work)
    said({"queue": queue, "paused": True}, f"Queue {queue} is paused.", as_json)


@queue.command("resume")
@queue_argument
@server_options
@json_option
def resume(queue: str, server: ServerAddress, as_json: bool) -> None:
    """Hand out messages of a paused queue again.

    \b
    Example:
      penstock queue resume mail
    """

    async def work(client: AsyncClient) -> None:
        await client.resume(queue)

    with_client(server, work)
    said({"queue": queue, "paused": False}, f"Queue {queue} is not paused any more.", as_json)
