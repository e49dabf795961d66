"""A store that was copied to another place and closed: servers must use the copy, and are refused here.

Closing is a member that never leaves and has every slot, so that servers which run are fenced; this module knows it by
its name. Next stop: `maintenance/online.py`, which closes stores and opens them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.model.errors import Closed, Fenced
from penstock.model.rows import NodeRow
from penstock.store.contract import Coordination

CLOSED: Final = "closed: copied to "
"""How the name of that member begins; the place of the copy follows."""


def closed_by(nodes: Iterable[NodeRow]) -> dict[int, str]:
    """Where a store with these members was copied to, by the incarnation that has closed it; empty for an open one."""
    return {row.incarnation: row.name.removeprefix(CLOSED) for row in nodes if row.name.startswith(CLOSED)}


async def closed_for(store: Coordination) -> dict[int, str]:
    """The same, asked of the store."""
    return closed_by((await store.heartbeat(0)).nodes)


def words_for(place: str) -> str:
    """What clients are told by servers whose store was closed under them."""
    return (
        f"this server's store was copied to {place} and closed: use a server on that. If the copy was broken off, "
        "'penstock store reopen' opens this store again; a server on a file must be restarted then"
    )


def fenced(text: str) -> Fenced:
    """A commit was refused, for a reason that an engine gives: in words for people where the store was closed."""
    _, is_closed, rest = text.partition(f" of {CLOSED}")
    return Fenced(words_for(rest.rpartition(", not at epoch ")[0]) if is_closed else text)


async def check_not_closed(store: Coordination, label: str) -> None:
    for place in (await closed_for(store)).values():
        raise Closed(
            f"{label} was copied to {place} and closed: use that; 'penstock store reopen' opens this one again, "
            "without what came to the copy since"
        )
