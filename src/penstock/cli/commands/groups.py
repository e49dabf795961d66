"""`penstock group …`: the consumer groups of a queue, and where in it they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.queues import GROUP_NUMBERS, GROUP_TITLES, print_groups
from penstock.cli.connection import answered
from penstock.cli.moments import moment
from penstock.cli.names import confirmed, group_argument, queue_argument
from penstock.cli.option_values import GROUP_FLAGS, options_of
from penstock.cli.output import Answer, counted, declared, fields_of, listed, option_text, print_options, said

if TYPE_CHECKING:
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
@answered
async def create(
    client: AsyncClient,
    queue: str,
    group: str,
    stream: bool,
    start: str | None,
    condition: str | None,
    options: dict[str, Any],
) -> Answer:
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
    existed = group in await client.groups(queue)
    await client.declare_group(queue, group, **options)
    return declared("group", {"queue": queue, "name": group}, existed, (await client.groups(queue))[group])


@group.command("list")
@queue_argument
@answered
async def list_groups(client: AsyncClient, queue: str) -> Answer:
    """List the groups of a queue with their counts and options.

    \b
    Examples:
      penstock group list orders
      penstock group list orders --json
    """
    options, groups = await client.groups(queue), (await client.stats(queue)).groups
    texts = [option_text(options.get(one.group, {})) for one in groups]
    return listed(
        [{"name": one.group, "options": options.get(one.group, {}), "stats": one} for one in groups],
        (*GROUP_TITLES, "options"),
        [(*counts, text) for counts, text in zip(fields_of(groups, GROUP_TITLES), texts, strict=True)],
        numbers=GROUP_NUMBERS,
        empty=f"Queue {queue!r} has no groups yet; the first consumer makes one.",
    )


@group.command("show")
@queue_argument
@group_argument
@answered
async def show(client: AsyncClient, queue: str, group: str) -> Answer:
    """Show all options of a group and its counts.

    \b
    Example:
      penstock group show orders billing
    """
    from penstock.model import GroupConfig

    groups, stats = await client.groups(queue), await client.stats(queue)
    if group not in groups:
        names = ", ".join(groups) or "none yet"
        raise click.ClickException(f"queue {queue!r} has no group {group!r}; there are: {names}")
    counts = next(one for one in stats.groups if one.group == group)

    def tell() -> None:
        print_options(GroupConfig(), groups[group])
        click.echo()
        print_groups([counts])

    return Answer({"queue": queue, "name": group, "options": groups[group], "stats": counts}, tell)


@group.command("delete")
@queue_argument
@group_argument
@confirmed("Delete group {group!r} of queue {queue!r}?")
@answered
async def delete(client: AsyncClient, queue: str, group: str) -> Answer:
    """Delete a group with its leases and dead letters; the messages stay for the others.

    \b
    Example:
      penstock group delete orders billing --yes
    """
    await client.delete_group(queue, group)
    return said({"queue": queue, "deleted": group}, f"Group {queue}/{group} deleted.")


@group.command("seek")
@queue_argument
@group_argument
@click.option("--to", type=click.Choice(["first", "last"]), help="The first message that is kept, or behind the last.")
@click.option("--offset", type=click.IntRange(min=0), help="This message; with --lane where there are several.")
@click.option("--time", "time_ms", type=moment, metavar="TIME", help="The first message published since.")
@click.option("--lane", type=click.IntRange(min=0), help="Only this lane, from 0 on.")
@answered
async def seek(client: AsyncClient, queue: str, group: str, lane: int | None, **place: Any) -> Answer:
    """Move a group: what is before the place is done, what is from it on is new again.

    TIME is like 2026-05-01T12:00:00Z, or 10m for ten minutes ago. Leases that are out end.

    \b
    Examples:
      penstock group seek orders billing --to first
      penstock group seek orders billing --time 2h
      penstock group seek orders billing --offset 1200 --lane 0
    """
    given = {name: value for name, value in place.items() if value is not None}
    if len(given) != 1:
        raise click.UsageError("say where to: one of --to first, --to last, --offset and --time")
    if lane is not None:
        given["lane"] = lane
    await client.seek(queue, group, **given)
    return said({"queue": queue, "group": group} | given, f"Group {queue}/{group} is moved.")


@group.command("purge")
@queue_argument
@group_argument
@confirmed("Let go of everything that waits for group {group!r} of queue {queue!r}?")
@answered
async def purge(client: AsyncClient, queue: str, group: str) -> Answer:
    """Make all messages done for a group that no consumer holds; dead letters stay.

    \b
    Example:
      penstock group purge orders billing --yes
    """
    count = await client.purge(queue, group)
    return said({"queue": queue, "group": group, "purged": count}, f"Purged {counted(count, 'message')}.")


@group.command("pause")
@queue_argument
@group_argument
@answered
async def pause(client: AsyncClient, queue: str, group: str) -> Answer:
    """Hand out nothing more to a group; what is leased can still be settled.

    \b
    Example:
      penstock group pause orders billing
    """
    await client.pause(queue, group)
    return said({"queue": queue, "group": group, "paused": True}, f"Group {queue}/{group} is paused.")


@group.command("resume")
@queue_argument
@group_argument
@answered
async def resume(client: AsyncClient, queue: str, group: str) -> Answer:
    """Hand out messages to a paused group again.

    \b
    Example:
      penstock group resume orders billing
    """
    await client.resume(queue, group)
    return said({"queue": queue, "group": group, "paused": False}, f"Group {queue}/{group} is not paused any more.")
