"""`penstock schedule …`: messages that the server publishes again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.commands.queues import said
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.message_options import message_of, message_options
from penstock.cli.moments import span, span_text, when
from penstock.cli.names import complete_exchange, complete_queue, schedule_argument, yes_option
from penstock.cli.output import confirm, payload_text, print_json, print_table, value_text

if TYPE_CHECKING:
    from penstock.api.schedules import Schedule
    from penstock.client.client import AsyncClient


@click.group(cls=SuggestingGroup)
def schedule() -> None:
    """Publish messages by the clock.

    \b
    Examples:
      penstock schedule create nightly --queue reports --cron '0 3 * * *' --timezone Europe/Berlin '{"kind": "daily"}'
      penstock schedule list
      penstock schedule pause nightly
    """


@schedule.command("create")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--queue", shell_complete=complete_queue, help="Publish to this queue.")
@click.option("--exchange", shell_complete=complete_exchange, help="Publish to this exchange.")
@click.option("--cron", help="When: five fields, or six with seconds first.")
@click.option("--every", "interval_ms", type=span, metavar="SPAN", help="When: every so often, such as 30s or 1h.")
@click.option("--timezone", default="UTC", show_default=True, help="The zone in which --cron is read.")
@click.option("--paused", is_flag=True, help="Do not begin yet.")
@click.option("--description", default="", help="For people.")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="A file's content is the payload.")
@message_options
@server_options
@json_option
def create(
    name: str,
    payload: str | None,
    queue: str | None,
    exchange: str | None,
    cron: str | None,
    interval_ms: int | None,
    timezone: str,
    paused: bool,
    description: str,
    file: str | None,
    fields: dict[str, Any],
    server: ServerAddress,
    as_json: bool,
) -> None:
    """Create a schedule, or replace the one of that name.

    \b
    Examples:
      penstock schedule create beat --queue health --every 30s ping
      penstock schedule create nightly --queue reports --cron '0 3 * * *' --timezone Europe/Berlin daily
      penstock schedule create sync --exchange jobs --key sync.all --every 1h --header full:=true
    """
    if (queue is None) == (exchange is None):
        raise click.UsageError("say where to: --queue or --exchange")
    if (cron is None) == (interval_ms is None):
        raise click.UsageError("say when: --cron or --every")
    if payload is not None and file is not None:
        raise click.UsageError("give a payload or --file, not both")
    content = Path(file).read_bytes() if file is not None else (payload or "").encode(errors="surrogateescape")
    message = message_of(content, fields)

    async def work(client: AsyncClient) -> Schedule:
        return await client.declare_schedule(
            name,
            message=message,
            queue=queue,
            exchange=exchange,
            cron=cron,
            interval_ms=interval_ms,
            timezone=timezone,
            paused=paused,
            description=description,
        )

    made = with_client(server, work)
    fires = "paused" if made.paused else f"fires {when(made.next_ms)}"
    said(data_of(made), f"Schedule {made.name}: {fires}.", as_json)


def data_of(one: Schedule) -> dict[str, Any]:
    """A schedule as the HTTP API writes it."""
    import msgspec

    from penstock.wire.http.shapes import message_body

    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    data: dict[str, Any] = msgspec.to_builtins(fields | {"message": message_body(one.message)})
    return data


def timing(one: Schedule) -> str:
    if one.cron is not None:
        return f"{one.cron} ({one.timezone})"
    return f"every {span_text(one.interval_ms or 0)}"


def goal(one: Schedule) -> str:
    return f"queue {one.queue}" if one.queue is not None else f"exchange {one.exchange}"


@schedule.command("list")
@server_options
@json_option
def list_schedules(server: ServerAddress, as_json: bool) -> None:
    """List schedules with when they fire next.

    \b
    Examples:
      penstock schedule list
      penstock schedule list --json
    """

    async def work(client: AsyncClient) -> list[Schedule]:
        return await client.schedules()

    found = with_client(server, work)
    if as_json:
        print_json([data_of(one) for one in found])
        return
    rows = [
        (
            one.name,
            timing(one),
            goal(one),
            "paused" if one.paused else when(one.next_ms),
            when(one.last_ms),
            one.fired,
            one.last_error,
        )
        for one in found
    ]
    titles = ("schedule", "when", "to", "next", "last", "fired", "last error")
    print_table(titles, rows, numbers=("fired",), empty="There are no schedules.")


@schedule.command("show")
@schedule_argument
@server_options
@json_option
def show(schedule: str, server: ServerAddress, as_json: bool) -> None:
    """Show a schedule and its message.

    \b
    Example:
      penstock schedule show nightly
    """

    async def work(client: AsyncClient) -> Schedule:
        return await client.schedule(schedule)

    found = with_client(server, work)
    if as_json:
        print_json(data_of(found))
        return
    data = data_of(found)
    message: dict[str, Any] = data.pop("message")
    rows: list[tuple[str, str]] = [
        ("when", timing(found)),
        ("to", goal(found)),
        ("next", "paused" if found.paused else when(found.next_ms)),
        ("last", when(found.last_ms)),
        ("fired", f"{found.fired:,}"),
        ("last error", found.last_error or "-"),
        ("description", found.description or "-"),
        ("payload", payload_text(found.message.payload)),
    ]
    rows += [(name, value_text(value)) for name, value in message.items() if not name.startswith("payload")]
    print_table(("option", "value"), rows)


@schedule.command("delete")
@schedule_argument
@yes_option
@server_options
@json_option
def delete(schedule: str, yes: bool, server: ServerAddress, as_json: bool) -> None:
    """Delete a schedule; what it published stays.

    \b
    Example:
      penstock schedule delete nightly --yes
    """
    confirm(f"Delete schedule {schedule!r}?", yes)

    async def work(client: AsyncClient) -> None:
        await client.delete_schedule(schedule)

    with_client(server, work)
    said({"deleted": schedule}, f"Schedule {schedule} deleted.", as_json)


@schedule.command("pause")
@schedule_argument
@server_options
@json_option
def pause(schedule: str, server: ServerAddress, as_json: bool) -> None:
    """Let a schedule rest; ticks that pass meanwhile are not made up for.

    \b
    Example:
      penstock schedule pause nightly
    """
    with_client(server, lambda client: set_paused(client, schedule, True))
    said({"schedule": schedule, "paused": True}, f"Schedule {schedule} is paused.", as_json)


@schedule.command("resume")
@schedule_argument
@server_options
@json_option
def resume(schedule: str, server: ServerAddress, as_json: bool) -> None:
    """Let a paused schedule fire again.

    \b
    Example:
      penstock schedule resume nightly
    """
    found = with_client(server, lambda client: set_paused(client, schedule, False))
    said({"schedule": schedule, "paused": False}, f"Schedule {schedule} fires {when(found.next_ms)}.", as_json)


async def set_paused(client: AsyncClient, name: str, paused: bool) -> Schedule:
    one = await client.schedule(name)
    return await client.declare_schedule(
        name,
        message=one.message,
        queue=one.queue,
        exchange=one.exchange,
        cron=one.cron,
        interval_ms=one.interval_ms,
        timezone=one.timezone,
        paused=paused,
        description=one.description,
    )
