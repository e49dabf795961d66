"""Another node's broker: the Python client's operations over a peer channel, and what only fronts ask for.

Next stop: `node/cluster/forward.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.api.dead_letters import DeadPage
from penstock.api.results import LeaseLike
from penstock.api.staging import Mark, MarkPage
from penstock.client.client import AsyncClient
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import PublishIds, Requests
from penstock.client.transport.channel import NO_RETRY, Sender
from penstock.model import DEFAULT_GROUP, INTEGER_MAX
from penstock.model.verdict import Verdict
from penstock.wire.http.shapes import MarksAnswer


class PeerClient(AsyncClient):
    """The broker of the node that a channel leads to."""

    def __init__(self, channel: Sender, namespace: str, consumer: str, session_id: str | None = None) -> None:
        """`session_id`: of a session that clients have at that node, in which every request is made."""
        Requests.__init__(self, channel, namespace, consumer, NO_RETRY, True, PublishIds())
        self._session = session_id

    async def settle(
        self,
        lease: LeaseLike,
        verdicts: Sequence[Verdict],
        *,
        deferred: bool = False,  # noqa: ARG002 - that saves a commit of this node, not of another
    ) -> None:
        await super().settle(lease, verdicts)

    async def dead_page(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 100
    ) -> DeadPage:
        lane, offset = after or (0, 0)
        lanes = len((await self.lanes(queue)).lanes)
        while lane < lanes:
            found = await self.dead(queue, group, lane=lane, offsets=(offset, INTEGER_MAX), max=max)
            if found:  # perhaps not all of the lane, however few: their bytes are bounded too
                last = found[-1].received.offset
                return DeadPage(found, (lane, last + 1), [gap for gap in found.damaged if gap.start < last])
            if found.damaged:
                return DeadPage([], (lane, found.damaged[-1].end), found.damaged)
            lane, offset = lane + 1, 0
        return DeadPage([], None)

    async def marks_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> MarkPage:
        path = with_query(self._target("marks"), prefix=prefix or None, limit=max, after=after or None)
        answer = await self._get(MarksAnswer, path)
        marks = [Mark(body.name, body.version, msgspec.Raw(body.value), body.updated_ms) for body in answer.marks]
        return MarkPage(marks, answer.next)

    async def renew_session(self, session_id: str) -> None:
        await self._send(b"PUT", self._target("sessions", session_id))

    async def end_session(self, session_id: str) -> None:
        await self._send(b"DELETE", self._target("sessions", session_id))
