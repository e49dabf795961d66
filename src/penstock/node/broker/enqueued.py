"""What applications enqueued inside of their own database transactions, and could not be published."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.arguments import check_ids
from penstock.api.enqueued import Enqueued, FailedPage
from penstock.model import INTEGER_MAX, check_integer
from penstock.node.background.enqueued import FAILED_MAX
from penstock.node.broker.names import Names


class LocalEnqueued(Names, Enqueued):
    """Looks after enqueued messages that failed."""

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        self._services.lifecycle.check_open()
        self.authorize("browse", "enqueued", "")
        check_integer(after, "after", 0, INTEGER_MAX)
        check_integer(max, "max", 1, FAILED_MAX)
        return await self._services.enqueueing.page(self._namespace, after, max)

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        self._services.lifecycle.check_open()
        self.authorize("manage", "enqueued", "")
        return await self._services.enqueueing.retry(self._namespace, check_ids(ids))

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        self._services.lifecycle.check_open()
        self.authorize("manage", "enqueued", "")
        return await self._services.enqueueing.purge(self._namespace, check_ids(ids))
