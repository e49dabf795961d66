"""The section `[mqtt]` of the configuration: where MQTT listens, and how much its clients may make it hold."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.model.setting_types import KIB, MIB, SECONDS_MAX, Count, Port, Seconds
from penstock.wire.mqtt.packets import NEVER

PACKET_BYTES_MAX: Final = 256 * MIB


class MqttOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MQTT 3.1.1 and 5. Where `http.token` is set, clients send it as their password."""

    enabled: bool = True
    """Listen for MQTT."""
    host: str = "127.0.0.1"
    """The address to listen on. One that others can reach needs `http.token`, or `http.insecure`."""
    port: Port = 1883
    """The port to listen on; 0 takes a free one, which the server prints."""
    websocket: bool = True
    """Listen for MQTT over WebSocket too, at the path `/mqtt`."""
    websocket_port: Port = 8083
    """The port for WebSockets; 0 takes a free one, which the server prints."""
    namespace: str = "default"
    """Whose queues and exchanges MQTT clients see."""
    max_connections: Count = 20_000
    """Connections at once; one more is told that the server is busy."""
    max_packet_bytes: Annotated[int, Meta(ge=0, le=PACKET_BYTES_MAX)] = 0
    """The largest packet of a client; 0: what `limits.message_bytes` needs, within the 256 MiB that MQTT can say."""
    connect_seconds: Seconds = 10.0
    """How long a client may take from the connection to its CONNECT."""
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Publishes of QoS 1 and 2 that a version 5 client may have unanswered."""
    topic_alias_maximum: Annotated[int, Meta(ge=0, le=65_535)] = 64
    """Topic aliases that a client may set, and at most as many the server sets."""
    max_in_flight: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Deliveries of QoS 1 and 2 that one client may have unanswered; its own receive maximum may be lower."""
    max_unsettled: Count = 1_000
    """Messages of one subscription to `$queue/…` that may be unsettled."""
    max_subscriptions: Count = 10_000
    """Filters that one session may subscribe to."""
    max_queued: Count = 100_000
    """Messages that wait for one session; with one more, the oldest goes."""
    max_queued_bytes: Annotated[int, Meta(ge=KIB, le=1 << 40)] = 256 * MIB
    """Bytes that wait for one session; with more, the oldest go."""
    max_session_expiry_seconds: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = NEVER
    """The longest that a session outlives its connection; 4294967295 means no limit."""
    max_keep_alive_seconds: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """The longest keep-alive of version 5 clients; a longer one, or none, is replaced by it. 0: any is fine."""
    max_retained: Count = 1_000_000
    """Retained messages; one more is refused."""
    max_retained_bytes: Annotated[int, Meta(ge=KIB, le=1 << 40)] = 256 * MIB
    """Bytes of retained messages, which are kept in memory; more are refused."""
    sys_interval_s: Annotated[float, Meta(ge=0, le=SECONDS_MAX)] = 10.0
    """Seconds between the messages of `$SYS/broker/…` to clients that subscribe to them; 0: none are sent."""
    declare_queues: bool = True
    """Declare the queue of `$queue/<name>/…` where a client publishes or subscribes to one that does not exist."""
    stop_seconds: Seconds = 5.0
    """How long what clients have sent may take after the server was told to stop."""

    def packet_bytes_max(self, message_bytes: int) -> int:
        """The largest packet, where the server takes messages of so many bytes."""
        return self.max_packet_bytes or min(message_bytes + MIB, PACKET_BYTES_MAX)
