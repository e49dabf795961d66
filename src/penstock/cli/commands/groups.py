"""`penstock group …`: the consumer groups of a queue, and where in it they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.queues import GROUP_NUMBERS, GROUP_TITLES, declared, print_groups, print_options, said
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.moments import moment
from penstock.cli.names import group_argument, queue_argument, yes_option
from penstock.cli.option_values import GROUP_FLAGS, options_of
from penstock.cli.output import confirm, counted, option_text, print_json, print_table

if TYPE_CHECKING:
    from penstock.api.inspect import QueueStats
    from penstock.client.client import AsyncClient


@click.group(cls=SuggestingGroup)
def group() -> None:
    """Create, list, move and delete consumer groups.

    A group is one view of a queue: each group gets every message. Without one named, consumers share the group
    'default'.

    \b
    Examples:
      penstock group create orders billing --filter "amount > 100"
      penstock group list orders
      penstock group seek orders billing --to first
    """


@group.command("create")
@queue_argument
@click.argument("group")
@click.option("--stream", is_flag=True, help="Read and commit, instead of lease and ack.")
@click.option("--from", "start", metavar="PLACE", help="Where it begins: beginning, now, or a time.")
@click.option("--filter", "condition", help="Only messages whose metadata meet this condition.")
@options_of("GroupConfig", GROUP_FLAGS)
@server_options
@json_option
def create(
    queue: str,
    group: str,
    stream: bool,
    start: str | None,
    condition: str | None,
    options: dict[str, Any],
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Create a group, or change the options named here of the one that exists.

    \b
    Examples:
      penstock group create orders billing
      penstock group create orders audit --stream --from now
      penstock group create orders large --filter "amount > 100" --max-attempts 3
      penstock group create orders billing --option rate=50
    """
    if stream:
        options["kind"] = "stream"
    if start is not None:
        options["start"] = start if start in ("beginning", "now") else moment(start)
    if condition is not None:
        options["filter"] = condition

    async def work(client: AsyncClient) -> tuple[bool, dict[str, Any]]:
        existed = group in await client.groups(queue)
        await client.declare_group(queue, group, **options)
        return existed, (await client.groups(queue))[group]

    existed, found = with_client(server, work)
    declared("group", {"queue": queue, "name": group}, existed, found, as_json)


@group.command("list")
@queue_argument
@server_options
@json_option
def list_groups(queue: str, server: ServerAddress, as_json: bool) -> None:
    """List the groups of a queue with their counts and options.

    \b
    Examples:
      penstock group list orders
      penstock group list orders --json
    """
    options, stats = with_client(server, lambda client: groups_and_stats(client, queue))
    if as_json:
        print_json([{"name": one.group, "options": options.get(one.group, {}), "stats": one} for one in stats.groups])
        return
    rows = [
        (
            one.group,
            one.kind,
            one.ready,
            one.leased,
            one.scheduled,
            one.dead,
            one.lag,
            one.paused,
            option_text(options.get(one.group, {})),
        )
        for one in stats.groups
    ]
    empty = f"Queue {queue!r} has no groups yet; the first consumer makes one."
    print_table((*GROUP_TITLES, "options"), rows, numbers=GROUP_NUMBERS, empty=empty)


async def groups_and_stats(client: AsyncClient, queue: str) -> tuple[dict[str, dict[str, Any]], QueueStats]:
    return await client.groups(queue), await client.stats(queue)


@group.command("show")
@queue_argument
@group_argument
@server_options
@json_option
def show(queue: str, group: str, server: ServerAddress, as_json: bool) -> None:
    """Show all options of a group and its counts.

    \b
    Example:
      penstock group show orders billing
    """
    groups, stats = with_client(server, lambda client: groups_and_stats(client, queue))
    if group not in groups:
        names = ", ".join(groups) or "none yet"
        raise click.ClickException(f"queue {queue!r} has no group {group!r}; there are: {names}")
    from msgspec.structs import replace

    from penstock.model import GroupConfig

    alone = replace(stats, groups=[one for one in stats.groups if one.group == group])
    if as_json:
        print_json({"queue": queue, "name": group, "options": groups[group], "stats": alone.groups[0]})
        return
    print_options(GroupConfig(), groups[group])
    click.echo()
    print_groups(alone)


@group.command("delete")
@queue_argument
@group_argument
@yes_option
@server_options
@json_option
def delete(queue: str, group: str, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Delete a group with its leases and dead letters; the messages stay for the others.

    \b
    Example:
      penstock group delete orders billing --yes
    """
    confirm(f"Delete group {group!r} of queue {queue!r}?", yes)

    async def work(client: AsyncClient) -> None:
        await client.delete_group(queue, group)

    with_client(server, work)
    said({"queue": queue, "deleted": group}, f"Group {queue}/{group} deleted.", as_json)


@group.command("seek")
@queue_argument
@group_argument
@click.option("--to", type=click.Choice(["first", "last"]), help="The first message that is kept, or behind the last.")
@click.option("--offset", type=click.IntRange(min=0), help="This message; with --lane where there are several.")
@click.option("--time", "time_ms", type=moment, metavar="TIME", help="The first message published since.")
@click.option("--lane", type=click.IntRange(min=0), help="Only this lane, from 0 on.")
@server_options
@json_option
def seek(
    queue: str,
    group: str,
    to: Literal["first", "last"] | None,
    offset: int | None,
    time_ms: int | None,
    lane: int | None,
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Move a group: what is before the place is done, what is from it on is new again.

    TIME is like 2026-05-01T12:00:00Z, or 10m for ten minutes ago. Leases that are out end.

    \b
    Examples:
      penstock group seek orders billing --to first
      penstock group seek orders billing --time 2h
      penstock group seek orders billing --offset 1200 --lane 0
    """
    if sum(given is not None for given in (to, offset, time_ms)) != 1:
        raise click.UsageError("say where to: one of --to first, --to last, --offset and --time")

    async def work(client: AsyncClient) -> None:
        await client.seek(queue, group, to=to, offset=offset, time_ms=time_ms, lane=lane)

    with_client(server, work)
    place = {"to": to, "offset": offset, "time_ms": time_ms, "lane": lane}
    data = {"queue": queue, "group": group} | {name: value for name, value in place.items() if value is not None}
    said(data, f"Group {queue}/{group} is moved.", as_json)


@group.command("purge")
@queue_argument
@group_argument
@yes_option
@server_options
@json_option
def purge(queue: str, group: str, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Make all messages done for a group that no consumer holds; dead letters stay.

    \b
    Example:
      penstock group purge orders billing --yes
    """
    confirm(f"Let go of everything that waits for group {group!r} of queue {queue!r}?", yes)

    async def work(client: AsyncClient) -> int:
        return await client.purge(queue, group)

    count = with_client(server, work)
    said({"queue": queue, "group": group, "purged": count}, f"Purged {counted(count, 'message')}.", as_json)


@group.command("pause")
@queue_argument
@group_argument
@server_options
@json_option
def pause(queue: str, group: str, server: ServerAddress, as_json: bool) -> None:
    """Hand out nothing more to a group; what is leased can still be settled.

    \b
    Example:
      penstock group pause orders billing
    """

    async def work(client: AsyncClient) -> None:
        await client.pause(queue, group)

    with_client(server, work)
    said({"queue": queue, "group": group, "paused": True}, f"Group {queue}/{group} is paused.", as_json)


@group.command("resume")
@queue_argument
@group_argument
@server_options
@json_option
def resume(queue: str, group: str, server: ServerAddress, as_json: bool) -> None:
    """Hand out messages to a paused group again.

    \b
    Example:
      penstock group resume orders billing
    """

    async def work(client: AsyncClient) -> None:
        await client.resume(queue, group)

    with_client(server, work)
    said({"queue": queue, "group": group, "paused": False}, f"Group {queue}/{group} is not paused any more.", as_json)
