"""A store that was copied to another place and closed: servers must use the copy, and are refused here.

Closing is a member that never leaves and has every slot, so that servers which run are fenced; this module knows it by
its name. Next stop: `maintenance/online.py`, which closes stores and opens them again.
"""

from __future__ import annotations

from typing import Final

from penstock.model.errors import Closed
from penstock.store.contract import Coordination

CLOSED: Final = "closed: copied to "
"""How the name of that member begins; the place of the copy follows."""


async def closed_for(store: Coordination) -> dict[int, str]:
    """Where a store was copied to, by the incarnation that has closed it; empty for one that is open."""
    view = await store.heartbeat(0)
    return {row.incarnation: row.name.removeprefix(CLOSED) for row in view.nodes if row.name.startswith(CLOSED)}


async def check_not_closed(store: Coordination, label: str) -> None:
    for place in (await closed_for(store)).values():
        raise Closed(
            f"{label} was copied to {place} and closed: use that; 'penstock store reopen' opens this one again, "
            "without what came to the copy since"
        )
