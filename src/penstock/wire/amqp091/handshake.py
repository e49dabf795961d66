"""Logging in and agreeing on limits: what connection.start-ok and connection.tune-ok say, and what one may ask for.

Pure functions; the order of the steps is `connection`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.tables import Malformed, Wrong, decode_table

if TYPE_CHECKING:
    from pamqp.commands import Connection

MECHANISMS: Final = "PLAIN AMQPLAIN"

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
}

SERVER_PROPERTIES: Final[dict[str, Any]] = {
    # kombu, and so Celery, ask for exactly this name to learn what `global` means in basic.qos; for any other name it
    # takes it to mean what the specification says, which no server does.
    "product": "RabbitMQ",
    "version": "3.13.0",
    "platform": "Penstock",
    "information": "Penstock, a message queue that clients of RabbitMQ can use",
    "capabilities": CAPABILITIES,
}


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


def credentials(method: Connection.StartOk) -> tuple[str, str]:
    """User and password that a client logs in with; raises Wrong."""
    told: Any = method.response
    response = told.encode() if isinstance(told, str) else bytes(told)
    try:
        if method.mechanism == "PLAIN":
            return _plain(response)
        if method.mechanism == "AMQPLAIN":
            return _amqplain(response)
    except (Malformed, UnicodeDecodeError):
        raise Wrong(codes.SYNTAX_ERROR, f"the {method.mechanism} response is not well formed") from None
    raise Wrong(codes.COMMAND_INVALID, f"unknown mechanism {method.mechanism[:40]!r}; there are {MECHANISMS}")


def _plain(response: bytes) -> tuple[str, str]:
    """An identity (unused), the user and the password, with zero octets between them."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        raise Malformed("not three parts")
    return parts[1].decode(), parts[2].decode()


def _amqplain(response: bytes) -> tuple[str, str]:
    """A table without its length, with LOGIN and PASSWORD."""
    table, _ = decode_table(len(response).to_bytes(4) + response)
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise Malformed("no LOGIN or no PASSWORD")
    return user, password


def capabilities(method: Connection.StartOk) -> frozenset[str]:
    """What the client says that it can do."""
    properties: Any = method.client_properties
    told = properties.get("capabilities")
    return frozenset(name for name, value in told.items() if value is True) if isinstance(told, dict) else frozenset()


def tuned(limits: Limits, method: Connection.TuneOk) -> tuple[int, int, int]:
    """channel_max, frame_max and heartbeat after the client's answer; its 0 means no wish. Raises Wrong."""
    channel_max = _agreed("channel_max", limits.channel_max, method.channel_max)
    frame_max = _agreed("frame_max", limits.frame_max, method.frame_max)
    if frame_max < codes.FRAME_MIN_SIZE:
        raise Wrong(codes.NOT_ALLOWED, f"frame_max {frame_max} is less than {codes.FRAME_MIN_SIZE}")
    return channel_max, frame_max, method.heartbeat


def _agreed(name: str, ours: int, theirs: int) -> int:
    if theirs > ours:
        raise Wrong(codes.NOT_ALLOWED, f"{name} {theirs} is more than the {ours} that was offered")
    return theirs or ours
