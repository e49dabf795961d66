"""What the codecs of both versions, `v3.Codec3` and `v5.Codec5`, are told: limits, and what a CONNACK says."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

UNLIMITED: Final = 1 << 62


class Limits(Struct, frozen=True, kw_only=True):
    """How much of everything a client may ask for."""

    maximum_packet_size: int = 17 * 1024 * 1024
    """Bytes of one packet of a client that is let in."""
    maximum_connect_size: int = 512 * 1024
    """Bytes of a CONNECT: the most that a client may send before it is accepted."""
    receive_maximum: int = 1000
    """Publishes of QoS 1 and 2 that a version 5 client may have unanswered."""
    topic_alias_maximum: int = 64
    """Aliases that a client may set, and at most as many we set towards it."""
    connect_within_s: float = 10.0
    """Seconds from the first `tick` to the CONNECT."""


class Answer(Struct, frozen=True, gc=False):
    """What a CONNACK says besides its reason."""

    session_present: bool = False
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    text: str = ""
