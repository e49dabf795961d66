"""The section `[http]` of the configuration: where HTTP listens, and how much its clients may make it hold."""

from __future__ import annotations

import msgspec

from penstock.fronts.auth import Credentials
from penstock.model.setting_types import KIB, Bytes, BytesOrDefault, Count, Port, Seconds


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP API."""

    host: str = "127.0.0.1"
    """The address to listen on. One that others can reach needs a `token`, or `insecure`."""
    port: Port = 7333
    """The port to listen on; 0 takes a free one, which the server prints."""
    token: str = ""
    """What every request must bring as `Authorization: Bearer …`; empty: nothing is asked for. A secret."""
    insecure: bool = False
    """Listen where others can reach the server although it asks for no token."""
    max_body_bytes: BytesOrDefault = 0
    """The largest body of a request; 0: what `limits.batch_bytes` and `limits.message_bytes` need."""
    max_header_bytes: Bytes = 32 * KIB
    """The largest head of a request: its first line and all headers."""
    max_connections: Count = 20_000
    """Connections at once; one more is answered 503 and closed."""
    max_long_polls: Count = 20_000
    """Claims and reads that wait at once; one more is answered 429."""
    max_sessions: Count = 10_000
    """Sessions of clients at once; one more is answered 429."""
    idle_seconds: Seconds = 75.0
    """How long a connection may stay open between requests."""
    request_seconds: Seconds = 30.0
    """How long a client may take to send one whole request."""
    stop_seconds: Seconds = 10.0
    """How long answers under way may take after the server was told to stop."""

    @property
    def enabled(self) -> bool:
        """Always: commands, clients and other nodes use it."""
        return True

    @property
    def credentials(self) -> Credentials:
        """What this section asks clients of every front for."""
        return Credentials(self.token, self.insecure)
