"""What goes wrong, in the protocol's numbers: errors that cost a channel, and those that cost the connection.

Knows the broker's errors and the reply codes; who closes what is `channel.py`'s and `connection.py`'s business.
"""

from __future__ import annotations

from typing import Final

from penstock.model.errors import (
    AlreadyExists,
    Closed,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    PenstockError,
    Unroutable,
    WrongKind,
)
from penstock.wire.amqp091 import codes


class ChannelFault(Exception):
    """Closes the channel, and only it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code: Final = code
        self.text: Final = text


class ConnectionFault(ChannelFault):
    """Closes the connection."""


def fault_of(error: PenstockError) -> ChannelFault:
    """What a channel is told where the broker has refused or failed."""
    return ChannelFault(_code_of(error), str(error))


def _code_of(error: PenstockError) -> int:
    if isinstance(error, NotFound | Unroutable):
        return codes.NOT_FOUND
    if isinstance(error, Forbidden):
        return codes.RESOURCE_LOCKED if "exclusive to another session" in str(error) else codes.ACCESS_REFUSED
    if isinstance(error, MessageTooLarge):
        return codes.CONTENT_TOO_LARGE
    if isinstance(error, AlreadyExists | InvalidArgument | WrongKind):
        return codes.PRECONDITION_FAILED
    if isinstance(error, Closed):
        return codes.CONNECTION_FORCED
    return codes.INTERNAL_ERROR


def not_found(what: str, name: str, vhost: str) -> ChannelFault:
    return ChannelFault(codes.NOT_FOUND, f"no {what} '{name}' in vhost '{vhost}'")


def precondition(text: str) -> ChannelFault:
    return ChannelFault(codes.PRECONDITION_FAILED, text)


def not_implemented(text: str) -> ConnectionFault:
    return ConnectionFault(codes.NOT_IMPLEMENTED, text)
