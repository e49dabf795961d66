"""Requests to other nodes over kept connections: raw HTTP/1.1, one request at a time on each.

Knows sockets and nothing of what is asked. A failure says whether the request may have reached the other node. Next
stop: `peers.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from penstock.model.errors import Unavailable

CONNECT_S: Final = 1.0
IDLE_MAX: Final = 64
"""Connections to one node that are kept while nothing is asked,"""
IDLE_S: Final = 10.0
"""and for how long: one that the other node closes just as it is used leaves an outcome unknown."""


class NotSent(Unavailable):
    """Nothing of the request has reached the other node."""

    code = "peer_unreachable"


class Broken(Unavailable):
    """The connection broke after the request was sent: it was carried out, or it was not."""

    code = "peer_lost"


class PeerAnswer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class PeerConnections:
    """Connections to all other nodes, by URL."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}
        self._busy: set[_Connection] = set()

    async def send(self, url: str, request: bytes, seconds: float) -> PeerAnswer:
        """One request and its answer."""
        connection = await self._connection(url)
        self._busy.add(connection)
        try:
            answer = await asyncio.wait_for(connection.ask(request), seconds)
        except TimeoutError:
            connection.close()
            raise Broken(f"{url} did not answer in {seconds:g} s") from None
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        connection.idle_since = asyncio.get_running_loop().time()
        if connection.is_open and len(idle := self._idle.setdefault(url, [])) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connection(self, url: str) -> _Connection:
        idle = self._idle.get(url, [])
        while idle:
            connection = idle.pop()
            if connection.is_open and asyncio.get_running_loop().time() - connection.idle_since < IDLE_S:
                return connection
            connection.close()
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        try:
            opening = loop.create_connection(_Connection, parts.hostname or "", parts.port or 80)
            _, connection = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, TimeoutError) as error:
            raise NotSent(f"{url} cannot be reached: {str(error) or type(error).__name__}") from None
        return connection

    def close(self) -> None:
        for connection in [*self._busy, *(one for idle in self._idle.values() for one in idle)]:
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[PeerAnswer] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self.is_open = False
        self.idle_since = 0.0

    async def ask(self, request: bytes) -> PeerAnswer:
        if not self.is_open or self._transport is None:
            raise NotSent("the connection was closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._headers, self._body = {}, []
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # The transport's and the parser's calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(f"the connection broke before there was an answer: {error or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(Broken(f"the answer is not HTTP/1.1: {error}"))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.is_open = False
        if self._answer is not None and not self._answer.done():
            answer = PeerAnswer(self._parser.get_status_code(), self._headers, b"".join(self._body))
            self._answer.set_result(answer)
