"""Publishing for the node's own services: schedules, staging, enqueued messages, dead letters, the spool's replay.

They append in a step of their own choosing, so that what belongs with the messages goes into the same commit. Users'
publishes are `append.py`'s. Next stop: `commit/loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.batch import EncodedBatch
from penstock.model import Message
from penstock.node.cluster import remote_publish
from penstock.node.publish.append import append_all
from penstock.node.publish.parts import Part, Results
from penstock.node.publish.route import route_batch, route_message

if TYPE_CHECKING:
    from penstock.node.node import Node


class Publisher:
    """Appends parts to the lanes of this node, and promises those of other nodes to their owners."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def append(self, parts: Sequence[Part], check: Callable[[], None] | None = None) -> Results:
        """Append to several lanes in one step, so that one commit holds them all; `check` may still refuse in it."""
        return await append_all(self._node, parts, check)

    async def append_in_room(self, parts: Sequence[Part], check: Callable[[], None] | None = None) -> Results:
        """Like `append`, once so many bytes may be pending."""
        await self._node.commits.room(sum(part.size for part in parts))
        return await append_all(self._node, parts, check)

    async def landed(self, results: Results) -> Results:
        """The results with the places of what other nodes had to append, when it is there."""
        return await remote_publish.landed(self._node, results)

    def nudge(self, results: Results) -> None:
        """Let other nodes append their parts now; nobody waits for it."""
        remote_publish.nudge(self._node, results)

    def route_message(self, namespace: str, exchange: str, message: Message) -> list[Part]:
        """The parts of one message; raises `Unroutable` when no queue takes it."""
        return route_message(self._node, namespace, exchange, message)

    def route_batch(
        self, namespace: str, exchange: str, batch: EncodedBatch, *, publish_id: str | None = None
    ) -> list[Part]:
        """The parts of an encoded batch; none for messages that no queue takes."""
        return route_batch(self._node, namespace, exchange, batch, mandatory=False, publish_id=publish_id)
