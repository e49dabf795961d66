"""What can be set about the HTTP front: where it listens, and the limits on what a client can make it hold."""

from __future__ import annotations

import msgspec


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[http]` of the configuration."""

    host: str = "127.0.0.1"
    """The address to listen on. One that is not the machine's own loopback needs a token."""
    port: int = 7333
    """The port to listen on; 0 takes a free one and says which."""
    token: str = ""
    """What clients send as `Authorization: Bearer …`. Empty: whoever reaches the port may do everything."""
    insecure: bool = False
    """Listen beyond loopback without a token all the same."""
    max_body_bytes: int = 65 * 1024 * 1024
    """Bytes of one request's body."""
    max_header_bytes: int = 32 * 1024
    """Bytes of one request's line and headers."""
    max_connections: int = 20_000
    """Connections at a time; one more is answered 503 and closed."""
    max_long_polls: int = 20_000
    """Claims and reads that may wait for messages at a time; one more is answered 429."""
    max_sessions: int = 10_000
    """Sessions at a time; one more is answered 429."""
    idle_seconds: float = 75.0
    """A connection without a request for so long is closed."""
    request_seconds: float = 30.0
    """A request must have arrived, and an answer must have been taken, within this time."""
    stop_seconds: float = 10.0
    """How long a stop waits for answers under way."""
