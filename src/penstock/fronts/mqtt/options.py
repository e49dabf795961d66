"""What can be set about the MQTT front: where it listens, and the limits on what a client can make it hold."""

from __future__ import annotations

import ipaddress

import msgspec

from penstock.model import DEFAULT_NAMESPACE
from penstock.model.errors import InvalidArgument

NEVER = 0xFFFFFFFF


class MqttOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[mqtt]` of the configuration, with the token of `[http]`."""

    enabled: bool = True
    """Listen for MQTT at all."""
    host: str = "127.0.0.1"
    """The address to listen on. One that is not the machine's own loopback needs a token."""
    port: int = 1883
    """The port to listen on; 0 takes a free one and says which."""
    websocket: bool = True
    """Listen for MQTT over WebSocket too, at the path `/mqtt`."""
    websocket_port: int = 8083
    """The port for that; 0 takes a free one and says which."""
    token: str = ""
    """What clients send as their password. Empty: whoever reaches the port may do everything."""
    insecure: bool = False
    """Listen beyond loopback without a token all the same."""
    namespace: str = DEFAULT_NAMESPACE
    """Whose queues and exchanges MQTT clients see."""
    max_connections: int = 20_000
    """Connections at a time; one more is told that the server is busy."""
    max_packet_bytes: int = 17 * 1024 * 1024
    """Bytes of one packet."""
    connect_seconds: float = 10.0
    """How long a client may take from the connection to its CONNECT."""
    receive_maximum: int = 1_000
    """Publishes of QoS 1 and 2 that a client may have unanswered."""
    topic_alias_maximum: int = 64
    """Topic aliases that a client may set, and at most as many the server sets."""
    max_in_flight: int = 1_000
    """Deliveries of QoS 1 and 2 that may be unanswered by one client; its own receive maximum may be lower."""
    max_unsettled: int = 1_000
    """Messages of one `$queue/…` subscription that may be unsettled."""
    max_subscriptions: int = 10_000
    """Filters that one session may subscribe to."""
    max_queued: int = 100_000
    """Messages that wait for one session; with one more, the oldest goes."""
    max_queued_bytes: int = 256 * 1024 * 1024
    """Bytes of them; with more, the oldest go."""
    max_session_expiry_seconds: int = NEVER
    """The longest that a session outlives its connection; 4294967295 is for ever."""
    max_keep_alive_seconds: int = 0
    """The longest keep-alive of version 5 clients; a longer one, or none, is replaced by it. 0: any is fine."""
    max_retained: int = 1_000_000
    """Retained messages."""
    max_retained_bytes: int = 256 * 1024 * 1024
    """Bytes of their topics and payloads, which are in memory."""
    declare_queues: bool = True
    """A publish or subscription to `$queue/<name>/…` declares the queue where there is none."""
    stop_seconds: float = 5.0
    """How long a stop waits for what clients sent before it."""


def check_exposure(options: MqttOptions) -> None:
    """Raise where anybody on the network could do everything, unless that was asked for."""
    if options.token or options.insecure:
        return
    try:
        is_loopback = ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        is_loopback = options.host == "localhost"
    if not is_loopback:
        raise InvalidArgument(
            f"mqtt.host is {options.host!r}, which others can reach, and there is no http.token; "
            "set one, or http.insecure = true if the network is trusted"
        )
