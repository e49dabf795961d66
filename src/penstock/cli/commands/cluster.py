"""`penstock cluster`: the servers of a store, which slots each owns, and how that came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import ServerAddress, json_option, server_options, with_client
from penstock.cli.output import print_json, print_table

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.wire.http.cluster import ClusterAnswer

NODE_TITLES: Final = ("node", "url", "incarnation", "heard of", "state", "slots", "version")
SLOT_TITLES: Final = ("slot", "owner", "epoch", "state", "why")


@click.command()
@click.option("--slots", "show_slots", is_flag=True, help="Also every slot: its owner, epoch, and how that came.")
@server_options
@json_option
def cluster(show_slots: bool, server: ServerAddress, as_json: bool) -> None:
    """Show the servers of a store.

    Each server owns some of the 64 slots that queues fall into, and any of them can be asked anything. A server that is
    not heard of for its lease loses its slots to the others.

    \b
    Examples:
      penstock cluster
      penstock cluster --slots
      penstock cluster --json
    """
    found = with_client(server, read)
    if as_json:
        print_json(found)
        return
    if not found.is_clustered:
        click.echo("A single server has the store for itself.")
        return
    print_table(
        NODE_TITLES,
        [
            (
                f"{node.name}{' (this one)' if node.is_here else ''}",
                node.url,
                node.incarnation,
                f"{node.age_ms / 1000:.1f} s ago",
                "live" if node.is_live else "gone",
                node.slots,
                node.version,
            )
            for node in found.nodes
        ],
        numbers=("incarnation", "slots"),
        empty="There are no servers.",
    )
    free = sum(slot.state == "free" for slot in found.slots)
    if free:
        click.echo(f"{free} slots have no owner.")
    if show_slots:
        click.echo("")
        rows = [(slot.slot, slot.owner, slot.epoch, slot.state, slot.why) for slot in found.slots]
        print_table(SLOT_TITLES, rows, numbers=("slot", "epoch"), empty="")


async def read(client: AsyncClient) -> ClusterAnswer:
    from penstock.wire.http.cluster import ClusterAnswer

    return await client._get(ClusterAnswer, client._target("cluster"))
