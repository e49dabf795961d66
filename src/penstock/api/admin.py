"""Administration: move a group, empty it, pause it; whether the server takes messages at all."""

from __future__ import annotations

from typing import Literal, Protocol

from penstock.model import DEFAULT_GROUP


class Administration(Protocol):
    """What an operator does to queues and groups."""

    async def seek(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move a group: everything before the place is done, everything from it on is new again.

        Open leases end; settling them afterwards raises `LeaseLost`. Dead messages before the place stay.
        """

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        """Mark everything done for a group that is neither leased nor dead; returns how many messages."""

    async def pause(self, queue: str, group: str | None = None) -> None:
        """Hand out nothing more of a queue (or to one group of it); what is leased can still be settled."""

    async def resume(self, queue: str, group: str | None = None) -> None:
        """Undo `pause`."""

    async def check_ready(self) -> Literal["ready", "buffering"]:
        """Return when the store takes a commit; raise `Unavailable` with the reason when it cannot, or not in 2 s.

        `buffering` means that the store is away and publishes go to the spool.
        """
