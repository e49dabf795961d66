"""MQTT over WebSocket: a filter between the bytes of the socket and those of `connection.ServerConnection`.

How a front uses it: `plain = filter.receive(data)` gives the MQTT bytes for the connection; `filter.send(bytes)` wraps
what the connection wants written; `filter.take()` is what goes to the socket (handshake answers, pongs and closes
included). `closed` is true when the socket is to be closed after writing what `take` gives.
"""

from __future__ import annotations


class WebSocketFilter:
    """One WebSocket connection, from the handshake on; never raises for bad input."""

    closed: bool

    def __init__(self, *, path: str = "/mqtt", maximum_frame_size: int = 17 * 1024 * 1024) -> None: ...

    def receive(self, data: bytes) -> bytes:
        """The MQTT bytes in what came from the socket."""
        return b""

    def receive_end(self) -> None:
        """The socket has ended."""

    def send(self, data: bytes) -> None:
        """Wrap MQTT bytes into a frame."""

    def close(self) -> None:
        """Say goodbye; `closed` from here on."""

    def take(self) -> bytes:
        """What is to be written to the socket now."""
        return b""
