"""What applications enqueued inside of their own database transactions, and could not be published."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model import INTEGER_MAX, check_integer
from penstock.node.arguments import check_ids
from penstock.node.background.enqueued import FAILED_MAX, FailedPage
from penstock.node.broker.names import Names


class Enqueued(Names):
    """The part of a broker that looks after what was enqueued."""

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: go on with `after=page.next`.
        """
        self._node.check_open()
        check_integer(after, "after", 0, INTEGER_MAX)
        check_integer(max, "max", 1, FAILED_MAX)
        return await self._node.enqueueing.page(self._namespace, after, max)

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Try enqueued messages again that could not be published, all of this namespace unless some are named.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """
        self._node.check_open()
        return await self._node.enqueueing.retry(self._namespace, check_ids(ids))

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Let enqueued messages go that could not be published, all of this namespace unless some are named.

        Returns how many.
        """
        self._node.check_open()
        return await self._node.enqueueing.purge(self._namespace, check_ids(ids))
