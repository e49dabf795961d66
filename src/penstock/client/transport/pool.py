"""The nodes that a client was given, and the connections it keeps to each.

Requests go round the nodes that answer; one that refuses is put aside for a pause that grows, with jitter, and is tried
again when the pause is over or when no other is left. Knows connections and time, and nothing of what they carry.
Next stop: `channel.py`, which decides what is sent again.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from penstock.client.transport.connection import BODY_BYTES_MAX, Answer, Connection, connect
from penstock.model.errors import Closed, InvalidArgument

DEFAULT_PORT: Final = 7333
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 10.0
IDLE_S_MAX: Final = 45.0
"""An idle connection is not used after this time: servers close theirs after a while, 75 seconds unless told."""


class Address:
    """Where a node listens: http://host:port, https://host:port or host:port, perhaps with a path in front."""

    __slots__ = ("host", "is_secure", "label", "port", "prefix")

    def __init__(self, url: object) -> None:
        if not isinstance(url, str) or not url.strip():
            raise InvalidArgument(f"a node's URL is {url!r}; it must be like http://127.0.0.1:{DEFAULT_PORT}")
        text = url.strip()
        parts = urlsplit(text if "://" in text else f"http://{text}")
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidArgument(f"a node's URL is {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidArgument(f"a node's URL is {url!r}; it must be like http://127.0.0.1:{DEFAULT_PORT}")
        if parts.username is not None or parts.password is not None:
            raise InvalidArgument("a node's URL has a user or password; pass token= instead")
        self.is_secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port if port is not None else (443 if self.is_secure else DEFAULT_PORT)
        self.prefix = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.label = f"{host}:{self.port}"


def addresses_of(urls: str | Sequence[str]) -> list[Address]:
    """The nodes of "http://a:7333,http://b:7333" or of a list of such."""
    listed = urls.split(",") if isinstance(urls, str) else list(urls)
    addresses = [Address(url) for url in listed]
    if not addresses:
        raise InvalidArgument("a client needs the URL of at least one node")
    return addresses


class NodePool:
    """The connections to one node: idle ones are used again, at most `connections_max` are open."""

    def __init__(
        self,
        address: Address,
        *,
        headers: bytes = b"",
        tls: ssl.SSLContext | None,
        connections_max: int,
        connect_timeout_s: float,
        body_bytes_max: int = BODY_BYTES_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.address = address
        self.prefix = address.prefix.encode()
        self.headers = headers
        """What follows the path in every request to this node: the end of the line and the common headers."""
        self._tls = tls
        self._connections_max = connections_max
        self._connect_timeout_s = connect_timeout_s
        self._body_bytes_max = body_bytes_max
        self._idle_s_max = idle_s_max
        self._idle: list[tuple[Connection, float]] = []
        self._busy: set[Connection] = set()
        self._opening = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._failures = 0
        self._ready_at = 0.0

    # Requests ---------------------------------------------------------------------------------------------

    async def acquire(self, *, fresh: bool = False) -> Connection:
        """A connection for one request: an idle one, or a new one where there is none or `fresh` is wanted."""
        while True:
            if self._is_closed:
                raise Closed("the client is closed")
            idle = self._take_idle(fresh)
            if idle is not None:
                return idle
            if len(self._busy) + self._opening < self._connections_max:
                return await self._open()
            await self._wait_for_room()

    def _take_idle(self, fresh: bool) -> Connection | None:
        """The connection that was used last, if it can be used again; those that cannot be are closed."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_reusable and not fresh and time.monotonic() - since < self._idle_s_max:
                self._busy.add(connection)
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        self._opening += 1
        try:
            connection = await connect(
                self.address.host, self.address.port, self._tls, self._connect_timeout_s, self._body_bytes_max
            )
        except BaseException:
            self._opening -= 1
            self._wake()
            raise
        self._opening -= 1
        if self._is_closed:
            connection.close()
            raise Closed("the client is closed")
        self._busy.add(connection)
        return connection

    async def _wait_for_room(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._wake()  # it was this one's turn: the next may have it
            else:
                self._waiters.remove(waiter)
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def release(self, connection: Connection) -> None:
        """A request has ended, well or not."""
        self._busy.discard(connection)
        if connection.is_reusable and not self._is_closed:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        self._wake()

    async def request(self, head: bytes, body: bytes, timeout_s: float, *, fresh: bool = False) -> Answer:
        """One request and its answer."""
        connection = self._take_idle(fresh)  # none is idle in a pool that is closed
        if connection is None:
            connection = await self.acquire(fresh=fresh)
        try:
            return await connection.request(head, body, timeout_s)
        finally:
            self.release(connection)

    # Health -----------------------------------------------------------------------------------------------

    @property
    def ready_at(self) -> float:
        """When it may be tried again, on the monotonic clock; in the past for a node that answers."""
        return self._ready_at

    def failed(self) -> None:
        """It refused, broke off or said that it cannot: leave it alone for a while, longer each time."""
        self._failures += 1
        most = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(self._failures - 1, 10))
        self._ready_at = time.monotonic() + random.uniform(most / 2, most)

    def answered(self) -> None:
        if self._failures:
            self._failures = 0
            self._ready_at = 0.0

    def close(self) -> None:
        self._is_closed = True
        for connection in (*(idle for idle, _ in self._idle), *self._busy):
            connection.close()
        self._idle.clear()
        while self._waiters:
            self._wake()


class Nodes:
    """Several nodes, in turn."""

    def __init__(self, pools: Sequence[NodePool]) -> None:
        self._pools = list(pools)
        self._turn = 0

    def pick(self) -> NodePool:
        """The next node that is not put aside; where all are, the one whose pause ends first."""
        if len(self._pools) == 1:
            return self._pools[0]
        now = time.monotonic()
        for step in range(len(self._pools)):
            pool = self._pools[(self._turn + step) % len(self._pools)]
            if pool.ready_at <= now:
                self._turn += step + 1
                return pool
        return min(self._pools, key=lambda pool: pool.ready_at)

    def has_another(self) -> bool:
        """Whether some node is ready now: then a failed request need not pause."""
        now = time.monotonic()
        return any(pool.ready_at <= now for pool in self._pools)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
