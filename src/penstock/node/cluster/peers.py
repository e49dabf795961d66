"""What one node asks of another: an operation for a client, or something between nodes.

Every request carries the cluster's secret, so that the other node believes in whose name it comes, and this node's
number, so that it is not forwarded a second time. The connections are the Python client's, kept for each node. A
failure says whether the request may have reached the other node. Knows no route and no owner. Next stop:
`client/transport/pool.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import asdict

from penstock.client.transport.connection import Answer, ConnectFailed, ConnectionLost
from penstock.client.transport.pool import Address, NodePool
from penstock.logs import request_id
from penstock.model.errors import Unavailable
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import Landed, Landing
from penstock.wire.http.cluster import FORWARDED, SECRET, HandoverRequest, LandedRequest, SessionEnd
from penstock.wire.http.shapes import JSON_TYPE, encode_json

ANSWER_S: Final = 5.0
"""How long a node waits for another one's answer to a request of its own."""
CONNECT_S: Final = 1.0
IDLE_S: Final = 10.0
"""How long an idle connection is kept: one that the other node closes just as it is used leaves an outcome unknown."""
CONNECTIONS_MAX: Final = 1 << 16
"""To one node: each request that waits there has its own."""
_JSON: Final = b"content-type: " + JSON_TYPE.encode() + b"\r\n"


class NotSent(Unavailable):
    """Nothing of the request has reached the other node."""

    code = "peer_unreachable"


class Broken(Unavailable):
    """The connection broke after the request was sent: it was carried out, or it was not."""

    code = "peer_lost"


class HttpPeers:
    """The other nodes, over HTTP."""

    def __init__(self, ownership: Ownership, secret: Callable[[], str]) -> None:
        self._ownership = ownership
        self._secret = secret
        self._pools: dict[str, NodePool] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _pool(self, url: str) -> NodePool:
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = NodePool(
                Address(url),
                tls=None,
                connections_max=CONNECTIONS_MAX,
                connect_timeout_s=CONNECT_S,
                idle_s_max=IDLE_S,
            )
        return pool

    async def send(
        self,
        url: str,
        method: bytes,
        target: bytes,
        headers: bytes = b"",
        body: tuple[bytes, ...] = (),
        *,
        seconds: float = ANSWER_S,
        hop: bytes = b"",
    ) -> Answer:
        """One request and its answer, whatever that is. `hop` says why it comes, where not as its owner's."""
        lines = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, url.partition("://")[2].rstrip("/").encode()),
            b"%b: %b\r\n" % (SECRET, self._secret().encode()),
            b"%b: %b\r\n" % (FORWARDED, hop or b"%d" % self._ownership.incarnation),
            headers,
        ]
        if id := request_id.get():
            lines.append(b"x-request-id: %b\r\n" % id.encode("latin-1", "replace"))
        lines.append(b"content-length: %d\r\n\r\n" % sum(map(len, body)))
        try:
            return await self._pool(url).request(b"".join(lines), b"".join(body), seconds)
        except ConnectFailed as error:
            raise NotSent(f"{url} cannot be reached: {error}") from None
        except ConnectionLost as error:
            raise Broken(f"{url} was asked, and gave no answer: {error}") from None

    # Between nodes ----------------------------------------------------------------------------------------

    async def poke(self, url: str) -> None:
        """Let another node look at the store now; returns when it has."""
        await self._ask(url, b"/v1/cluster/poke")

    async def end_session(self, url: str, session: str) -> None:
        """Let another node end what a session has there."""
        await self._ask(url, b"/v1/cluster/sessions/end", SessionEnd(session=session))

    async def hand_over(self, url: str, slots: list[int], to: int) -> None:
        """Ask another node for slots that it owns."""
        await self._ask(url, b"/v1/cluster/handover", HandoverRequest(slots=slots, to=to))

    async def landed(self, url: str, landings: list[Landing]) -> list[Landed]:
        """Let another node carry out what was published to its queues; where that went."""
        request = LandedRequest(landings=[asdict(landing) for landing in landings])
        answer = await self._ask(url, b"/v1/cluster/landed", request)
        return msgspec.json.decode(answer.body, type=list[Landed])

    async def _ask(self, url: str, target: bytes, body: object = None) -> Answer:
        """Raises unless it was carried out."""
        sent = () if body is None else (encode_json(body),)
        answer = await self.send(url, b"POST", target, _JSON if sent else b"", sent)
        if answer.status >= 400:
            raise Unavailable(f"{url} answered {answer.status}: {answer.body[:300].decode(errors='replace')}")
        return answer
