"""`penstock schedule …`: messages that the server publishes again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import answered
from penstock.cli.message_options import message_of, message_options
from penstock.cli.moments import span, span_text, when
from penstock.cli.names import complete_exchange, complete_queue, confirmed, schedule_argument
from penstock.cli.output import Answer, listed, payload_text, said, target_text, value_text

if TYPE_CHECKING:
    from penstock.api.declare import Schedule
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
@answered
async def create(
    client: AsyncClient, name: str, payload: str | None, file: str | None, fields: dict[str, Any], **options: Any
) -> Answer:
    """Create a schedule, or replace the one of that name.

    \b
    Examples:
      penstock schedule create beat --queue health --every 30s ping
      penstock schedule create nightly --queue reports --cron '0 3 * * *' --timezone Europe/Berlin daily
      penstock schedule create sync --exchange jobs --key sync.all --every 1h --header full:=true
    """
    if (options["queue"] is None) == (options["exchange"] is None):
        raise click.UsageError("say where to: --queue or --exchange")
    if (options["cron"] is None) == (options["interval_ms"] is None):
        raise click.UsageError("say when: --cron or --every")
    made = await client.declare_schedule(name, message=message_of(content_of(payload, file), fields), **options)
    fires = "paused" if made.paused else f"fires {when(made.next_ms)}"
    return said(data_of(made), f"Schedule {made.name}: {fires}.")


def content_of(payload: str | None, file: str | None) -> bytes:
    if payload is not None and file is not None:
        raise click.UsageError("give a payload or --file, not both")
    return Path(file).read_bytes() if file is not None else (payload or "").encode(errors="surrogateescape")


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


@schedule.command("list")
@answered
async def list_schedules(client: AsyncClient) -> Answer:
    """List schedules with when they fire next.

    \b
    Examples:
      penstock schedule list
      penstock schedule list --json
    """
    found = await client.schedules()
    rows = [
        (
            one.name,
            timing(one),
            target_text(one.queue, one.exchange),
            "paused" if one.paused else when(one.next_ms),
            when(one.last_ms),
            one.fired,
            one.last_error,
        )
        for one in found
    ]
    titles = ("schedule", "when", "to", "next", "last", "fired", "last error")
    data = [data_of(one) for one in found]
    return listed(data, titles, rows, numbers=("fired",), empty="There are no schedules.")


@schedule.command("show")
@schedule_argument
@answered
async def show(client: AsyncClient, schedule: str) -> Answer:
    """Show a schedule and its message.

    \b
    Example:
      penstock schedule show nightly
    """
    found = await client.schedule(schedule)
    data = data_of(found)
    rows: list[tuple[str, str]] = [
        ("when", timing(found)),
        ("to", target_text(found.queue, found.exchange)),
        ("next", "paused" if found.paused else when(found.next_ms)),
        ("last", when(found.last_ms)),
        ("fired", f"{found.fired:,}"),
        ("last error", found.last_error or "-"),
        ("description", found.description or "-"),
        ("payload", payload_text(found.message.payload)),
    ]
    rows += [(name, value_text(value)) for name, value in data["message"].items() if not name.startswith("payload")]
    return listed(data, ("option", "value"), rows)


@schedule.command("delete")
@schedule_argument
@confirmed("Delete schedule {schedule!r}?")
@answered
async def delete(client: AsyncClient, schedule: str) -> Answer:
    """Delete a schedule; what it published stays.

    \b
    Example:
      penstock schedule delete nightly --yes
    """
    await client.delete_schedule(schedule)
    return said({"deleted": schedule}, f"Schedule {schedule} deleted.")


@schedule.command("pause")
@schedule_argument
@answered
async def pause(client: AsyncClient, schedule: str) -> Answer:
    """Let a schedule rest; ticks that pass meanwhile are not made up for.

    \b
    Example:
      penstock schedule pause nightly
    """
    await set_paused(client, schedule, True)
    return said({"schedule": schedule, "paused": True}, f"Schedule {schedule} is paused.")


@schedule.command("resume")
@schedule_argument
@answered
async def resume(client: AsyncClient, schedule: str) -> Answer:
    """Let a paused schedule fire again.

    \b
    Example:
      penstock schedule resume nightly
    """
    found = await set_paused(client, schedule, False)
    return said({"schedule": schedule, "paused": False}, f"Schedule {schedule} fires {when(found.next_ms)}.")


async def set_paused(client: AsyncClient, name: str, paused: bool) -> Schedule:
    from penstock.declare.plan import schedule_options

    return await client.declare_schedule(name, **schedule_options(await client.schedule(name)) | {"paused": paused})
