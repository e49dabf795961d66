"""`penstock consume`: takes messages of a group, shows them or gives each to a command, and settles them.

A message is settled after it was printed, or when the command that got it has ended. While it is held its lease is kept
alive; what is still held when the command ends, by Ctrl+C too, is given back at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.moments import span
from penstock.cli.names import group_option, queue_argument
from penstock.cli.show_message import raw_option, shower

if TYPE_CHECKING:
    from penstock.cli.consuming import Verdict, Wishes
    from penstock.client.client import AsyncClient

BATCH: Final = 100


@click.command()
@queue_argument
@group_option
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--follow", "-f", is_flag=True, help="Go on when the queue is empty, until Ctrl+C.")
@click.option("--wait", "wait_ms", type=span, metavar="SPAN", default="0s", help="How long to wait for a message.")
@click.option("--no-ack", is_flag=True, help="Give all messages back at the end, as if never handed out.")
@click.option("--nack", is_flag=True, help="Say that they failed: again after a backoff, dead after the last attempt.")
@click.option("--reject", is_flag=True, help="Say that they will never succeed: dead at once.")
@click.option("--error", default="", help="With --nack or --reject: why.")
@click.option("--exec", "command", metavar="COMMAND", help="Run this for each message; see above.")
@click.option("--partition", help="Only messages of this partition.")
@click.option("--consumer", help="The name under which messages are claimed.")
@click.option(
    "--lease",
    "lease_ms",
    type=span,
    metavar="SPAN",
    default="30s",
    show_default=True,
    help="How soon others get what this command holds if it dies; it is renewed as long as it lives.",
)
@raw_option
@server_options
@json_option
def consume(
    no_ack: bool, nack: bool, reject: bool, raw: bool, server: ServerAddress, as_json: bool, **asked: Any
) -> None:
    """Take messages from a queue, and print them.

    Each is acknowledged after it was printed. Without --max or --follow the command ends when nothing is ready any
    more. Of a stream group, messages are read and committed.

    With --exec nothing is printed: COMMAND is run by the shell for each message, with the payload as its stdin and
    MESSAGE_QUEUE, MESSAGE_LANE, MESSAGE_OFFSET, MESSAGE_ATTEMPT, MESSAGE_PARTITION, MESSAGE_KEY,
    MESSAGE_TRACE_ID and MESSAGE_HEADERS (JSON) in its environment. Exit code 0 acknowledges the message; any other
    is a failure, with the end of the command's stderr as the reason.

    \b
    Examples:
      penstock consume mail
      penstock consume mail --max 10 --no-ack --json
      penstock consume mail --group sending --follow --exec './send-mail'
      penstock consume events --group audit --follow --raw > audit.log
    """
    command = asked["command"]
    if no_ack + nack + reject + (command is not None) > 1:
        raise click.UsageError("choose one of --no-ack, --nack, --reject and --exec")
    if asked["error"] and not (nack or reject):
        raise click.UsageError("--error is the reason of --nack or --reject")
    if command is not None and (as_json or raw):
        raise click.UsageError("with --exec nothing is printed but what the command prints; leave out --json and --raw")
    show = shower(as_json=as_json, raw=raw)
    verdict: Verdict = "nack" if nack else "reject" if reject else "release" if no_ack else "ack"

    async def work(client: AsyncClient) -> None:
        from penstock.cli.consuming import Wishes, consume_stream, consume_work

        wishes = Wishes(**asked, verdict=verdict, batch=1 if command is not None else BATCH, show=show)
        kind = (await client.groups(wishes.queue)).get(wishes.group, {}).get("kind", "work")
        if kind == "stream":
            check_stream(wishes)
            await consume_stream(client, wishes)
        else:
            await consume_work(client, wishes)

    with_client(server, work, is_patient=True)


def check_stream(wishes: Wishes) -> None:
    unfit: dict[str, Any] = {
        "--no-ack, --nack and --reject": wishes.verdict != "ack",
        "--exec": wishes.command is not None,
        "--partition": wishes.partition is not None,
    }
    for option, is_given in unfit.items():
        if is_given:
            raise click.UsageError(
                f"group {wishes.group!r} of queue {wishes.queue!r} is a stream, and {option} is for work groups; "
                "'penstock tail' reads without committing"
            )
