"""The section `[amqp]` of the configuration: where AMQP listens, and how much its clients may make it hold."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.model import PAYLOAD_BYTES_MAX
from penstock.model.setting_types import KIB, MIB, Bytes, Count, Port, Seconds
from penstock.wire.amqp091.handshake import Limits

UNFINISHED_BYTES: Final = 64 * MIB
"""Of messages that one connection has begun to send on several channels; one whole message at the least."""


class AmqpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AMQP 0.9.1, as RabbitMQ's clients speak it. Where `http.token` is set, clients send it as their password."""

    enabled: bool = True
    """Listen for AMQP."""
    host: str = "127.0.0.1"
    """The address to listen on. One that others can reach needs `http.token`, or `http.insecure`."""
    port: Port = 5672
    """The port to listen on; 0 takes a free one, which the server prints."""
    max_connections: Count = 20_000
    """Connections at once; one more is closed."""
    max_channels: Annotated[int, Meta(ge=1, le=65_535)] = 2_047
    """Channels that one connection may open."""
    max_frame_bytes: Annotated[int, Meta(ge=8 * KIB, le=16 * MIB)] = 128 * KIB
    """The largest frame; clients may agree on less. A message's properties must fit into one."""
    max_message_bytes: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = 0
    """The largest message, which `limits.message_bytes` bounds too; a larger one closes its channel. 0: no less."""
    max_pending_bytes: Bytes = 16 * MIB
    """What one connection may have published and not stored yet; past that it is not read from until some is."""
    create_vhosts: bool = False
    """Let clients open vhosts in which nothing is declared yet; without it they are refused. `/` is always there."""
    heartbeat_seconds: Annotated[int, Meta(ge=0, le=65_535)] = 60
    """The heartbeat proposed to clients, whose answer holds; 0 proposes none."""
    handshake_seconds: Seconds = 10.0
    """How long a client may take to log in."""
    stop_seconds: Seconds = 10.0
    """How long answers under way, and clients' goodbyes, may take after the server was told to stop."""

    def limits(self, message_bytes: int) -> Limits:
        """What one connection may ask for, where the server takes messages of so many bytes."""
        most = min(self.max_message_bytes or message_bytes, message_bytes)
        return Limits(
            frame_max=self.max_frame_bytes,
            channel_max=self.max_channels,
            heartbeat=self.heartbeat_seconds,
            max_message_bytes=most,
            max_unfinished_bytes=max(most, min(4 * most, UNFINISHED_BYTES)),
            handshake_seconds=self.handshake_seconds,
        )
