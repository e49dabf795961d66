"""Messages that applications enqueued in their own database transactions and that cannot be published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.model.rows import FailedRow


class FailedPage(msgspec.Struct, frozen=True):
    """Some enqueued messages that could not be published, and where to go on: an id, None at the end."""

    failed: list[FailedRow]
    next: int | None


class Enqueued(Protocol):
    """Looking after enqueued messages that failed. How to enqueue: `penstock.enqueue`."""

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: continue with `after=page.next`.
        """

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Try enqueued messages again that could not be published, all of this namespace unless some are named.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Let enqueued messages go that could not be published, all of this namespace unless some are named.

        Returns how many.
        """
