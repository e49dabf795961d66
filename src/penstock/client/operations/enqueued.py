"""Messages that applications enqueued in the database and that cannot be published, from a client.

How an application enqueues is in `penstock.enqueue`: that needs the database, and no server.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.api.enqueued import Enqueued, FailedPage
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests
from penstock.wire.http.shapes import EnqueuedChoice, FailedAnswer


class ClientEnqueued(Requests, Enqueued):
    """Looks after enqueued messages that failed."""

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        path = with_query(self._target("enqueued", "failed"), after=after, max=max)
        return msgspec.convert(await self._get(FailedAnswer, path), FailedPage, from_attributes=True)

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        return await self._settle_enqueued("retry", ids)

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        return await self._settle_enqueued("purge", ids)

    async def _settle_enqueued(self, action: str, ids: Sequence[int] | None) -> int:
        body = EnqueuedChoice(ids=None if ids is None else list(ids))
        return await self._count(self._target("enqueued", "failed", action), body)
