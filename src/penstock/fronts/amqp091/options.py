"""What can be set about the AMQP front: where it listens, and the limits on what a client can make it hold."""

from __future__ import annotations

import msgspec

from penstock.wire.amqp091.limits import Limits


class AmqpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[amqp]` of the configuration, with the token of `[http]`."""

    host: str = "127.0.0.1"
    """The address to listen on. One that is not the machine's own loopback needs a token."""
    port: int = 5672
    """The port to listen on; 0 takes a free one and says which."""
    token: str = ""
    """What clients give as their password, whatever their name. Empty: any name and password will do."""
    insecure: bool = False
    """Listen beyond loopback without a token all the same."""
    max_connections: int = 20_000
    """Connections at a time; one more is closed at once."""
    max_channels: int = 2_047
    """Channels of one connection."""
    max_frame_bytes: int = 131_072
    """Bytes of one frame."""
    max_message_bytes: int = 16 * 1024 * 1024
    """Bytes of one message's body."""
    max_pending_bytes: int = 16 * 1024 * 1024
    """Bytes that one connection has published and that are not stored yet; past that nothing more is read from it."""
    heartbeat_seconds: int = 60
    """Proposed to clients; 0 proposes none."""
    handshake_seconds: float = 10.0
    """How long a client may take to log in."""
    stop_seconds: float = 10.0
    """How long a stop waits for answers under way, and for clients to say goodbye."""

    def limits(self) -> Limits:
        """What one connection may ask for."""
        return Limits(
            frame_max=self.max_frame_bytes,
            channel_max=self.max_channels,
            heartbeat=self.heartbeat_seconds,
            max_message_bytes=self.max_message_bytes,
            max_unfinished_bytes=4 * self.max_message_bytes,
            handshake_seconds=self.handshake_seconds,
        )
