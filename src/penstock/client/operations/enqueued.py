"""Messages that applications enqueued in the database and that cannot be published, from a client.

How an application enqueues is in `penstock.enqueue`: that needs the database, and no server.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests, decoded
from penstock.node.background.enqueued import FailedPage
from penstock.wire.http.enqueued import EnqueuedChoice, FailedAnswer
from penstock.wire.http.shapes import CountAnswer


class Enqueued(Requests):
    """The part of a client that looks after enqueued messages."""

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: go on with `after=page.next`.
        """
        path = with_query(self._target("enqueued", "failed"), after=after, max=max)
        return msgspec.convert(await self._get(FailedAnswer, path), FailedPage, from_attributes=True)

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Try enqueued messages again that could not be published, all of this namespace unless some are named.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """
        return await self._settle_enqueued("retry", ids)

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Let enqueued messages go that could not be published, all of this namespace unless some are named.

        Returns how many.
        """
        return await self._settle_enqueued("purge", ids)

    async def _settle_enqueued(self, action: str, ids: Sequence[int] | None) -> int:
        body = EnqueuedChoice(ids=None if ids is None else list(ids))
        return decoded(CountAnswer, await self._send(b"POST", self._target("enqueued", "failed", action), body)).count
