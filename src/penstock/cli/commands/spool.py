"""`penstock spool`: the spool's dead letters, which are files in its folder, listed, shown and published again.

It reads the folder itself and talks to the server only to publish; a server that uses the folder may be running.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.command_groups import SuggestingGroup
from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.output import counted, listed, payload_text, print_json, printable, target_text

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.node.spool.records import DeadRecord, Record

FOLDER: Final = "data/spool"
TITLES: Final = ("file", "to", "messages", "published", "reason")

folder_option = click.option(
    "--folder", default=FOLDER, show_default=True, metavar="FOLDER", help="The server's spool.folder."
)


@click.group(cls=SuggestingGroup)
def spool() -> None:
    """Dead letters of the spool: buffered publishes that could not be replayed.

    They are files in the spool's folder: run this on the machine of the server.

    \b
    Examples:
      penstock spool list
      penstock spool show dead-52fe4e5aa4b0b2c1-000000000042.letter
      penstock spool retry --all
    """


@spool.command("list")
@folder_option
@json_option
def list_letters(folder: str, as_json: bool) -> None:
    """List dead letters, with what they were for and why they died.

    \b
    Examples:
      penstock spool list
      penstock spool list --folder /var/lib/penstock/spool --json
    """
    rows = [
        (name, target_of(dead.record), dead.record.count, dead.record.spooled_ms, dead.reason)
        for name, dead in letters(folder).items()
    ]
    data = [dict(zip(TITLES, row, strict=True)) for row in rows]
    empty = f"There are no dead letters in {folder}."
    listed(data, TITLES, rows, numbers=("messages",), empty=empty).show(as_json)


@spool.command()
@click.argument("file")
@folder_option
@json_option
def show(file: str, folder: str, as_json: bool) -> None:
    """Show the messages of a dead letter.

    \b
    Example:
      penstock spool show dead-52fe4e5aa4b0b2c1-000000000042.letter
    """
    from penstock.batch import decode
    from penstock.wire.http.shapes import message_body

    dead = one_letter(folder, file)
    messages = decode(dead.record.batch)
    if as_json:
        print_json([message_body(message) for message in messages])
        return
    click.echo(f"{counted(len(messages), 'message')} to {target_of(dead.record)}: {printable(dead.reason)}")
    for message in messages:
        click.echo(payload_text(message.payload))


@spool.command()
@click.argument("files", nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="Every dead letter of the folder.")
@click.option("--to", "queue", metavar="QUEUE", help="Publish to this queue instead of where they were meant to go.")
@folder_option
@server_options
def retry(files: tuple[str, ...], all_of_them: bool, queue: str | None, folder: str, server: ServerAddress) -> None:
    """Publish dead letters again; each file goes when its messages are stored.

    \b
    Examples:
      penstock spool retry --all
      penstock spool retry dead-52fe4e5aa4b0b2c1-000000000042.letter --to orders-2
    """
    if all_of_them == bool(files):
        raise click.UsageError("name the files to publish again, or use --all")
    chosen = letters(folder) if all_of_them else {name: one_letter(folder, name) for name in files}
    check_over(folder, chosen)

    async def work(client: AsyncClient) -> None:
        for name, dead in chosen.items():
            await publish(client.in_namespace(dead.record.namespace), dead, queue)
            path_of(folder, name).unlink()
            click.echo(f"Published {counted(dead.record.count, 'message')} of {name}.")

    with_client(server, work)


async def publish(client: AsyncClient, dead: DeadRecord, queue: str | None) -> None:
    record = dead.record
    # The same id each time: a retry that broke off after it was stored stores nothing again.
    publish_id = f"spool/{dead.header.spool}/{record.sequence}"
    target = queue or record.queue
    if target is not None:
        await client.publish_batch(target, record.batch, publish_id=publish_id)
    else:
        await client.publish_to(record.exchange or "", record.batch, mandatory=True, publish_id=publish_id)


def letters(folder: str) -> dict[str, DeadRecord]:
    """The dead letters by the names of their files."""
    from penstock.node.spool.log import DEAD

    place = Path(folder)
    if not place.is_dir():
        raise click.ClickException(f"there is no folder {folder}; name the server's spool.folder with --folder")
    found = [path.relative_to(place).as_posix() for path in files_of(folder) if DEAD.fullmatch(path.name)]
    return {name: one_letter(folder, name) for name in found}


def files_of(folder: str) -> list[Path]:
    """Those of the folder, and of the folders of servers in it."""
    place = Path(folder)
    return sorted(path for pattern in ("*", "*/*") for path in place.glob(pattern) if path.is_file())


def path_of(folder: str, name: str) -> Path:
    """The file of a dead letter, by its name with or without that of its server's folder."""
    place = Path(folder) / name
    return place if place.exists() else next(Path(folder).glob(f"*/{name}"), place)


def one_letter(folder: str, name: str) -> DeadRecord:
    from penstock.model.errors import StoreCorrupt
    from penstock.node.spool.records import dead_of

    try:
        return dead_of(path_of(folder, name).read_bytes(), name)
    except OSError as error:
        raise click.ClickException(f"{folder}/{name}: {error.strerror or error}") from None
    except StoreCorrupt as error:
        raise click.ClickException(str(error)) from None


def check_over(folder: str, chosen: dict[str, DeadRecord]) -> None:
    """A letter whose segment is still there could be replayed by the server too, after a restart."""
    from penstock.node.spool.log import SEGMENT
    from penstock.node.spool.records import header_of

    for path in files_of(folder):
        if SEGMENT.fullmatch(path.name):
            found = header_of(path.read_bytes(), path.name)
            if found is not None and any(dead.header.spool == found[0].spool for dead in chosen.values()):
                raise click.ClickException(
                    "the spool that these come from is still being replayed; try again when it is empty"
                )


def target_of(record: Record) -> str:
    name = target_text(record.queue, record.exchange)
    return printable(name if record.namespace == "default" else f"{name} of namespace {record.namespace}")
