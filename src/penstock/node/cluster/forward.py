"""Where an operation is carried out, and one attempt to have another node do it.

The owner may be changing: the caller tries again until there is an owner or the time is over. What was sent and
not answered may have been done: it is sent again only where doing it twice is the same as doing it once. Knows no
operation; `node/broker/cluster.py` has those. Next stop: `peers.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from penstock.client.operations.errors import error_of
from penstock.client.transport.channel import Reply, Request, Retry
from penstock.client.transport.connection import Answer
from penstock.model.errors import Unavailable
from penstock.node.cluster.membership import Cluster
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.peers import Broken, HttpPeers, NotSent
from penstock.wire.http.cluster import CONSUMER, MISDIRECTED, PRINCIPAL, SESSION_NAME, TO_SESSION

ANSWER_WITHIN_S: Final = 3_700.0
"""The longest wait that a claim may ask for, and some more."""
AGAIN_S: Final = 0.05
BREATH_S: Final = 0.01
LOOK_S: Final = 0.25
MOVED_S: Final = 1.0
"""A node that has not been the owner for so long, and has not answered, is dead or stopped."""


class Destination(NamedTuple):
    """Who must carry an operation out: the owner of a slot, or the process that has a session."""

    slot: int = -1
    """-1 where it is the process of `incarnation`."""
    incarnation: int = 0


class TryAgain(Exception):
    """Nothing came of an attempt, and another is safe."""

    def __init__(self, reason: Unavailable) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Forwarder:
    """The way from this node to the owner of anything."""

    def __init__(self, cluster: Cluster, ownership: Ownership, peers: HttpPeers) -> None:
        self.cluster = cluster
        self._ownership = ownership
        self._peers = peers
        self.forwarded = 0
        self.failed = 0

    def close(self) -> None:
        """End every connection to other nodes."""
        self._peers.close()

    def url(self, destination: Destination) -> str | None:
        """Where the owner is; None while there is none, or where it is this node."""
        owner = self._ownership
        node = owner.node_of(destination.incarnation) if destination.slot < 0 else owner.owner(destination.slot)
        return None if node is None or node.incarnation == owner.incarnation else node.url or None

    def is_here(self, destination: Destination) -> bool:
        """Whether this node carries it out: it is the owner, or its spool keeps publishes while the store is away."""
        return destination.slot >= 0 and (self._ownership.owns(destination.slot) or self.cluster.is_store_away)

    @property
    def incarnation(self) -> int:
        """This process's number among the nodes; another one once it was declared dead and has joined again."""
        return self._ownership.incarnation

    async def is_still(self, incarnation: int) -> bool:
        """Whether this process has been a member all along; known once the store was heard of within the lease."""
        while not self._ownership.is_certain:
            if self.cluster.is_over:
                return False
            await self.look_again()
        return self._ownership.incarnation == incarnation

    async def look_again(self) -> None:
        """Until the store may have told who the owner is."""
        self.cluster.look()
        await self.cluster.changed(AGAIN_S)
        await asyncio.sleep(BREATH_S)

    async def refresh_catalog(self) -> None:
        """Know here too what another node has just declared."""
        await self.cluster.catalog_feed.refresh()

    async def attempt(self, destination: Destination, request: Request, headers: bytes) -> Answer:
        """One attempt at the owner. Raises `TryAgain`, or `Unavailable` where it may have been done."""
        url = self.url(destination)
        if url is None:
            raise TryAgain(Unavailable(self._ownership.closed or "nobody owns this now"))
        try:
            answer = await self._while_owner(destination, url, request, headers)
        except NotSent as failed:
            raise TryAgain(failed) from None
        except Broken as failed:
            if is_repeatable(request):
                raise TryAgain(failed) from None
            self.failed += 1
            raise Unavailable(f"{failed}; whether it was done is not known") from None
        if answer.status == MISDIRECTED:
            raise TryAgain(Unavailable(f"{url} is not the owner any more, or its store is away"))
        self.forwarded += 1
        return answer

    async def _while_owner(self, destination: Destination, url: str, request: Request, headers: bytes) -> Answer:
        """The answer; given up on when another node has been the owner for a while."""
        body = (request.body, request.more) if request.more else (request.body,)
        hop = TO_SESSION if destination.slot < 0 else b""
        sending = self._peers.send(
            url, request.method, request.target, request.headers + headers, body, seconds=ANSWER_WITHIN_S, hop=hop
        )
        task, loop = asyncio.ensure_future(sending), asyncio.get_running_loop()
        give_up_at: float | None = None
        try:
            while not task.done():
                await asyncio.wait([task], timeout=LOOK_S)
                if self.url(destination) == url:
                    give_up_at = None
                elif give_up_at is None:
                    give_up_at = loop.time() + MOVED_S
                elif loop.time() > give_up_at and not task.done():
                    raise Broken(f"{url} did not answer, and is not the owner any more")
            return task.result()
        finally:
            task.cancel()


class PeerChannel:
    """One destination, as a client's operations see it: something that answers requests."""

    def __init__(
        self, forwarder: Forwarder, destination: Destination, consumer: str, principal: str, session_key: str | None
    ) -> None:
        self._forwarder = forwarder
        self._destination = destination
        named = {CONSUMER: consumer, PRINCIPAL: principal, SESSION_NAME: session_key}
        self._headers = b"".join(
            b"%b: %b\r\n" % (header, text.encode("latin-1", "replace")) for header, text in named.items() if text
        )
        self.timeout_s = ANSWER_WITHIN_S

    async def send(self, request: Request, _retry: Retry) -> Reply:
        """The successful answer, or the error that the other node answers with. It is sent once."""
        answer = await self._forwarder.attempt(self._destination, request, self._headers)
        if answer.status >= 400:
            raise error_of(answer)
        return Reply(answer.body, False, answer.status)

    def close(self) -> None:
        """Nothing to end: the connections are all nodes'."""


def is_repeatable(request: Request) -> bool:
    """Whether doing it twice is the same as doing it once."""
    return request.method == b"GET" or b"publish_id=" in request.target
