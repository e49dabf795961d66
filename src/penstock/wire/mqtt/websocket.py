"""MQTT over WebSocket: a filter between the bytes of the socket and those of `connection.ServerConnection`.

How a front uses it: `plain = filter.receive(data)` gives the MQTT bytes for the connection; `filter.send(bytes)` wraps
what the connection wants written; `filter.take()` is what goes to the socket (handshake answers, pongs and closes
included). `closed` is true when the socket is to be closed after writing what `take` gives: the client is gone, or
what it sent is not MQTT over WebSocket. Packets may span frames and frames may hold several packets.

A web page of any site may open a WebSocket to the machine it is looked at on. So where a server asks for no password
(`any_origin` off) only pages of this machine and programs, which name no origin, are let in.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

PATH: Final = "/mqtt"
SUBPROTOCOL: Final = Subprotocol("mqtt")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

# The library tells of every connection; of ours the front tells.
_LOGGER: Final = logging.getLogger("penstock.wire.mqtt.websocket")
_LOGGER.setLevel(logging.ERROR)


class WebSocketFilter:
    """One WebSocket connection, from the handshake on; never raises for bad input."""

    __slots__ = ("_any_origin", "_protocol")

    def __init__(self, *, maximum_frame_size: int = 17 * 1024 * 1024, any_origin: bool = False) -> None:
        self._any_origin = any_origin
        self._protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=maximum_frame_size, logger=_LOGGER)

    @property
    def closed(self) -> bool:
        """Whether the socket is to be closed, once what `take` gives is written."""
        return self._protocol.eof_sent or self._protocol.state is State.CLOSED

    def receive(self, data: bytes) -> bytes:
        """The MQTT bytes in what came from the socket."""
        if self.closed:
            return b""
        self._protocol.receive_data(data)
        plain = []
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._protocol.send_response(self._answer(event))
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is in binary frames")
                    break
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    plain.append(bytes(event.data))
        return b"".join(plain)

    def _answer(self, request: Request) -> Response:
        if request.path.partition("?")[0] != PATH:
            return self._protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {PATH}\n")
        origins = request.headers.get_all("Origin")
        if not self._any_origin and not all(_is_loopback(origin) for origin in origins):
            return self._protocol.reject(
                HTTPStatus.FORBIDDEN, "pages of other machines are let in only where the server has a token\n"
            )
        return self._protocol.accept(request)

    def send(self, data: bytes) -> None:
        """Wrap MQTT bytes into a frame; nothing happens where the WebSocket is not open (any more)."""
        if data and self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)

    def close(self) -> None:
        """Say goodbye; `closed` from here on."""
        if not self.closed:
            self._protocol.fail(CloseCode.NORMAL_CLOSURE)

    def take(self) -> bytes:
        """What is to be written to the socket now."""
        return b"".join(self._protocol.data_to_send())


def _is_loopback(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in LOOPBACK
    except ValueError:
        return False
