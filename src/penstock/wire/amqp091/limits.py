"""What one connection may ask for; what is agreed upon with the client is never more."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """The server's side of connection.tune, and what a client can make a connection hold."""

    frame_max: int = 131_072
    """Bytes of one frame, its 8 bytes of framing included; at least 4096."""
    channel_max: int = 2047
    """The highest channel number."""
    heartbeat: int = 60
    """Seconds, proposed to the client; what it answers holds. 0: none is proposed."""
    max_message_bytes: int = 16 * 1024 * 1024
    """Bytes of one message's body; more closes the channel (311)."""
    max_unfinished_bytes: int = 64 * 1024 * 1024
    """Bytes of all messages of one connection whose last frame has not come yet; more closes the connection (506)."""
    handshake_seconds: float = 10.0
    """From the first `tick` until connection.open; longer loses the connection."""
    close_seconds: float = 5.0
    """How long a connection.close of ours waits for its close-ok."""
