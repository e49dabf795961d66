"""Accepting connections on a port and ending them in order, the same for every front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

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
