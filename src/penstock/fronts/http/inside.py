"""Requests of the fronts beside HTTP to whichever node owns what they are about: HTTP's own routes, without a socket.

Looks to `client` like the channel to a server, so that a front asks another node in the words of the Python client.
Knows nothing of protocols. Next stop: `server.py`, then `forwarding.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.client.operations.errors import error_of
from penstock.client.transport.channel import Reply, Retry
from penstock.client.transport.channel import Request as ClientRequest
from penstock.client.transport.connection import Answer as ClientAnswer
from penstock.fronts.http.request import Request

if TYPE_CHECKING:
    from penstock.fronts.http.server import HttpServer

ANSWER_S: Final = 30.0


class Inside:
    """The way from a front to any node, in the name of a session."""

    def __init__(self, server: HttpServer, consumer: str, session: str | None) -> None:
        self._server = server
        self._consumer = consumer
        self._session = session
        self.timeout_s = ANSWER_S

    async def send(self, request: ClientRequest, _retry: Retry) -> Reply:
        """The successful answer, or the error. It is not asked again: who forwards knows when that is safe."""
        headers = dict(_header(line) for line in request.headers.split(b"\r\n") if line)
        token = self._server.options.token
        if token:
            headers[b"authorization"] = b"Bearer " + token.encode()
        body: bytes | list[bytes | memoryview] = [request.body, request.more] if request.more else request.body
        asked = Request(request.method.decode(), request.target, headers, body, True)
        answer = await self._server.ask(asked, self._consumer, self._session)
        if answer.status >= 400:
            raise error_of(ClientAnswer(answer.status, {}, answer.body))
        return Reply(answer.body, False)

    def close(self) -> None:
        """Nothing to end: the server has the connections."""


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()
