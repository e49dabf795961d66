"""`penstock cluster`: the servers of a store, which slots each owns, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import answered
from penstock.cli.output import Answer, fields_of, print_table, said

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.wire.http.cluster import ClusterAnswer

NODE_TITLES: Final = ("node", "url", "incarnation", "heard of", "state", "slots", "version")
SLOT_TITLES: Final = ("slot", "owner", "epoch", "state", "why")


@click.command()
@click.option("--slots", "show_slots", is_flag=True, help="Also every slot: its owner, epoch, and why.")
@answered
async def cluster(client: AsyncClient, show_slots: bool) -> Answer:
    """Show the servers of a store.

    Each server owns some of the 64 slots that queues fall into, and any of them can be asked anything. A server that is
    not heard of for its lease loses its slots to the others.

    \b
    Examples:
      penstock cluster
      penstock cluster --slots
      penstock cluster --json
    """
    from penstock.wire.http.cluster import ClusterAnswer

    found = await client._get(ClusterAnswer, client._target("cluster"))
    if not found.is_clustered:
        return said(found, "A single server has the store for itself.")
    return Answer(found, lambda: print_cluster(found, show_slots))


def print_cluster(found: ClusterAnswer, show_slots: bool) -> None:
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
        print_table(SLOT_TITLES, fields_of(found.slots, SLOT_TITLES), numbers=("slot", "epoch"), empty="")
