"""Accepting connections on a port, keeping them within their limit and ending them in order: alike in every front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar, cast

from penstock.fronts.auth import Credentials, check_exposure
from penstock.fronts.front import Front, FrontOptions

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Written and not taken by the client, before it must catch up."""
REFUSED_MAX: Final = 256
"""Connections past the limit that are told so at a time; more are only closed."""
BACKLOG: Final = 4_096
"""Connections that the system holds for a front which has not accepted them yet."""


class CannotListen(Exception):
    """A port of a front's section cannot be listened on, and why."""

    def __init__(self, host: str, port: int, option: str, cause: OSError) -> None:
        super().__init__(f"{option} {port} of {host}: {cause}")
        self.host = host
        self.port = port
        self.option = option
        """The option that says which port."""
        self.cause = cause


def begin(transport: asyncio.BaseTransport) -> tuple[asyncio.Transport, str]:
    """A new connection's transport, and who is at the other end."""
    stream = cast("asyncio.Transport", transport)
    stream.set_write_buffer_limits(WRITE_BUFFER_BYTES)
    peer = stream.get_extra_info("peername")
    return stream, f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"


class Gone(asyncio.Transport):
    """In place of the transport of a client that has gone: drops what is written. Those of uvloop raise instead."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads it."""

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """The same."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self) -> None:
        """The same."""

    def close(self) -> None:
        """It is closed."""

    def abort(self) -> None:
        """The same."""


GONE: Final = Gone()


def linger(transport: asyncio.Transport) -> None:
    """Say no more, and read on: closing while the client still sends would reset the connection and lose the answer.

    The transport is closed when the client closes its side. Whoever calls this drops what comes, and sets a deadline.
    """
    if transport.is_closing():
        return
    try:
        transport.write_eof()
        transport.resume_reading()
    except OSError:  # the client has gone already
        transport.abort()


async def listen(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, option: str = "port"
) -> tuple[asyncio.Server, int]:
    """Accept connections; the server, and the port that it has got where 0 was asked for."""
    try:
        server = await asyncio.get_running_loop().create_server(make, host, port, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(host, port, option, error) from None
    return server, int(server.sockets[0].getsockname()[1])


class Connection(Protocol):
    """One client."""

    def abort(self) -> None:
        """Close at once."""


AnyConnection = TypeVar("AnyConnection", bound=Connection)


class SocketFront(Front, Generic[AnyConnection]):
    """A front on sockets, with its connections."""

    def __init__(self, section: str, options: FrontOptions, credentials: Credentials) -> None:
        check_exposure(section, options.host, credentials)
        self.credentials = credentials
        self.stopping = False
        self.port = 0
        self.connections: set[AnyConnection] = set()
        self._most = options.max_connections
        self._loop = asyncio.get_running_loop()
        self._all_closed: asyncio.Future[None] | None = None

    def opened(self, connection: AnyConnection) -> bool:
        """A client is there; whether there is room for it."""
        self.connections.add(connection)
        self.measures.connections += 1
        self.measures.connections_accepted += 1
        has_room = len(self.connections) <= self._most
        self.measures.connections_refused += not has_room
        if len(self.connections) > self._most + REFUSED_MAX:
            connection.abort()  # no time to say why
        return has_room

    def closed(self, connection: AnyConnection) -> None:
        """A client is gone, and so is all that it had."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.measures.connections -= 1
        if not self.connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def all_closed(self) -> None:
        """Until no connection is left."""
        while self.connections:
            self._all_closed = self._loop.create_future()
            await self._all_closed
