"""Requests that another node must answer: sent on as they came, to whoever owns what they are about.

The owner may be changing: then this node looks again, and waits, until somebody is the owner or the time is over. What
was sent and not answered may have been done: it is sent again only where doing it twice is the same as doing it once.
Knows no route. Next stop: `peers.py`, or the same handler once more where this node has become the owner itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from penstock.fronts.http.errors import failure
from penstock.fronts.http.peers import Broken, NotSent, PeerAnswer, Peers
from penstock.fronts.http.request import Answer, Request, Stream
from penstock.model.errors import Elsewhere, PenstockError, Unavailable
from penstock.node.cluster.remote_publish import Landed, Landing
from penstock.wire.http.cluster import (
    CONSUMER,
    FORWARDED,
    SECRET,
    SESSION_NAME,
    WAITED,
    HandoverRequest,
    LandedRequest,
    SessionEnd,
)
from penstock.wire.http.shapes import encode_json

if TYPE_CHECKING:
    from penstock.node.cluster.membership import Cluster

OWNER_WITHIN_S: Final = 8.0
"""How long a request waits for its slot to have an owner: longer than a takeover takes."""
ANSWER_WITHIN_S: Final = 3_700.0
"""The longest wait that a claim may ask for, and some more."""
AGAIN_S: Final = 0.05
BREATH_S: Final = 0.01
LOOK_S: Final = 0.25
MOVED_S: Final = 1.0
MISDIRECTED: Final = 421
TO_SESSION: Final = b"session"
"""Sent on to the node that has its session, which may send it on once more, to who owns the queue."""
PASSED_ON: Final[tuple[bytes, ...]] = (b"accept", b"authorization", b"content-type", b"last-event-id", b"traceparent")
OWN_HEADERS: Final = frozenset(
    (b"content-length", b"content-type", b"connection", b"x-request-id", b"transfer-encoding", b"date")
)

Again = Callable[[], Awaitable[Answer | Stream]]


class Forwarding:
    """The way to other nodes of one server."""

    def __init__(self, cluster: Cluster, token: str) -> None:
        self._cluster = cluster
        self._token = token
        self.peers = Peers()
        self.forwarded = 0
        self.failed = 0

    # Clients' requests ------------------------------------------------------------------------------------

    async def answer(
        self, request: Request, error: Elsewhere, peer: str, session: str | None, again: Again
    ) -> Answer | Stream:
        """The owner's answer. `again` is the handler, should this node become the owner."""
        hop = request.headers.get(FORWARDED)
        if hop is not None and not (hop == TO_SESSION and error.slot >= 0):
            return failure(MISDIRECTED, error.code, str(error), {"slot": error.slot})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OWNER_WITHIN_S
        request.is_waiting = request.waits
        reason: PenstockError = error
        while True:
            url = self._url(error)
            if url is not None:
                tried_at = loop.time()
                answer, reason = await self._try(error, url, request, peer, session)
                if answer is not None:
                    return answer
                deadline += loop.time() - tried_at  # what it waited there was not without an owner
                if isinstance(reason, Broken) and not is_repeatable(request):
                    self.failed += 1
                    raise Unavailable(f"{reason}; whether it was done is not known")
            if self._cluster.is_store_away or (url is None and error.slot in self._cluster.ownership.owned):
                # This node is the owner, or it keeps what is published until the store is back.
                try:
                    return await again()
                except Elsewhere as moved:
                    error = reason = moved
            if loop.time() > deadline:
                self.failed += 1
                raise Unavailable(f"no node could be found that owns this: {reason}")
            self._cluster.look()
            await self._cluster.changed(AGAIN_S)
            await asyncio.sleep(BREATH_S)

    def _url(self, error: Elsewhere) -> str | None:
        """Where the owner is; None while there is none, or where it is this node."""
        incarnation = error.incarnation
        if error.slot >= 0:
            row = self._cluster.ownership.slot(error.slot)
            incarnation = 0 if row is None else row.node
        node = self._cluster.ownership.node_of(incarnation)
        if node is None or incarnation == self._cluster.ownership.incarnation:
            return None
        return node.url or None

    async def _try(
        self, error: Elsewhere, url: str, request: Request, peer: str, session: str | None
    ) -> tuple[Answer | None, PenstockError]:
        hop = TO_SESSION if error.slot < 0 else b"%d" % self._cluster.ownership.incarnation
        raw = self._raw(url, request, peer, session, hop)
        try:
            found = await self._while_owner(error, url, self.peers.send(url, raw, ANSWER_WITHIN_S))
        except (NotSent, Broken) as failed:
            return None, failed
        if found.status == MISDIRECTED:
            return None, Unavailable(f"{url} is not the owner any more")
        self.forwarded += 1
        return _answer(found), Unavailable("answered")

    async def _while_owner(self, error: Elsewhere, url: str, sending: Coroutine[Any, Any, PeerAnswer]) -> PeerAnswer:
        """The answer; given up on when another node has been the owner for a while: this one is dead, or stopped."""
        task = asyncio.ensure_future(sending)
        given_up_at: float | None = None
        loop = asyncio.get_running_loop()
        try:
            while not task.done():
                await asyncio.wait([task], timeout=LOOK_S)
                if self._url(error) == url:
                    given_up_at = None
                elif given_up_at is None:
                    given_up_at = loop.time() + MOVED_S
                elif loop.time() > given_up_at and not task.done():
                    raise Broken(f"{url} did not answer, and is not the owner any more")
            return task.result()
        finally:
            task.cancel()

    def _raw(self, url: str, request: Request, peer: str, session: str | None, hop: bytes) -> bytes:
        waited = asyncio.get_running_loop().time() - request.began
        method = "GET" if request.method == "HEAD" else request.method
        headers: dict[bytes, bytes] = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        headers[FORWARDED] = hop
        headers[CONSUMER] = peer.encode("latin-1", "replace")
        headers[b"x-request-id"] = request.id.encode("latin-1")
        if request.waits:
            headers[WAITED] = b"%.3f" % waited
        if session is not None:
            headers[SECRET] = self._cluster.secret.encode()
            headers[SESSION_NAME] = session.encode()
        return raw_request(url, method, request.target, headers, request.body)

    # This node's own ----------------------------------------------------------------------------------------

    async def poke(self, url: str) -> None:
        """Let another node look at the store now; returns when it has."""
        await self.ask(url, "POST", b"/v1/cluster/poke", b"")

    async def end_session(self, url: str, session: str) -> None:
        """Let another node end what a session has there."""
        await self.ask(url, "POST", b"/v1/cluster/sessions/end", encode_json(SessionEnd(session=session)))

    async def hand_over(self, url: str, slots: list[int], to: int) -> None:
        """Ask another node for slots of its."""
        await self.ask(url, "POST", b"/v1/cluster/handover", encode_json(HandoverRequest(slots=slots, to=to)))

    async def landed(self, url: str, landings: list[Landing]) -> list[Landed]:
        """Let another node carry out what was published to queues of its; where that went."""
        body = encode_json(LandedRequest(landings=[asdict(landing) for landing in landings]))
        answer = await self.ask(url, "POST", b"/v1/cluster/landed", body)
        return msgspec.json.decode(answer.body, type=list[Landed])

    async def ask(self, url: str, method: str, target: bytes, body: bytes, seconds: float = 5.0) -> PeerAnswer:
        """A request of this node's own; raises unless it was carried out."""
        headers = {SECRET: self._cluster.secret.encode(), FORWARDED: b"%d" % self._cluster.ownership.incarnation}
        if body:
            headers[b"content-type"] = b"application/json"
        if self._token:
            headers[b"authorization"] = b"Bearer " + self._token.encode()
        answer = await self.peers.send(url, raw_request(url, method, target, headers, body), seconds)
        if answer.status >= 400:
            raise Unavailable(f"{url} answered {answer.status}: {answer.body[:300].decode(errors='replace')}")
        return answer


def raw_request(url: str, method: str, target: bytes, headers: dict[bytes, bytes], body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target), b"host: " + url.partition("://")[2].rstrip("/").encode()]
    lines += [b"%s: %s" % item for item in headers.items()]
    lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def is_repeatable(request: Request) -> bool:
    """Whether doing it twice is the same as doing it once."""
    return request.method in ("GET", "HEAD") or b"publish_id=" in request.target


def _answer(found: PeerAnswer) -> Answer:
    content_type = found.headers.get(b"content-type", b"application/json").decode("latin-1")
    others = tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in found.headers.items()
        if name not in OWN_HEADERS
    )
    return Answer(found.status, found.body, content_type, others)
