"""Administration: move a group, empty it, pause it; enqueued messages that cannot be published; readiness.

How an application enqueues inside of its own database transactions: `penstock.enqueue`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from penstock.model import DEFAULT_GROUP
from penstock.model.rows import FailedRow


class FailedPage(msgspec.Struct, frozen=True):
    """Some enqueued messages that cannot be published."""

    failed: list[FailedRow]
    next: int | None
    """Where to go on, as `after`; none at the end."""


class Administration(Protocol):
    """What an operator does."""

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

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: continue with `after=page.next`.
        """

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Retry enqueued messages that failed: the given ids, or all in this namespace.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Delete enqueued messages that failed: the given ids, or all in this namespace.

        Returns how many.
        """
